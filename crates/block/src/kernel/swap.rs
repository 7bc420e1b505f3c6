//! Swap on a device of this process's.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ramfold_sys::swap::{become_io_flusher, lock_memory, never_kill_for_memory, swap_off, swap_on};
use ramfold_sys::{Errno, PAGE_SIZE};

use super::error::{KernelError, Tried};

/// The kernel's list of what is on.
const SWAPS: &str = "/proc/swaps";
/// A smaller area is none to the kernel, whose bits say which page is in use.
const PAGES_MIN: u64 = 10;

/// What keeps a server from waiting for memory that waits for the server: for each part, why it
/// could not be had.
#[derive(Debug, Default)]
pub struct Protection {
    /// Its memory is locked: none of it is on its own device.
    pub memory: Option<io::Error>,
    /// What it asks for never waits for writes.
    pub io_flusher: Option<io::Error>,
    /// It is not ended for want of memory.
    pub out_of_memory: Option<io::Error>,
}

impl Protection {
    /// All of it could be had.
    pub fn is_whole(&self) -> bool {
        self.memory.is_none() && self.io_flusher.is_none() && self.out_of_memory.is_none()
    }
}

/// Makes this process one that can serve swap. To be called before its threads are started: part
/// of it is for the calling thread and those that it starts.
pub fn protect_server() -> Protection {
    Protection {
        memory: lock_memory().err().map(io::Error::from),
        io_flusher: become_io_flusher().err().map(io::Error::from),
        out_of_memory: never_kill_for_memory().err(),
    }
}

/// A swap area that is on. Dropping this turns it off, if the kernel can.
#[derive(Debug)]
pub struct Swap {
    device: PathBuf,
    is_on: bool,
}

impl Swap {
    /// Writes a header to a device (as mkswap does; whatever was on it is lost), unless a swap area
    /// is there, and turns swap on with that priority, 32,767 at most. Where it is on already, it
    /// stays as it is.
    ///
    /// # Errors
    /// The device cannot be written, is too small, or the kernel refuses it.
    pub fn on(device: &Path, priority: u16) -> Result<Swap, KernelError> {
        if !is_swap(device) {
            let described = || format!("make {} a swap area", device.display());
            make_area(device).tried(described)?;
            swap_on(device, priority)
                .tried(|| format!("turn swap on {} on", device.display()))
                .map_err(|error| match error.kind() {
                    io::ErrorKind::PermissionDenied => error.advise("it needs root"),
                    _ => error,
                })?;
        }
        Ok(Swap { device: device.to_owned(), is_on: true })
    }

    /// Turns it off: all that is in it comes back to memory. The server must go on until this has
    /// succeeded.
    ///
    /// # Errors
    /// `ENOMEM`: memory does not hold it now. It is still on then, and this can be tried again.
    pub fn off(&mut self) -> Result<(), KernelError> {
        turn_off(&self.device)?;
        self.is_on = false;
        Ok(())
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if self.is_on {
            // The caller has nothing more to do about it.
            let _ = self.off();
        }
    }
}

/// Whether swap is on, on that device.
pub(super) fn is_swap(device: &Path) -> bool {
    fs::read_to_string(SWAPS).is_ok_and(|text| lists(&text, device))
}

fn lists(swaps: &str, device: &Path) -> bool {
    let first_words = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    // As the kernel has it where the device node is gone.
    let device = device.to_str();
    first_words.map(|word| word.trim_end_matches("\\040(deleted)")).any(|word| Some(word) == device)
}

/// Nothing happens where it is not on.
pub(super) fn turn_off(device: &Path) -> Result<(), KernelError> {
    loop {
        return match swap_off(device) {
            Err(Errno::INTR) => continue,
            Err(Errno::INVAL) if !is_swap(device) => Ok(()),
            Err(Errno::NOMEM) => Err(KernelError::new(
                format!("turn swap on {} off", device.display()),
                io::Error::from(Errno::NOMEM),
            )
            .advise("end programs, or turn other swap on, to make room for what is in it")),
            other => other.tried(|| format!("turn swap on {} off", device.display())),
        };
    }
}

/// Writes a header to a device that has none. The label and UUID of an area stay, by which
/// fstab(5) may know it.
fn make_area(device: &Path) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(device)?;
    let bytes = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
    let mut there = [0; PAGE_SIZE];
    file.read_exact_at(&mut there, 0)?;
    if is_header(&there) {
        return is_area(&there, bytes).then_some(()).ok_or_else(|| {
            io::Error::other(format!(
                "the kernel would not take the area that is there, on {bytes} bytes; `mkswap` \
                 makes another"
            ))
        });
    }
    let mut uuid = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    let header = header(bytes, uuid)?;
    io::Seek::rewind(&mut file)?;
    file.write_all(&header)?;
    file.sync_all()
}

const VERSION: u32 = 1;
const INFO: usize = 1024;
const LAST_PAGE: usize = INFO + 4;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";

/// Whether the page ends as the first one of a swap area does.
pub(crate) fn is_header(page: &[u8]) -> bool {
    page.ends_with(MAGIC)
}

/// Whether a device of `bytes` bytes that begins with this page has a swap area that the kernel
/// accepts.
fn is_area(page: &[u8; PAGE_SIZE], bytes: u64) -> bool {
    let number = |at: usize| page[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    let pages = u64::from(number(LAST_PAGE)) + 1;
    is_header(page)
        && number(INFO) == VERSION
        && (PAGES_MIN..=bytes / PAGE_SIZE as u64).contains(&pages)
}

/// The first page of an area (`union swap_header` of linux/swap.h).
fn header(bytes: u64, mut uuid: [u8; 16]) -> io::Result<[u8; PAGE_SIZE]> {
    let pages = bytes / PAGE_SIZE as u64;
    if pages < PAGES_MIN {
        return Err(io::Error::other(format!("a swap area has {PAGES_MIN} pages at least")));
    }
    // More than a 32-bit number of pages stays unused.
    let last_page = u32::try_from(pages - 1).unwrap_or(u32::MAX - 1);
    // Of version 4, random.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    let mut page = [0; PAGE_SIZE];
    let fields: [(usize, &[u8]); 5] = [
        (INFO, &VERSION.to_ne_bytes()),
        (LAST_PAGE, &last_page.to_ne_bytes()),
        (INFO + 12, &uuid),
        (INFO + 28, b"ramfold"),
        (PAGE_SIZE - MAGIC.len(), MAGIC),
    ];
    for (place, field) in fields {
        page[place..place + field.len()].copy_from_slice(field);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_header_is_as_mkswap_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("area");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        let made = Command::new("/usr/sbin/mkswap")
            .args(["--label", "ramfold", "--pagesize", "4096"])
            .arg(&path)
            .output();
        match made {
            Ok(output) if output.status.success() => {}
            failed => return eprintln!("SKIPPED: no mkswap here: {failed:?}"),
        }
        let theirs = fs::read(&path).unwrap();
        let uuid: [u8; 16] = theirs[1036..1052].try_into().unwrap();
        assert_eq!(header(1 << 20, uuid).unwrap()[..], theirs[..PAGE_SIZE]);
        assert!(header(9 * PAGE_SIZE as u64, uuid).is_err());
    }

    #[test]
    fn an_area_that_is_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("area");
        let bytes = 1 << 20;
        File::create(&path).unwrap().set_len(bytes).unwrap();
        make_area(&path).unwrap();
        let made = fs::read(&path).unwrap();
        make_area(&path).unwrap();
        assert!(fs::read(&path).unwrap() == made);
        // One that ends behind the device is of no use, but somebody's.
        File::options().write(true).open(&path).unwrap().set_len(bytes / 2).unwrap();
        let error = make_area(&path).unwrap_err().to_string();
        assert!(error.contains("on 524288 bytes; `mkswap`"), "{error}");
        assert!(fs::read(&path).unwrap() == made[..bytes as usize / 2]);
    }

    #[test]
    fn what_is_on_is_in_the_kernels_list() {
        let swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /dev/ublkb1                             partition\t1048572\t\t0\t\t-2\n\
            /dev/nbd0\\040(deleted)                 partition\t1048572\t\t0\t\t5\n";
        assert!(lists(swaps, Path::new("/dev/ublkb1")));
        assert!(lists(swaps, Path::new("/dev/nbd0")));
        assert!(!lists(swaps, Path::new("/dev/ublkb")));
        assert!(!lists(swaps, Path::new("Filename")));
    }
}
