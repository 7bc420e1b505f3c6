//! User, groups and capabilities of a thread (credentials(7)), and taking on another thread's.
//!
//! In the kernel credentials belong to a thread. The C library changes them for all threads that it
//! knows of; a thread that it does not know has to change its own.

use core::ffi::CStr;

use crate::maps::number;
use crate::path::Path;
use crate::proc::read_file;
use crate::{Errno, raw};

/// Supplementary groups that are taken on; of more only the first are kept.
const GROUPS_MAX: usize = 256;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

const PR_CAPBSET_READ: usize = 23;
const PR_GET_SECUREBITS: usize = 27;
const PR_CAP_AMBIENT: usize = 47;
const PR_CAP_AMBIENT_IS_SET: usize = 1;
const SECBIT_NOROOT: isize = 1;

/// What `/proc/PID/task/TID/status` says of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Real, effective and saved.
    users: [u32; 3],
    groups: [u32; 3],
    supplementary: [u32; GROUPS_MAX],
    supplementary_count: usize,
    capabilities: Capabilities,
}

/// Bits by the numbers of capabilities(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Capabilities {
    inheritable: u64,
    permitted: u64,
    effective: u64,
}

impl Capabilities {
    /// What is in both.
    fn limited_to(self, other: Self) -> Self {
        Capabilities {
            inheritable: self.inheritable & other.inheritable,
            permitted: self.permitted & other.permitted,
            effective: self.effective & other.effective,
        }
    }
}

impl Credentials {
    /// Those of the first thread of a process.
    ///
    /// # Errors
    /// What open(2) and read(2) say of `/proc/PID/status`; `EPROTO` when a line is missing there.
    pub fn of_process(pid: u32) -> Result<Self, Errno> {
        Self::read(Path::new(format_args!("/proc/{pid}/status"))?.as_c_str())
    }

    /// Those of the calling thread.
    ///
    /// # Errors
    /// As [`Credentials::of_process`], of `/proc/thread-self/status`.
    pub(crate) fn of_this_thread() -> Result<Self, Errno> {
        Self::read(c"/proc/thread-self/status")
    }

    fn read(path: &CStr) -> Result<Self, Errno> {
        let mut text = [0; 8192];
        let length = read_file(path, &mut text)?;
        let text = &text[..length];
        let mut supplementary = [0; GROUPS_MAX];
        let mut supplementary_count = 0;
        for (place, group) in supplementary.iter_mut().zip(numbers(line(text, b"Groups:")?, 10)) {
            *place = group as u32;
            supplementary_count += 1;
        }
        let mask = |name| numbers(line(text, name)?, 16).next().ok_or(Errno::PROTO);
        Ok(Credentials {
            users: three(line(text, b"Uid:")?)?,
            groups: three(line(text, b"Gid:")?)?,
            supplementary,
            supplementary_count,
            capabilities: Capabilities {
                inheritable: mask(b"CapInh:")?,
                permitted: mask(b"CapPrm:")?,
                effective: mask(b"CapEff:")?,
            },
        })
    }

    /// Gives the calling thread these credentials, as far as it may. Capabilities are only given
    /// up, never added.
    ///
    /// # Errors
    /// `EPERM` when the thread has another user or other groups afterwards, or more capabilities.
    pub fn take_on(&self) -> Result<(), Errno> {
        let own = Self::of_this_thread()?;
        // Groups first: without its user's privileges a thread cannot change them any more. A
        // refusal shows at the end.
        if own.supplementary() != self.supplementary() {
            let groups = self.supplementary();
            // SAFETY: as many groups as is said.
            unsafe { raw::syscall2(raw::nr::SETGROUPS, groups.len(), groups.as_ptr() as usize) };
        }
        set_three(raw::nr::SETRESGID, own.groups, self.groups);
        set_three(raw::nr::SETRESUID, own.users, self.users);
        let capabilities = Self::of_this_thread()?.capabilities;
        let kept = capabilities.limited_to(self.capabilities);
        if kept != capabilities {
            set_capabilities(kept)?;
        }
        let own = Self::of_this_thread()?;
        let same = own.users == self.users
            && own.groups == self.groups
            && own.supplementary() == self.supplementary()
            && own.capabilities == own.capabilities.limited_to(self.capabilities);
        if same { Ok(()) } else { Err(Errno::PERM) }
    }

    /// The number that [`digest_of_this_thread`] returns for a thread with these credentials.
    pub fn digest(&self) -> u64 {
        let Capabilities { permitted, effective, .. } = self.capabilities;
        digest(self.users[1], permitted, effective)
    }

    fn supplementary(&self) -> &[u32] {
        &self.supplementary[..self.supplementary_count]
    }
}

/// A number that changes when the thread's effective user or capabilities change; never zero. It
/// takes far less time than to read all of the credentials.
pub fn digest_of_this_thread() -> u64 {
    let Capabilities { permitted, effective, .. } = capabilities_of_this_thread();
    digest(rustix::process::geteuid().as_raw(), permitted, effective)
}

fn capabilities_of_this_thread() -> Capabilities {
    let header = [CAPABILITY_VERSION_3, 0];
    let mut data = [[0u32; 3]; 2];
    // SAFETY: version and this thread, and the two structures that version has.
    unsafe {
        let place = data.as_mut_ptr() as usize;
        raw::syscall2(raw::nr::CAPGET, header.as_ptr() as usize, place)
    };
    let [low, high] = data;
    let mask = |place: usize| u64::from(low[place]) | u64::from(high[place]) << 32;
    Capabilities { inheritable: mask(2), permitted: mask(1), effective: mask(0) }
}

/// Whether a program that the calling thread executes has fewer capabilities than the thread: by
/// the kernel's rule for files without capabilities of their own (capabilities(7)).
pub fn loses_by_execution() -> bool {
    let Capabilities { inheritable, permitted, .. } = capabilities_of_this_thread();
    let is_root = rustix::process::geteuid().is_root() || rustix::process::getuid().is_root();
    // SAFETY: these take no pointers.
    let ask = |what, of| unsafe { raw::syscall5(raw::nr::PRCTL, what, of, 0, 0, 0) };
    let gains_as_root = is_root && ask(PR_GET_SECUREBITS, 0) & SECBIT_NOROOT == 0;
    let keeps = |number: u32| {
        let capability = number as usize;
        if gains_as_root {
            inheritable & 1 << number != 0 || ask(PR_CAPBSET_READ, capability) == 1
        } else {
            // SAFETY: as above.
            let ambient = unsafe {
                let what = PR_CAP_AMBIENT_IS_SET;
                raw::syscall5(raw::nr::PRCTL, PR_CAP_AMBIENT, what, capability, 0, 0)
            };
            ambient == 1
        }
    };
    !(0..u64::BITS).filter(|number| permitted & 1 << number != 0).all(keeps)
}

fn digest(user: u32, permitted: u64, effective: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = [user.into(), permitted, effective]
        .into_iter()
        .fold(1u64, |sum, part| (sum ^ part).wrapping_mul(ODD).rotate_left(29));
    mixed | 1
}

fn line<'a>(text: &'a [u8], name: &[u8]) -> Result<&'a [u8], Errno> {
    text.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(name)).ok_or(Errno::PROTO)
}

fn numbers(text: &[u8], base: u32) -> impl Iterator<Item = u64> {
    text.split(|b| b.is_ascii_whitespace())
        .filter_map(move |word| number(word, base).map(|(value, _)| value))
}

fn three(text: &[u8]) -> Result<[u32; 3], Errno> {
    let mut numbers = numbers(text, 10);
    let mut next = || numbers.next().map(|id| id as u32).ok_or(Errno::PROTO);
    Ok([next()?, next()?, next()?])
}

fn set_three(call: usize, own: [u32; 3], wanted: [u32; 3]) {
    if own != wanted {
        let [real, effective, saved] = wanted.map(|id| id as usize);
        // SAFETY: takes no pointers.
        unsafe { raw::syscall5(call, real, effective, saved, 0, 0) };
    }
}

fn set_capabilities(wanted: Capabilities) -> Result<(), Errno> {
    let header = [CAPABILITY_VERSION_3, 0];
    let low = |bits: u64| bits as u32;
    let high = |bits: u64| (bits >> 32) as u32;
    let Capabilities { inheritable, permitted, effective } = wanted;
    let data = [
        [low(effective), low(permitted), low(inheritable)],
        [high(effective), high(permitted), high(inheritable)],
    ];
    // SAFETY: version and this thread, and the two structures that version has.
    raw::check(unsafe {
        raw::syscall2(raw::nr::CAPSET, header.as_ptr() as usize, data.as_ptr() as usize)
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_status_file_says_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status");
        let text = "Name:\tUid:\nUmask:\t0022\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n\
                    Groups:\t24 30 \nCapInh:\t0000000000000001\nCapPrm:\t000001ffffffffff\n\
                    CapEff:\t00000000a80425fb\n";
        std::fs::write(&path, text).unwrap();
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let credentials = Credentials::read(&path).unwrap();
        assert_eq!(credentials.users, [1, 2, 3]);
        assert_eq!(credentials.groups, [5, 6, 7]);
        assert_eq!(credentials.supplementary(), [24, 30]);
        assert_eq!(credentials.capabilities.permitted, 0x1ff_ffff_ffff);
        assert_eq!(credentials.capabilities.effective, 0xa804_25fb);
        std::fs::write(path.to_str().unwrap(), "Uid:\t1\t2\n").unwrap();
        assert_eq!(Credentials::read(&path), Err(Errno::PROTO));
    }

    #[test]
    fn a_thread_takes_on_what_the_first_is() {
        let first = Credentials::of_process(std::process::id()).unwrap();
        // A thread's credentials are its own when they are set by bare system calls.
        std::thread::spawn(move || {
            let before = Credentials::of_this_thread().unwrap();
            assert_eq!(before.digest(), digest_of_this_thread());
            assert_eq!(before, first);
            first.take_on().unwrap();
            assert_eq!(Credentials::of_this_thread().unwrap(), before);
            let mut nobody = first.clone();
            nobody.users = [65534; 3];
            nobody.groups = [65534; 3];
            nobody.supplementary_count = 0;
            nobody.capabilities = Capabilities::default();
            // Root becomes nobody, and never comes back; anybody else cannot.
            if first.users == [0; 3] {
                nobody.take_on().unwrap();
                assert_eq!(nobody.digest(), digest_of_this_thread());
                assert_ne!(nobody.digest(), before.digest());
                assert_eq!(Credentials::of_this_thread().unwrap().users, [65534; 3]);
                assert_eq!(Credentials::of_this_thread().unwrap().capabilities.permitted, 0);
                assert_eq!(first.take_on(), Err(Errno::PERM));
            } else if first.users != [65534; 3] {
                assert_eq!(nobody.take_on(), Err(Errno::PERM));
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_an_execution_takes_away_is_known() {
        const PR_CAPBSET_DROP: usize = 24;
        const CAP_WAKE_ALARM: usize = 35;
        std::thread::spawn(|| {
            let own = Credentials::of_this_thread().unwrap();
            let before = loses_by_execution();
            // SAFETY: takes no pointers, and is the thread's own.
            let result =
                unsafe { raw::syscall5(raw::nr::PRCTL, PR_CAPBSET_DROP, CAP_WAKE_ALARM, 0, 0, 0) };
            let has_it = own.capabilities.permitted & 1 << CAP_WAKE_ALARM != 0;
            if own.users == [0; 3] && result == 0 && has_it && !before {
                assert!(loses_by_execution());
            } else {
                eprintln!("not root, or without its capabilities: not checked");
            }
            set_capabilities(Capabilities::default()).unwrap();
            assert!(!loses_by_execution());
        })
        .join()
        .unwrap();
    }
}
