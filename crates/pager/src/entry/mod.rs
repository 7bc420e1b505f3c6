//! Where the program's loader meets the agent: the constructor of the preloaded library, and what
//! it needs from the C library, found without depending on one.

#[cfg(not(feature = "preload"))]
use core::ops::Range;

/// Addresses of this library. What it keeps in its writable parts must stay in memory.
#[cfg(not(feature = "preload"))]
pub(crate) fn library_range() -> Range<usize> {
    0..0
}

/// Where libc keeps the area that the kernel writes the processor's number to (rseq(2)), from the
/// thread pointer.
#[cfg(not(feature = "preload"))]
pub(crate) fn rseq_offset() -> isize {
    0
}

#[cfg(feature = "preload")]
mod builtins;
#[cfg(feature = "preload")]
mod c_library;
#[cfg(any(test, feature = "preload"))]
pub(crate) mod environment;
pub(crate) mod session_place;

#[cfg(all(feature = "preload", target_arch = "x86_64"))]
pub(crate) use c_library::CLibrary;
#[cfg(feature = "preload")]
pub(crate) use preload::library_range;
#[cfg(all(feature = "preload", target_arch = "x86_64"))]
pub(crate) use preload::rseq_offset;

#[cfg(feature = "preload")]
mod preload {
    use core::ops::Range;
    use core::sync::atomic::{AtomicIsize, Ordering};
    use core::time::Duration;

    use ramfold_sys::{Errno, PAGE_SIZE, proc, process};
    use rustix::fd::OwnedFd;

    use super::c_library::{CLibrary, find_rseq_offset};
    #[cfg(target_arch = "x86_64")]
    use super::environment::restore;
    use super::environment::{PRELOAD_VARIABLE, Strings, strings, value_of};
    use super::session_place::SessionPlace;
    use crate::agent::Agent;
    use crate::fork::{after_fork_in_child, after_fork_in_parent, before_fork};
    use crate::session::{Once, SEALS, SESSION_MAGIC, SESSION_VARIABLE, Session};

    unsafe extern "C" {
        // Set by the linker: the first and the last byte of this library in memory.
        static __ehdr_start: u8;
        static _end: u8;
    }

    pub(crate) fn library_range() -> Range<usize> {
        let start = (&raw const __ehdr_start) as usize;
        let end = (&raw const _end) as usize;
        start..end.next_multiple_of(PAGE_SIZE)
    }

    /// How long a program waits for the memory to go of the one that executed it.
    const AGENT_BEFORE: Duration = Duration::from_secs(1);

    /// In the names of valgrind's own preloaded libraries.
    const VALGRIND: &[u8] = b"/vgpreload_";

    static RSEQ_OFFSET: AtomicIsize = AtomicIsize::new(0);

    pub(crate) fn rseq_offset() -> isize {
        RSEQ_OFFSET.load(Ordering::Relaxed)
    }

    #[used]
    #[unsafe(link_section = ".init_array")]
    static START: extern "C" fn(i32, Strings, Strings) = start;

    /// Runs when the library is loaded, before the program's `main`.
    extern "C" fn start(_argc: i32, _argv: Strings, environment: Strings) {
        let Some(library) = CLibrary::find() else { return };
        // Only glibc passes it.
        let environment = library.environment().unwrap_or(environment);
        let variable = strings(environment).find_map(|text| value_of(text, SESSION_VARIABLE));
        let Some(place) = variable.and_then(SessionPlace::parse) else { return };
        // SAFETY: as the kernel made it, and the program has not begun.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            restore(environment)
        };
        // Without its session an agent has no cap to hold and nobody to tell: the program runs
        // as it would without ramfold.
        let Ok((session, file)) = map_session(&place) else { return };
        // Below the cap nothing is to be other than without ramfold.
        if session.huge_pages_off.load(Ordering::Relaxed) == 1 {
            let _ = ramfold_sys::thread::set_huge_pages_off(false);
        }
        // It runs the program on a processor of its own making, which knows neither how a process
        // is made that shares memory, nor userfaultfd.
        let is_checked = strings(environment)
            .filter_map(|text| value_of(text, PRELOAD_VARIABLE))
            .any(|list| list.windows(VALGRIND.len()).any(|part| part == VALGRIND));
        if is_checked {
            let text = format_args!("what valgrind checks runs without ramfold");
            return session.say(Once::NotAlong, text);
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
        // SAFETY: the loader waits for this constructor.
        let library_path = unsafe { ramfold_sys::loaded::objects() }
            .ok()
            .and_then(|mut objects| objects.find(|object| object.base() == library_range().start))
            .map_or(c"", |own| own.name());
        if let Err(errno) = Agent::start(session, process, announces, &place, file, library_path) {
            process.pid.store(u32::MAX, Ordering::Release);
            session.say(
                Once::NoAddressSpace,
                format_args!("pid {pid} runs without ramfold: cannot start the agent: {errno}"),
            );
        }
    }

    /// Maps the session that is found at this place.
    fn map_session(place: &SessionPlace) -> Result<(&'static Session, OwnedFd), Errno> {
        let file = place.open()?;
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SEALS);
        if !sealed || rustix::fs::fstat(&file)?.st_size as usize != size_of::<Session>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: as long as a session, sealed so, and the mapping is never removed.
        let session = unsafe { Session::map(&file)?.as_ref() };
        if session.magic.load(Ordering::Acquire) != SESSION_MAGIC
            || place.key != session.key.load(Ordering::Relaxed)
        {
            return Err(Errno::PROTO);
        }
        Ok((session, file))
    }

    #[panic_handler]
    fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
        match Agent::get() {
            Some(agent) => agent.fail(format_args!("{info}")),
            None => ramfold_sys::raw::exit_group(125),
        }
    }
}
