//! What the agent needs of the C library, found in its own tables: see [`ramfold_sys::loaded`].

use core::ffi::{CStr, c_char};
use core::ops::Range;

use ramfold_sys::loaded::{self, Object};

type Callback = extern "C" fn();

/// The C library of this process.
pub(crate) struct CLibrary(Object);

impl CLibrary {
    /// `None` in a program without one that is known.
    pub(crate) fn find() -> Option<CLibrary> {
        let known = |name: &CStr| {
            let name = name.to_bytes();
            name.starts_with(b"libc.so") || name.starts_with(b"libc.musl")
        };
        // SAFETY: called by the constructor: the loader waits for it to return.
        let mut objects = unsafe { loaded::objects() }.ok()?;
        objects.find(|object| object.soname().is_some_and(known)).map(CLibrary)
    }

    /// Where a function of it is.
    pub(crate) fn function(&self, name: &CStr) -> Option<Range<usize>> {
        self.0.symbol(name)
    }

    /// The program's environment, where the library passes none to constructors (musl).
    pub(crate) fn environment(&self) -> Option<*const *const c_char> {
        let is_glibc = self.function(c"gnu_get_libc_version").is_some();
        let variable = self.function(c"environ").filter(|_| !is_glibc)?;
        // SAFETY: a variable of that type.
        Some(unsafe { (variable.start as *const *const *const c_char).read() })
    }

    /// Asks to be told of forks. `false` where it cannot be asked.
    pub(crate) fn follow_forks(
        &self,
        before: Callback,
        in_parent: Callback,
        in_child: Callback,
    ) -> bool {
        if let Some(register) = self.function(c"__register_atfork") {
            // SAFETY: glibc's function, which is what pthread_atfork calls. The last argument
            // names the library whose unloading would take the callbacks away; this one stays.
            let register: extern "C" fn(Callback, Callback, Callback, *const u8) -> i32 =
                unsafe { core::mem::transmute(register.start) };
            return register(before, in_parent, in_child, core::ptr::null()) == 0;
        }
        if let Some(atfork) = self.function(c"pthread_atfork") {
            // SAFETY: the function of that name in POSIX.
            let atfork: extern "C" fn(Callback, Callback, Callback) -> i32 =
                unsafe { core::mem::transmute(atfork.start) };
            return atfork(before, in_parent, in_child) == 0;
        }
        false
    }
}

/// Where libc keeps the area that the kernel writes the processor's number to (rseq(2)), from the
/// thread pointer; zero where it does not say.
pub(super) fn find_rseq_offset() -> isize {
    // SAFETY: as in `find`.
    let Ok(mut objects) = (unsafe { loaded::objects() }) else { return 0 };
    let found = objects.find_map(|object| object.symbol(c"__rseq_offset"));
    // SAFETY: where there is such a symbol it is a constant of that type (glibc 2.35).
    found.map_or(0, |address| unsafe { (address.start as *const isize).read() })
}
