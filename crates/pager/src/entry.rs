//! Where the program's loader meets the agent: the constructor of the preloaded library, and what
//! it needs from the C library, found without depending on one.

use core::ops::Range;

/// Addresses of this library. What it keeps in its writable parts must stay in memory.
#[cfg(not(feature = "preload"))]
pub fn library_range() -> Range<usize> {
    0..0
}

/// Where libc keeps the area that the kernel writes the processor's number to (rseq(2)), from the
/// thread pointer.
#[cfg(not(feature = "preload"))]
pub fn rseq_offset() -> isize {
    0
}

#[cfg(all(feature = "preload", target_arch = "x86_64"))]
pub use preload::set_errno;
#[cfg(feature = "preload")]
pub use preload::{library_range, rseq_offset};

#[cfg(feature = "preload")]
mod preload {
    use core::ffi::{CStr, c_char};
    use core::ops::Range;
    use core::ptr;
    use core::sync::atomic::Ordering;

    use ramfold_sys::path::Path;
    use ramfold_sys::{Errno, PAGE_SIZE, maps, proc};
    use rustix::fs::{Mode, OFlags};
    use rustix::mm::{MapFlags, ProtFlags, mmap};

    use crate::agent::Agent;
    use crate::fork::{after_fork_in_child, after_fork_in_parent, before_fork};
    use crate::session::{Once, SEALS, SESSION_MAGIC, SESSION_VARIABLE, Session};

    unsafe extern "C" {
        // Set by the linker: the first and the last byte of this library in memory.
        static __ehdr_start: u8;
        static _end: u8;
    }

    pub fn library_range() -> Range<usize> {
        let start = (&raw const __ehdr_start) as usize;
        let end = (&raw const _end) as usize;
        start..end.next_multiple_of(PAGE_SIZE)
    }

    pub fn rseq_offset() -> isize {
        // SAFETY: where there is such a symbol it is a constant of that type (glibc 2.35).
        unsafe { symbol_rseq_offset().as_ref() }.copied().unwrap_or(0)
    }

    /// Tells the program why a call failed.
    #[cfg(target_arch = "x86_64")]
    pub fn set_errno(errno: i32) {
        let location = symbol_errno_location();
        if !location.is_null() {
            // SAFETY: the C library's function of that name, which takes nothing.
            let location: extern "C" fn() -> *mut i32 = unsafe { core::mem::transmute(location) };
            // SAFETY: it returns the thread's own errno.
            unsafe { location().write(errno) };
        }
    }

    #[used]
    #[unsafe(link_section = ".init_array")]
    static START: extern "C" fn() = start;

    /// Runs when the library is loaded, before the program's `main`.
    extern "C" fn start() {
        let Some(variable) = environment(SESSION_VARIABLE) else { return };
        // Without its session an agent has no cap to hold and nobody to tell: the program runs
        // as it would without ramfold.
        let Ok(session) = open_session(variable) else { return };
        // Below the cap nothing is to be other than without ramfold.
        if session.huge_pages_off.load(Ordering::Relaxed) == 1 {
            let _ = ramfold_sys::thread::set_huge_pages_off(false);
        }
        let pid = proc::own_pid();
        let Some(process) = session.claim_or_say(pid) else { return };
        if !follow_forks() {
            session.say(
                Once::Other,
                format_args!(
                    "runs without ramfold: this C library has no pthread_atfork (glibc has)"
                ),
            );
            return;
        }
        if let Err(errno) = Agent::start(session, process) {
            process.pid.store(u32::MAX, Ordering::Release);
            session.say(
                Once::NoAddressSpace,
                format_args!("pid {pid} runs without ramfold: cannot start the agent: {errno}"),
            );
        }
    }

    /// Maps the session that `PID:FD:KEY` names.
    fn open_session(variable: &CStr) -> Result<&'static Session, Errno> {
        let mut parts = variable.to_str().map_err(|_| Errno::INVAL)?.split(':');
        let mut next = || parts.next().ok_or(Errno::INVAL);
        let (pid, fd, key) = (next()?, next()?, next()?);
        let key = u64::from_str_radix(key, 16).ok();
        let path = Path::new(format_args!("/proc/{pid}/fd/{fd}"))?;
        let file =
            rustix::fs::open(path.as_c_str(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SEALS);
        if !sealed || rustix::fs::fstat(&file)?.st_size as usize != size_of::<Session>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: a fresh mapping at a place of the kernel's choice, never removed.
        let session = unsafe {
            let address = mmap(
                ptr::null_mut(),
                size_of::<Session>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?;
            &*address.cast::<Session>()
        };
        if session.magic.load(Ordering::Acquire) != SESSION_MAGIC
            || key != Some(session.key.load(Ordering::Relaxed))
        {
            return Err(Errno::PROTO);
        }
        Ok(session)
    }

    /// The value of an environment variable.
    fn environment(name: &str) -> Option<&'static CStr> {
        let environ = symbol_environ();
        // SAFETY: `environ`, where there is one, points to a list of strings that ends with null.
        let mut entries = unsafe { environ.as_ref()?.as_ref()? as *const *const c_char };
        loop {
            // SAFETY: not past the null that ends the list.
            let entry = unsafe { *entries };
            if entry.is_null() {
                return None;
            }
            // SAFETY: a string of the environment.
            let text = unsafe { CStr::from_ptr(entry) };
            let value = text.to_bytes_with_nul().strip_prefix(name.as_bytes());
            if let Some(value) = value.and_then(|rest| rest.strip_prefix(b"=")) {
                return CStr::from_bytes_with_nul(value).ok();
            }
            // SAFETY: as above.
            entries = unsafe { entries.add(1) };
        }
    }

    type Callback = extern "C" fn();

    /// Asks the C library to tell of forks. `false` when it cannot.
    fn follow_forks() -> bool {
        let register = symbol_register_atfork();
        if !register.is_null() {
            // SAFETY: glibc's function, which is what pthread_atfork calls. The last argument
            // names the library whose unloading would take the callbacks away; this one stays.
            let register: extern "C" fn(Callback, Callback, Callback, *const u8) -> i32 =
                unsafe { core::mem::transmute(register) };
            return register(before_fork, after_fork_in_parent, after_fork_in_child, ptr::null())
                == 0;
        }
        let atfork = symbol_pthread_atfork();
        if !atfork.is_null() {
            // SAFETY: the function of that name in POSIX.
            let atfork: extern "C" fn(Callback, Callback, Callback) -> i32 =
                unsafe { core::mem::transmute(atfork) };
            return atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
        }
        false
    }

    /// A function that returns the address of a symbol the C library may have, or null.
    macro_rules! weak_symbol {
        ($function:ident, $symbol:literal, $type:ty) => {
            fn $function() -> *const $type {
                let address: usize;
                #[cfg(target_arch = "x86_64")]
                // SAFETY: reads an entry of the library's own table, which the loader filled.
                unsafe {
                    core::arch::asm!(
                        concat!(".weak ", $symbol),
                        concat!("mov {}, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                        out(reg) address,
                        options(nostack, preserves_flags)
                    );
                }
                #[cfg(target_arch = "aarch64")]
                // SAFETY: as above.
                unsafe {
                    core::arch::asm!(
                        concat!(".weak ", $symbol),
                        concat!("adrp {0}, :got:", $symbol),
                        concat!("ldr {0}, [{0}, :got_lo12:", $symbol, "]"),
                        out(reg) address,
                        options(nostack, preserves_flags)
                    );
                }
                address as *const $type
            }
        };
    }

    weak_symbol!(symbol_environ, "environ", *const *const c_char);
    weak_symbol!(symbol_rseq_offset, "__rseq_offset", isize);
    #[cfg(target_arch = "x86_64")]
    weak_symbol!(symbol_errno_location, "__errno_location", u8);
    weak_symbol!(symbol_register_atfork, "__register_atfork", u8);
    weak_symbol!(symbol_pthread_atfork, "pthread_atfork", u8);

    #[panic_handler]
    fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
        match Agent::get() {
            Some(agent) => agent.fail(format_args!("{info}")),
            None => ramfold_sys::raw::exit_group(125),
        }
    }
}
