//! A dump of memory: a core file, or pages one behind the other.

use std::fs::File;
use std::path::Path;

use super::{BLOCK_BYTES, Error, Options, empty, own_machine, pages_of, read_block, read_error};
use crate::contents::{self, Sampler};
use crate::observation::{BLOCK_PAGES, Contents, Observation, Size, Subject};
use crate::progress::Progress;

/// Blocks that are read at most.
const BLOCKS: u64 = 2_000;

/// Measures how small the pages of a file become.
///
/// # Errors
/// When it cannot be read, is no regular file, or is empty.
pub fn measure(path: &Path, options: &Options, progress: &Progress) -> Result<Observation, Error> {
    let failed = || read_error(path);
    let metadata = path.metadata().map_err(failed())?;
    if !metadata.is_file() {
        return Err(Error::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(failed())?;
    let bytes = metadata.len();
    let mut observation = empty(Subject::Pages(path.display().to_string()), own_machine()?);
    let not_seen = &mut observation.not_seen;
    not_seen.push("a dump does not tell which pages are in use".to_owned());
    let mut sampler = Sampler::new();
    let mut blocks = Vec::new();
    let all = bytes.div_ceil(BLOCK_BYTES);
    let count = all.min(BLOCKS);
    progress.set_all(count);
    for nth in 0..count {
        if options.is_interrupted() && !blocks.is_empty() {
            let part = nth * 100 / count;
            not_seen.push(format!("reading was interrupted: only the first {part} % are in here"));
            break;
        }
        // Evenly, the middle of each part.
        let block = (u128::from(2 * nth + 1) * u128::from(all) / u128::from(2 * count)) as u64;
        let pages = pages_of(&read_block(&file, block * BLOCK_BYTES).map_err(failed())?);
        if pages.is_empty() {
            not_seen.push("the file became shorter while it was read".to_owned());
            break;
        }
        blocks.push(sampler.block(block * BLOCK_PAGES, 0.0, &pages));
        progress.add(1);
    }
    if blocks.is_empty() {
        return Err(Error::Empty { path: path.to_owned() });
    }
    observation.need_bytes = bytes.next_multiple_of(BLOCK_BYTES / BLOCK_PAGES);
    observation.sizes = vec![Size { at_s: 0.0, bytes: observation.need_bytes }];
    observation.contents = Contents { codecs: contents::codecs(), blocks };
    Ok(observation)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn measured(path: &Path) -> Result<Observation, Error> {
        measure(path, &Options::default(), &Progress::default())
    }

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    /// Pages of which each has its number all over, in bytes of 7 bits.
    fn numbered(pages: usize) -> Vec<u8> {
        (0..pages).flat_map(|page| [(page % 128) as u8; 4096]).collect()
    }

    #[test]
    fn a_small_dump_is_read_whole_and_filled_up() {
        let mut bytes = numbered(20);
        bytes.extend([7; 100]);
        let file = written(&bytes);
        let progress = Progress::default();
        let observation = measure(file.path(), &Options::default(), &progress).unwrap();
        assert_eq!(progress.part(), 1.0);
        assert_eq!(observation.check(), Ok(()));
        assert_eq!(observation.need_bytes, 21 * 4096);
        let blocks = &observation.contents.blocks;
        let pages: Vec<_> = blocks.iter().map(|b| (b.first_page, b.charged_bytes.len())).collect();
        assert_eq!(pages, [(0, 8), (8, 8), (16, 5)]);
        let charged: Vec<_> = blocks.iter().flat_map(|block| &block.charged_bytes).collect();
        assert!(charged[..20].iter().all(|page| page.iter().all(|&bytes| bytes == 0)));
        // The last one has two kinds of bytes.
        assert!(charged[20].iter().all(|&bytes| bytes > 0 && bytes < 1024), "{:?}", charged[20]);
    }

    #[test]
    fn of_a_large_dump_a_part_is_read_evenly() {
        let file = written(&[]);
        file.as_file().set_len(3_000 * BLOCK_BYTES + 1).unwrap();
        let observation = measured(file.path()).unwrap();
        let firsts: Vec<_> = observation.contents.blocks.iter().map(|b| b.first_page / 8).collect();
        assert_eq!(firsts.len(), 2_000);
        let apart = firsts.iter().zip(&firsts[1..]).map(|(one, next)| next - one);
        assert!(apart.clone().all(|apart| apart == 1 || apart == 2));
        assert!(firsts[0] <= 1 && firsts[1_999] >= 2_999);
        assert_eq!(observation.need_bytes, 3_000 * BLOCK_BYTES + 4096);
    }

    #[test]
    fn what_is_no_dump_is_told() {
        let told = |path: &Path| measured(path).unwrap_err().to_string();
        assert!(told(written(b"").path()).ends_with("is empty: there is no page to compress"));
        assert!(told(Path::new("/dev/null")).contains("is no regular file"));
        assert!(told(Path::new("/")).contains("is no regular file"));
        assert_eq!(told(Path::new("/nowhere")), "cannot read /nowhere");
    }

    #[test]
    fn an_interruption_leaves_what_was_read() {
        let file = written(&numbered(800));
        let options = Options::default();
        options.interrupt.store(true, Ordering::Relaxed);
        let observation = measure(file.path(), &options, &Progress::default()).unwrap();
        assert_eq!(observation.contents.blocks.len(), 1);
        assert!(observation.not_seen[1].contains("only the first 1 %"), "{observation:?}");
    }
}
