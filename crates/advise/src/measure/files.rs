//! A directory of files: what a mount could save.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use ramfold_codec::PAGE_SIZE;
use ramfold_sys::file::{keeps_access_times, next_data, open_unnoticed};
use ramfold_sys::file_server::cached_pages;

use super::random::Random;
use super::{
    BLOCK_BYTES, Error, Options, Raw, compressed, empty, mebibytes, own_machine, pages_of,
    read_block, read_error,
};
use crate::observation::{Observation, Size, Subject, Window};
use crate::progress::Progress;

/// Blocks that are read: 2,000 pages.
const BLOCKS: usize = 250;
/// Where the number of a file is in that of a page.
const FILE_SHIFT: u32 = 32;
/// A file of which less than one byte in this many has room on the disk has holes.
const SPARSE: u64 = 4;
/// Files smaller than this may have no room of their own.
const SPARSE_BYTES_MIN: u64 = 64 << 10;
/// Parts between holes that are known of a file at most.
const PARTS: usize = 10_000;
/// Windows of time back from now, in days. A file system notes an access once a day at least.
const DAYS: [f64; 6] = [1.0, 2.0, 7.0, 30.0, 90.0, 365.0];
const DAY_S: f64 = 86_400.0;

/// What is found in the directory.
struct Walk {
    device: u64,
    files: u64,
    bytes: u64,
    blocks: u64,
    /// Pages of files that were accessed within each of [`DAYS`].
    touched: [f64; DAYS.len()],
    /// Files to read a block of: each block as likely as any other.
    places: Vec<Place>,
    unreadable_folders: u64,
    other_devices: u64,
    links: HashSet<u64>,
    now: SystemTime,
    random: Random,
}

/// A file in which a block is read.
#[derive(Clone)]
struct Place {
    path: Rc<Path>,
    number: u64,
    /// Its length.
    bytes: u64,
    has_holes: bool,
}

/// Measures the regular files in a directory and below, on its file system.
///
/// # Errors
/// When it is no directory, or no file in it can be read.
pub fn measure(
    folder: &Path,
    options: &Options,
    progress: &Progress,
) -> Result<Observation, Error> {
    let failed = || read_error(folder);
    let metadata = folder.metadata().map_err(failed())?;
    if !metadata.is_dir() {
        return Err(Error::NotAFolder { path: folder.to_owned() });
    }
    fs::read_dir(folder).map_err(failed())?;
    progress.set_all(2 * BLOCKS as u64);
    let mut walk = Walk::new(metadata.dev());
    let is_whole = walk.run(folder, options);
    if walk.bytes == 0 {
        return Err(match is_whole {
            true => Error::Empty { path: folder.to_owned() },
            false => Error::Interrupted,
        });
    }
    progress.set(BLOCKS as u64);
    let mut observation = empty(Subject::Files(folder.display().to_string()), own_machine()?);
    let read = walk.read();
    if read.raw.is_empty() {
        let (path, source) = read.refused.unwrap_or_else(|| {
            (folder.to_owned(), io::Error::other("its files became empty meanwhile"))
        });
        return Err(Error::Read { path, source });
    }
    observation.need_bytes = walk.bytes;
    observation.sizes = vec![Size { at_s: 0.0, bytes: walk.bytes }];
    observation.not_seen = walk.not_seen(&read, is_whole);
    let keeps = c_path(folder).is_ok_and(|folder| keeps_access_times(&folder).unwrap_or(false));
    if keeps {
        let windows = DAYS.iter().zip(walk.touched);
        observation.windows =
            windows.map(|(days, pages)| Window { seconds: days * DAY_S, pages }).collect();
    }
    observation.contents = compressed(&read.raw, || {
        progress.add(1);
        !options.is_interrupted()
    });
    progress.set(2 * BLOCKS as u64);
    Ok(observation)
}

/// What reading the places came to.
struct Read {
    raw: Vec<Raw>,
    /// Places in files that cannot be read.
    unreadable: usize,
    refused: Option<(PathBuf, io::Error)>,
    /// Bytes of the files that are in the page cache, estimated; `None` where the kernel does not
    /// tell.
    cached_bytes: Option<f64>,
}

impl Walk {
    fn new(device: u64) -> Walk {
        Walk {
            device,
            files: 0,
            bytes: 0,
            blocks: 0,
            touched: [0.0; DAYS.len()],
            places: Vec::with_capacity(BLOCKS),
            unreadable_folders: 0,
            other_devices: 0,
            links: HashSet::new(),
            now: SystemTime::now(),
            random: Random::new(),
        }
    }

    /// Goes through the directory; `false` when it was interrupted.
    fn run(&mut self, folder: &Path, options: &Options) -> bool {
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            if options.is_interrupted() {
                return false;
            }
            let Ok(entries) = fs::read_dir(&folder) else {
                self.unreadable_folders += 1;
                continue;
            };
            for entry in entries.flatten() {
                // Of a symbolic link this is the link itself.
                let Ok(metadata) = entry.metadata() else { continue };
                if metadata.is_dir() && metadata.dev() == self.device {
                    folders.push(entry.path());
                } else if metadata.is_dir() {
                    self.other_devices += 1;
                } else if metadata.is_file() && metadata.dev() == self.device {
                    self.add(&metadata, || entry.path());
                }
            }
        }
        true
    }

    fn add(&mut self, metadata: &Metadata, path: impl FnOnce() -> PathBuf) {
        let size = metadata.size();
        if size == 0 || metadata.nlink() > 1 && !self.links.insert(metadata.ino()) {
            return;
        }
        let room = metadata.blocks() * 512;
        let has_holes = size >= SPARSE_BYTES_MIN && room < size / SPARSE;
        let bytes = if has_holes { room } else { size }.next_multiple_of(PAGE_SIZE as u64);
        if bytes == 0 {
            return;
        }
        let number = self.files;
        self.files += 1;
        self.bytes += bytes;
        let age = metadata.accessed().ok().and_then(|at| self.now.duration_since(at).ok());
        let age_s = age.unwrap_or_default().as_secs_f64();
        for (days, touched) in DAYS.iter().zip(&mut self.touched) {
            if age_s <= days * DAY_S {
                *touched += bytes as f64 / PAGE_SIZE as f64;
            }
        }
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        self.blocks += blocks;
        // Each place is in this file as likely as a block of all so far is.
        let mut place = None;
        let mut path = Some(path);
        for nth in 0..BLOCKS {
            if self.random.below(self.blocks) >= blocks {
                continue;
            }
            let place = place.get_or_insert_with(|| {
                let path = path.take().map(|path| path()).unwrap_or_default();
                Place { path: path.into(), number, bytes: size, has_holes }
            });
            if nth < self.places.len() {
                self.places[nth] = place.clone();
            } else {
                self.places.push(place.clone());
            }
        }
    }

    fn read(&mut self) -> Read {
        let mut read = Read { raw: Vec::new(), unreadable: 0, refused: None, cached_bytes: None };
        let mut seen = HashSet::new();
        let (mut cached_parts, mut told) = (0.0, 0);
        for place in std::mem::take(&mut self.places) {
            let file = match open(&place.path) {
                Ok(file) => file,
                Err(error) => {
                    read.unreadable += 1;
                    read.refused.get_or_insert((place.path.to_path_buf(), error));
                    continue;
                }
            };
            if let Ok(pages) = cached_pages(&file) {
                cached_parts +=
                    (pages as f64 * PAGE_SIZE as f64 / place.bytes as f64).clamp(0.0, 1.0);
                told += 1;
            }
            match self.block(&file, &place) {
                Ok(Some(raw)) if seen.insert(raw.first_page) => read.raw.push(raw),
                Ok(_) => {}
                Err(error) => {
                    read.unreadable += 1;
                    read.refused.get_or_insert((place.path.to_path_buf(), error));
                }
            }
        }
        if told > 0 {
            read.cached_bytes = Some(cached_parts / f64::from(told) * self.bytes as f64);
        }
        read
    }

    /// A random block of the file.
    fn block(&mut self, file: &File, place: &Place) -> io::Result<Option<Raw>> {
        let offset = if place.has_holes {
            self.random_data(file)?
        } else {
            self.random.below(place.bytes.div_ceil(BLOCK_BYTES)) * BLOCK_BYTES
        };
        let bytes = read_block(file, offset)?;
        let page = offset / PAGE_SIZE as u64;
        let first_page = place.number << FILE_SHIFT | page;
        let raw = Raw { first_page, at_s: 0.0, pages: pages_of(&bytes) };
        Ok((!bytes.is_empty()).then_some(raw))
    }

    /// The offset of a block that is no hole.
    fn random_data(&mut self, file: &File) -> io::Result<u64> {
        let mut parts = Vec::new();
        let (mut offset, mut total) = (0, 0);
        while parts.len() < PARTS
            && let Some(data) = next_data(file, offset)?
            && data.end > offset
        {
            offset = data.end;
            total += data.end - data.start;
            parts.push(data);
        }
        let mut place = self.random.below(total);
        for data in parts {
            let length = data.end - data.start;
            if place < length {
                return Ok((data.start + place) / BLOCK_BYTES * BLOCK_BYTES);
            }
            place -= length;
        }
        Ok(0)
    }

    fn not_seen(&self, read: &Read, is_whole: bool) -> Vec<String> {
        let mut not_seen = Vec::new();
        if !is_whole {
            not_seen.push("going through the files was interrupted: some are not counted".into());
        }
        not_seen.push(match read.cached_bytes {
            Some(bytes) => format!(
                "about {} of {} are in the page cache now",
                mebibytes(bytes as u64),
                mebibytes(self.bytes)
            ),
            None => "how much is in the page cache now is not known: Linux 6.5 tells, to who may \
                     write to the files"
                .to_owned(),
        });
        if read.unreadable > 0 {
            let percent = 100.0 * read.unreadable as f64 / BLOCKS as f64;
            not_seen.push(format!(
                "files with about {percent:.1} % of the bytes cannot be read: they count with the \
                 others' sizes"
            ));
        }
        if self.unreadable_folders > 0 {
            let count = self.unreadable_folders;
            not_seen.push(format!("{count} directories cannot be read: they are not counted"));
        }
        if self.other_devices > 0 {
            let count = self.other_devices;
            not_seen.push(format!("{count} directories are other file systems: not counted"));
        }
        not_seen.push(
            "pages are measured by themselves: a mount compresses up to 16 at once, which \
                       makes them smaller"
                .to_owned(),
        );
        not_seen
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

/// Without being noted as an access, where that is permitted.
fn open(path: &Path) -> io::Result<File> {
    Ok(File::from(open_unnoticed(&c_path(path)?)?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::Ordering;

    use super::*;

    fn measured(folder: &Path) -> Result<Observation, Error> {
        measure(folder, &Options::default(), &Progress::default())
    }

    fn says(observation: &Observation, what: &str) -> bool {
        observation.not_seen.iter().any(|sentence| sentence.contains(what))
    }

    /// Bytes that do not compress.
    fn random_bytes(count: usize) -> Vec<u8> {
        let mut random = Random::new();
        (0..count).map(|_| random.below(256) as u8).collect()
    }

    #[test]
    fn files_count_by_their_pages() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("below")).unwrap();
        // 3 MiB that do not compress and 1 MiB that does, in files of a page.
        fs::write(at("random"), random_bytes(3 << 20)).unwrap();
        for nth in 0..256 {
            fs::write(at(&format!("below/{nth}")), [b'x'; 4000]).unwrap();
        }
        // None of this counts.
        fs::write(at("empty"), "").unwrap();
        symlink("/usr", at("link")).unwrap();
        fs::hard_link(at("random"), at("again")).unwrap();
        make_pipe(&at("pipe"));
        let progress = Progress::default();
        let observation = measure(folder.path(), &Options::default(), &progress).unwrap();
        assert_eq!(progress.part(), 1.0);
        assert_eq!(observation.check(), Ok(()));
        assert_eq!(observation.need_bytes, 4 << 20);
        let pages = observation.contents.blocks.iter().flat_map(|block| &block.charged_bytes);
        let stay: Vec<_> = pages.map(|page| page[0] == 4096).collect();
        let part = stay.iter().filter(|&&stays| stays).count() as f64 / stay.len() as f64;
        // Of 352 blocks 96 are random, of eight pages each; those of one page are many.
        assert!((0.6..0.9).contains(&part), "{part}");
        assert!(says(&observation, "page cache now"));
        // All were accessed today, where that is noted.
        let touched = observation.windows.iter().map(|window| window.pages);
        assert!(touched.clone().all(|pages| pages == 1024.0), "{:?}", observation.windows);
    }

    /// A pipe: opening it would wait for ever.
    fn make_pipe(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }

    #[test]
    fn holes_are_no_content() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = File::create(folder.path().join("holes")).unwrap();
        file.set_len(1 << 30).unwrap();
        let write_at = std::os::unix::fs::FileExt::write_all_at;
        write_at(&file, &random_bytes(1 << 20), 0).unwrap();
        file.sync_all().unwrap();
        let observation = measured(folder.path()).unwrap();
        let mebibytes = observation.need_bytes >> 20;
        assert!((1..=2).contains(&mebibytes) || mebibytes == 1 << 10, "{mebibytes}");
        let pages = observation.contents.blocks.iter().flat_map(|block| &block.charged_bytes);
        let stay: Vec<_> = pages.map(|page| page[0] == 4096).collect();
        // 32 blocks, of which some are taken several times, and count once.
        let has_holes = mebibytes < 1 << 10;
        assert!(!has_holes || stay.len() > 100 && stay.iter().all(|&stays| stays), "{stay:?}");
    }

    #[test]
    fn what_is_no_directory_of_files_is_told() {
        let told = |path: &Path| measured(path).unwrap_err().to_string();
        let folder = tempfile::tempdir().unwrap();
        assert!(told(folder.path()).contains("is empty"));
        let file = folder.path().join("file");
        fs::write(&file, "text").unwrap();
        assert!(told(&file).contains("is no directory"));
        assert_eq!(told(Path::new("/nowhere")), "cannot read /nowhere");
    }

    #[test]
    fn an_interruption_leaves_what_was_read_or_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "text").unwrap();
        let options = Options::default();
        options.interrupt.store(true, Ordering::Relaxed);
        let result = measure(folder.path(), &options, &Progress::default());
        assert!(matches!(result, Err(Error::Interrupted)));
    }
}
