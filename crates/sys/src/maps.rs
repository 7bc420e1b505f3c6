//! The mappings of the process, from `/proc/self/maps`, read through a caller's buffer.

use core::ops::Range;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

use crate::abi::procmap as abi;
use crate::{Errno, raw};

/// One line of `/proc/self/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// Addresses.
    pub range: Range<usize>,
    /// `PROT_READ`.
    pub readable: bool,
    /// `PROT_WRITE`.
    pub writable: bool,
    /// `PROT_EXEC`.
    pub executable: bool,
    /// `MAP_PRIVATE`: writes are the process's own.
    pub private: bool,
    /// The number of the file behind it; 0 for none.
    pub inode: u64,
    /// Path, `[heap]`, `[stack]`, `[anon:name]`, or nothing.
    pub name: &'a [u8],
}

impl Mapping<'_> {
    /// The stack of the program's first thread. The kernel makes it longer by itself.
    pub fn is_main_stack(&self) -> bool {
        self.name == b"[stack]"
    }

    /// Memory that belongs to the process alone and to no file, of the kinds a pager may take: not
    /// the kernel's own pages.
    pub fn is_private_anonymous(&self) -> bool {
        self.private
            && self.inode == 0
            && (self.name.is_empty()
                || self.name == b"[heap]"
                || self.is_main_stack()
                || self.name.starts_with(b"[anon:"))
    }
}

/// Two-letter flags of a mapping, the `VmFlags` line of `/proc/self/smaps`.
#[derive(Clone, Copy, Debug)]
pub struct Flags<'a>(&'a [u8]);

impl<'a> Flags<'a> {
    /// Those of a line, without its name.
    pub fn of(line: &'a [u8]) -> Self {
        Flags(line)
    }

    /// Whether the flag is set. The kernel's Documentation/filesystems/proc.rst lists them.
    pub fn has(&self, flag: [u8; 2]) -> bool {
        self.0.split(|&b| b == b' ').any(|word| word == flag)
    }
}

/// Reads all mappings and hands each to `f`. `buffer` must hold the longest line; paths that do
/// not fit are cut.
///
/// The ranges ascend and have no address in common. The kernel shows what it finds behind the end
/// of the mapping before: what becomes one with that mapping meanwhile is shown as the whole, of
/// which only the new part is handed on.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/self/maps`.
pub fn for_each(buffer: &mut [u8], mut f: impl FnMut(&Mapping<'_>)) -> Result<(), Errno> {
    let mut end = 0;
    for_each_line(opened(c"/proc/self/maps")?, buffer, |line| {
        if let Some(mut mapping) = parse(line) {
            mapping.range.start = mapping.range.start.max(end);
            if !mapping.range.is_empty() {
                end = mapping.range.end;
                f(&mapping);
            }
        }
    })
}

/// `/proc/self/maps`, to ask for one mapping (Linux 6.11).
#[derive(Debug)]
pub struct Maps {
    fd: OwnedFd,
}

impl Maps {
    /// Opens the file.
    ///
    /// # Errors
    /// What open(2) says; `ENOTTY` where the kernel cannot be asked.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let maps = Maps { fd: rustix::fs::open(c"/proc/self/maps", flags, Mode::empty())? };
        match maps.at(0) {
            Ok(_) => Ok(maps),
            Err(errno) => Err(errno),
        }
    }

    /// The mapping that an address is in, without its name.
    ///
    /// # Errors
    /// What ioctl(2) says.
    pub fn at(&self, address: usize) -> Result<Option<Mapping<'static>>, Errno> {
        let mut query = abi::Query {
            size: size_of::<abi::Query>() as u64,
            query_addr: address as u64,
            ..Default::default()
        };
        // SAFETY: the structure fits the opcode, and asks for no name.
        match unsafe { raw::ioctl(self.fd.as_fd(), abi::IOCTL_QUERY, &mut query) } {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let has = |flag: u64| query.vma_flags & flag != 0;
        Ok(Some(Mapping {
            range: query.vma_start as usize..query.vma_end as usize,
            readable: has(abi::flag::READABLE),
            writable: has(abi::flag::WRITABLE),
            executable: has(abi::flag::EXECUTABLE),
            private: !has(abi::flag::SHARED),
            inode: query.inode,
            name: b"",
        }))
    }
}

/// Anonymous memory of a mapping that is in RAM, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The process's alone.
    pub own_anonymous: u64,
    /// Its part of what it shares with others since a fork.
    pub shared_anonymous: u64,
}

/// The lines of `/proc/self/smaps` that [`Usage`] is made of, in bytes.
#[derive(Default)]
struct Amounts {
    /// Of all pages of the mapping.
    proportional: u64,
    private: u64,
    anonymous: u64,
}

impl Amounts {
    fn note(&mut self, line: &[u8]) {
        let amount = |name: &[u8]| {
            let (kibibytes, _) = number(line.strip_prefix(name)?.trim_ascii_start(), 10)?;
            Some(kibibytes * 1024)
        };
        if let Some(bytes) = amount(b"Pss:") {
            self.proportional = bytes;
        } else if let Some(bytes) = amount(b"Private_Clean:").or_else(|| amount(b"Private_Dirty:"))
        {
            self.private += bytes;
        } else if let Some(bytes) = amount(b"Anonymous:") {
            self.anonymous = bytes;
        }
    }

    fn usage(&self) -> Usage {
        let own_anonymous = self.anonymous.min(self.private);
        // Shared pages of files do not count.
        let shared = self.proportional.saturating_sub(self.private);
        Usage { own_anonymous, shared_anonymous: shared.min(self.anonymous - own_anonymous) }
    }
}

/// Like [`for_each`], with what each mapping has in RAM and its flags, but without its name: that
/// is empty for private anonymous memory, and `other` for the rest. Walks all page tables: about 10
/// ms for a GiB.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/self/smaps`.
pub fn for_each_with_usage(
    buffer: &mut [u8],
    mut f: impl FnMut(&Mapping<'_>, Usage, Flags<'_>),
) -> Result<(), Errno> {
    let mut current: Option<Mapping<'static>> = None;
    let mut amounts = Amounts::default();
    for_each_line(opened(c"/proc/self/smaps")?, buffer, |line| {
        if let Some(flags) = line.strip_prefix(b"VmFlags: ") {
            if let Some(mapping) = current.take() {
                f(&mapping, core::mem::take(&mut amounts).usage(), Flags::of(flags));
            }
        } else if let Some(first) = line.first()
            && first.is_ascii_uppercase()
        {
            amounts.note(line);
        } else if let Some(mapping) = parse(line) {
            let name: &[u8] = if mapping.is_private_anonymous() { b"" } else { b"other" };
            current = Some(Mapping { name, ..mapping });
        }
    })
}

fn opened(path: &core::ffi::CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Hands each line of a file to `f`, without its end; of a line that does not fit into `buffer`
/// as much as fits.
pub(crate) fn for_each_line(
    file: impl AsFd,
    buffer: &mut [u8],
    mut f: impl FnMut(&[u8]),
) -> Result<(), Errno> {
    let mut filled = 0;
    let mut cut = false;
    loop {
        let read = match rustix::io::read(&file, &mut buffer[filled..]) {
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e),
        };
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let mut start = 0;
        while let Some(length) = buffer[start..filled].iter().position(|&b| b == b'\n') {
            // The tail of a line that was cut is no line.
            if !core::mem::take(&mut cut) {
                f(&buffer[start..start + length]);
            }
            start += length + 1;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
        if filled == buffer.len() {
            if !core::mem::replace(&mut cut, true) {
                f(&buffer[..filled]);
            }
            filled = 0;
        }
    }
}

/// `55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0      [heap]`
pub(crate) fn parse(line: &[u8]) -> Option<Mapping<'_>> {
    let (start, rest) = number(line, 16)?;
    let (end, rest) = number(rest.strip_prefix(b"-")?, 16)?;
    let rest = rest.strip_prefix(b" ")?;
    let (access, rest) = rest.split_at_checked(4)?;
    let (_offset, rest) = number(rest.strip_prefix(b" ")?, 16)?;
    let device_length = rest.get(1..)?.iter().position(|&b| b == b' ')? + 1;
    let (inode, rest) = number(rest.get(device_length + 1..)?, 10)?;
    Some(Mapping {
        range: start as usize..end as usize,
        readable: access[0] == b'r',
        writable: access[1] == b'w',
        executable: access[2] == b'x',
        private: access[3] == b'p',
        inode,
        name: rest.trim_ascii(),
    })
}

/// A number at the start of the text, and what follows it.
pub fn number(text: &[u8], radix: u32) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|&&b| (b as char).is_digit(radix)).count();
    let (digits, rest) = text.split_at(digits);
    let value = core::str::from_utf8(digits).ok()?;
    Some((u64::from_str_radix(value, radix).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Reservation;

    #[test]
    fn one_mapping_is_asked_for() {
        let memory = Reservation::new(1 << 20).unwrap();
        memory.commit(0, 1 << 16).unwrap();
        let maps = match Maps::open() {
            Ok(maps) => maps,
            Err(Errno::NOTTY) => return eprintln!("skipped: Linux 6.11 can be asked"),
            Err(errno) => panic!("{errno}"),
        };
        let start = memory.as_ptr() as usize;
        let committed = maps.at(start + 5).unwrap().unwrap();
        assert!(committed.is_private_anonymous() && committed.writable && !committed.executable);
        assert!(committed.range.contains(&start) && committed.range.end == start + (1 << 16));
        assert!(!maps.at(start + (1 << 17)).unwrap().unwrap().writable);
        let code = maps.at(one_mapping_is_asked_for as *const () as usize).unwrap().unwrap();
        assert!(code.executable && code.inode != 0 && !code.is_private_anonymous());
        assert_eq!(maps.at(0), Ok(None));
    }

    #[test]
    fn mappings_that_become_one_meanwhile_are_seen_once() {
        let pages = 64;
        let memory = Reservation::new(pages * crate::PAGE_SIZE).unwrap();
        memory.commit(0, memory.len()).unwrap();
        let range = memory.as_ptr() as usize..memory.as_ptr() as usize + memory.len();
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The pages become mappings of their own, and then one again.
                let protect = |page: usize, access| {
                    let at = (range.start + page * crate::PAGE_SIZE) as *mut _;
                    // SAFETY: memory of our own that holds nothing.
                    unsafe { rustix::mm::mprotect(at, crate::PAGE_SIZE, access) }.unwrap();
                };
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    let readable = rustix::mm::MprotectFlags::READ;
                    (0..pages).step_by(2).for_each(|page| protect(page, readable));
                    let writable = readable | rustix::mm::MprotectFlags::WRITE;
                    (0..pages).step_by(2).for_each(|page| protect(page, writable));
                }
            });
            let deadline = std::time::Instant::now() + std::time::Duration::from_millis(500);
            let (mut wrong, mut walks, mut gaps) = (None, 0, 0);
            while std::time::Instant::now() < deadline && wrong.is_none() {
                let (mut buffer, mut at, mut has_gap) = ([0; 256], range.start, false);
                for_each(&mut buffer, |mapping| {
                    if mapping.range.end > range.start && mapping.range.start < range.end {
                        let start = mapping.range.start.max(range.start);
                        if start < at {
                            wrong = Some((at, mapping.range.clone()));
                        }
                        has_gap |= start > at;
                        at = mapping.range.end;
                    }
                })
                .unwrap();
                walks += 1;
                gaps += u32::from(has_gap);
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(wrong, None, "{range:x?}");
            // Linux 6.18, which reads without the lock of all mappings, has missed one once.
            assert!(gaps * 100 <= walks, "{gaps} gaps in {walks} walks");
        });
    }

    #[test]
    fn lines_of_every_kind() {
        let heap =
            parse(b"55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                  [heap]");
        let heap = heap.unwrap();
        assert_eq!(heap.range, 0x55d0c0000000..0x55d0c0021000);
        assert!(heap.readable && heap.writable && !heap.executable && heap.private);
        assert!(heap.is_private_anonymous());
        let file = parse(b"7f00-7f01 r-xp 00001000 fd:00 1234   /usr/lib/a b.so").unwrap();
        assert_eq!((file.inode, file.name), (1234, &b"/usr/lib/a b.so"[..]));
        assert!(!file.is_private_anonymous());
        assert!(parse(b"1000-2000 ---p 00000000 00:00 0 ").unwrap().is_private_anonymous());
        let shared = parse(b"1000-2000 rw-s 00000000 00:01 55 /dev/zero (deleted)").unwrap();
        assert!(!shared.is_private_anonymous());
        let stack = parse(b"7ffc0000-7ffc2000 rw-p 00000000 00:00 0    [stack]").unwrap();
        assert!(stack.is_private_anonymous() && stack.is_main_stack());
        for garbage in [&b""[..], b"x", b"1-2", b"1000-2000 rw", b"1000-2000 rw-p 0 00"] {
            assert_eq!(parse(garbage), None);
        }
    }

    #[test]
    fn flags_say_what_a_child_does_not_inherit() {
        let r = Reservation::new(4 * crate::PAGE_SIZE).unwrap();
        r.commit(0, 4 * crate::PAGE_SIZE).unwrap();
        // SAFETY: advice on memory of our own that holds nothing.
        let wiped = unsafe {
            let at = r.as_ptr().add(crate::PAGE_SIZE).cast();
            rustix::mm::madvise(at, crate::PAGE_SIZE, rustix::mm::Advice::LinuxWipeOnFork)
        };
        wiped.unwrap();
        let mut found = Vec::new();
        let mut buffer = [0; 512];
        for_each_with_usage(&mut buffer, |mapping, _, flags| {
            if mapping.range.start >= r.as_ptr() as usize
                && mapping.range.end <= r.as_ptr() as usize + r.len()
            {
                assert!(mapping.is_private_anonymous() && flags.has(*b"rd"));
                found.push(flags.has(*b"wf"));
            }
        })
        .unwrap();
        assert_eq!(found, [false, true, false]);
    }

    #[test]
    fn what_is_in_memory_is_the_processs_own() {
        let r = Reservation::new(16 * crate::PAGE_SIZE).unwrap();
        r.commit(0, 16 * crate::PAGE_SIZE).unwrap();
        r.populate(0, 5 * crate::PAGE_SIZE).unwrap();
        let (mut buffer, mut found) = ([0; 512], Vec::new());
        for_each_with_usage(&mut buffer, |mapping, usage, _| {
            if mapping.range.start == r.as_ptr() as usize {
                found.push(usage);
            }
        })
        .unwrap();
        let own_anonymous = 5 * crate::PAGE_SIZE as u64;
        assert_eq!(found, [Usage { own_anonymous, shared_anonymous: 0 }]);
    }

    #[test]
    fn amounts_are_told_apart() {
        let mut amounts = Amounts::default();
        for line in ["Rss: 100 kB", "Pss:   60 kB", "Pss_Dirty: 1 kB", "Private_Clean: 4 kB"] {
            amounts.note(line.as_bytes());
        }
        for line in ["Private_Dirty: 16 kB", "Anonymous:  96 kB", "SwapPss: 9 kB"] {
            amounts.note(line.as_bytes());
        }
        let expected = Usage { own_anonymous: 20 << 10, shared_anonymous: 40 << 10 };
        assert_eq!(amounts.usage(), expected);
    }

    #[test]
    fn finds_a_mapping_through_a_small_buffer() {
        let r = Reservation::new(4 * crate::PAGE_SIZE).unwrap();
        r.commit(0, 4 * crate::PAGE_SIZE).unwrap();
        let start = r.as_ptr() as usize;
        for size in [80, 200, 4096, 1 << 20] {
            let mut buffer = vec![0; size];
            let mut found = 0;
            for_each(&mut buffer, |m| found += usize::from(m.range.start == start && m.writable))
                .unwrap();
            assert_eq!(found, 1, "buffer of {size}");
        }
    }
}
