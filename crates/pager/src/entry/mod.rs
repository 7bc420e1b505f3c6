//! Where the program's loader meets the agent: the constructor of the preloaded library, and what
//! it needs from the C library, found without depending on one.

#[cfg(not(feature = "preload"))]
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

#[cfg(feature = "preload")]
mod builtins;
#[cfg(feature = "preload")]
mod c_library;

#[cfg(feature = "preload")]
pub use c_library::CLibrary;
#[cfg(feature = "preload")]
pub use preload::{library_range, rseq_offset};

#[cfg(feature = "preload")]
mod preload {
    use core::ffi::{CStr, c_char};
    use core::ops::Range;
    use core::ptr;
    use core::sync::atomic::{AtomicIsize, Ordering};
    use core::time::Duration;

    use ramfold_sys::path::Path;
    use ramfold_sys::{Errno, PAGE_SIZE, proc, process};
    use rustix::fs::{Mode, OFlags};
    use rustix::mm::{MapFlags, ProtFlags, mmap};

    use super::c_library::{CLibrary, find_rseq_offset};
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

    /// How long a program waits for the memory to go of the one that executed it.
    const AGENT_BEFORE: Duration = Duration::from_secs(1);

    static RSEQ_OFFSET: AtomicIsize = AtomicIsize::new(0);

    pub fn rseq_offset() -> isize {
        RSEQ_OFFSET.load(Ordering::Relaxed)
    }

    /// A list of strings that ends with null: an environment.
    type Strings = *const *const c_char;

    #[used]
    #[unsafe(link_section = ".init_array")]
    static START: extern "C" fn(i32, Strings, Strings) = start;

    /// Runs when the library is loaded, before the program's `main`.
    extern "C" fn start(_argc: i32, _argv: Strings, environment: Strings) {
        let Some(library) = CLibrary::find() else { return };
        // Only glibc passes it.
        let environment = library.environment().unwrap_or(environment);
        // SAFETY: the environment of the program.
        let Some(variable) = (unsafe { value_of(environment, SESSION_VARIABLE) }) else { return };
        // Without its session an agent has no cap to hold and nobody to tell: the program runs
        // as it would without ramfold.
        let Ok(session) = open_session(variable) else { return };
        // Below the cap nothing is to be other than without ramfold.
        if session.huge_pages_off.load(Ordering::Relaxed) == 1 {
            let _ = ramfold_sys::thread::set_huge_pages_off(false);
        }
        let pid = proc::own_pid();
        if let Some(agent) = session.agent_of(pid) {
            process::wait_for_end(agent, AGENT_BEFORE);
        }
        let Some(process) = session.claim_or_say(pid) else { return };
        RSEQ_OFFSET.store(find_rseq_offset(), Ordering::Relaxed);
        if !library.follow_forks(before_fork, after_fork_in_parent, after_fork_in_child) {
            session.say(
                Once::Other,
                format_args!(
                    "runs without ramfold: this C library has no pthread_atfork (glibc has)"
                ),
            );
            return;
        }
        #[cfg(target_arch = "x86_64")]
        let announces = crate::calls::divert(&library);
        #[cfg(not(target_arch = "x86_64"))]
        let announces = false;
        if let Err(errno) = Agent::start(session, process, announces) {
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

    /// The value of a variable.
    ///
    /// # Safety
    /// It must be an environment, whose strings stay.
    unsafe fn value_of(environment: Strings, name: &str) -> Option<&'static CStr> {
        let mut entry = environment;
        loop {
            // SAFETY: not past the null that ends the list.
            let text = unsafe { entry.as_ref()?.as_ref() }?;
            // SAFETY: a string of the environment.
            let text = unsafe { CStr::from_ptr(text) };
            let value = text.to_bytes_with_nul().strip_prefix(name.as_bytes());
            if let Some(value) = value.and_then(|rest| rest.strip_prefix(b"=")) {
                return CStr::from_bytes_with_nul(value).ok();
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
    }

    #[panic_handler]
    fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
        match Agent::get() {
            Some(agent) => agent.fail(format_args!("{info}")),
            None => ramfold_sys::raw::exit_group(125),
        }
    }
}
