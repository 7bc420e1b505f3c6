//! Pages of files: raw, as `ramfold dump` writes them, or compressed with zstd.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ramfold_codec::{PAGE_SIZE, Page, same_filled};
use ruzstd::decoding::StreamingDecoder;

/// The pages of a file.
pub(crate) struct Pages {
    /// The file, as it was named.
    pub(crate) name: String,
    /// Pages in the file, same-filled ones included.
    pub(crate) count: usize,
    /// Those that are not same-filled: what codecs see.
    pub(crate) distinct: Vec<Page>,
}

impl Pages {
    /// Reads a file, or at most `limit` pages spread over it. What is left behind its last whole
    /// page is left out.
    ///
    /// # Errors
    /// When it cannot be read, or holds no page that is not same-filled.
    pub(crate) fn read(path: &Path, limit: Option<usize>) -> Result<Pages> {
        let describe = || format!("cannot read pages from {}", path.display());
        let mut bytes = std::fs::read(path).with_context(describe)?;
        if bytes.starts_with(&ZSTD_MAGIC) {
            let mut expanded = Vec::new();
            let mut decoder = StreamingDecoder::new(&bytes[..]).with_context(describe)?;
            decoder.read_to_end(&mut expanded).with_context(describe)?;
            bytes = expanded;
        }
        let pages = bytes.as_chunks::<PAGE_SIZE>().0;
        // Programs keep like with like: the first pages of a file say little about the others.
        let step = limit.map_or(1, |limit| pages.len().div_ceil(limit).max(1));
        let pages = pages.iter().step_by(step);
        let count = pages.len();
        let distinct: Vec<Page> =
            pages.filter(|page| same_filled(page).is_none()).copied().collect();
        ensure!(
            !distinct.is_empty(),
            "{} holds no page of {PAGE_SIZE} bytes but same-filled ones",
            path.display()
        );
        Ok(Pages { name: path.display().to_string(), count, distinct })
    }
}

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

#[cfg(test)]
mod tests {
    use super::*;

    /// One zstd frame with one raw block.
    fn stored(content: &[u8]) -> Vec<u8> {
        let mut frame = [&ZSTD_MAGIC[..], &[0b1010_0000]].concat();
        frame.extend((content.len() as u32).to_le_bytes());
        frame.extend(&(1 | (content.len() as u32) << 3).to_le_bytes()[..3]);
        frame.extend(content);
        frame
    }

    #[test]
    fn raw_and_compressed_files_hold_the_same_pages() {
        let folder = tempfile::tempdir().unwrap();
        let mut content = vec![0; PAGE_SIZE];
        content.extend((0..2 * PAGE_SIZE).map(|at| ((at * at) >> 5) as u8));
        content.extend([1; 100]);
        let (raw, compressed) = (folder.path().join("a.pages"), folder.path().join("b.pages.zst"));
        std::fs::write(&raw, &content).unwrap();
        std::fs::write(&compressed, stored(&content)).unwrap();
        for path in [raw, compressed] {
            let pages = Pages::read(&path, None).unwrap();
            assert_eq!(pages.name, path.to_str().unwrap());
            assert_eq!((pages.count, pages.distinct.len()), (3, 2));
            assert_eq!(pages.distinct.as_flattened(), &content[PAGE_SIZE..3 * PAGE_SIZE]);
            // The first and the last.
            assert_eq!(Pages::read(&path, Some(2)).unwrap().distinct.len(), 1);
            assert!(Pages::read(&path, Some(1)).is_err());
        }
    }
}
