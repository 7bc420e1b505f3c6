//! The agent comes along when the program executes another, whatever environment it gives that.
//!
//! What leads to the agent is added where it is missing, and taken out again when the agent has
//! started there (`crate::entry`): so the new program finds the environment that it was given. The
//! session's variable says what was added.
//!
//! Everything here is safe in a child of vfork, which has its parent's memory.

use core::ffi::{CStr, c_char};
use core::ptr;

use ramfold_sys::executable::{self, Executable};
use ramfold_sys::raw;
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::fd::BorrowedFd;
use rustix::fs::{Access, AtFlags, CWD, access};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{Answer, Call};
use crate::agent::Agent;
use crate::entry::environment::{Changes, Strings, strings};
use crate::session::Once;

/// As many variables, and bytes of those that are added, fit on the stack.
const VARIABLES_USUAL: usize = 512;
const TEXT_BYTES: usize = 2048;

pub fn on_execve(call: &Call) -> Answer {
    let [path, _, environment, ..] = call.arguments;
    along(call, path, environment, 2, |path| executable::look(CWD, path, AtFlags::empty()))
}

pub fn on_execveat(call: &Call) -> Answer {
    let [folder, path, _, environment, flags, _] = call.arguments;
    let flags = AtFlags::from_bits_retain(flags as u32);
    along(call, path, environment, 3, |path| {
        let folder = folder as i32;
        if folder < 0 {
            return executable::look(CWD, path, flags);
        }
        // SAFETY: it is only passed on to the kernel, which says whether it is open.
        executable::look(unsafe { BorrowedFd::borrow_raw(folder) }, path, flags)
    })
}

/// Makes the call with an environment that leads to the agent. `place`: of the environment among the
/// arguments.
fn along(
    call: &Call,
    path: usize,
    environment: usize,
    place: usize,
    look: impl Fn(&CStr) -> Result<Executable, Errno>,
) -> Answer {
    let Some(agent) = Agent::get() else { return Answer::AS_IT_IS };
    let Some(library) = agent.library() else { return Answer::AS_IT_IS };
    // What cannot be read the kernel refuses.
    if !raw::is_readable(path & !7) || environment != 0 && !raw::is_readable(environment) {
        return Answer::AS_IT_IS;
    }
    // SAFETY: a path of the program's.
    let path = unsafe { CStr::from_ptr(path as *const c_char) };
    let Ok(executable) = look(path) else { return Answer::AS_IT_IS };
    if let Some(reason) = executable.reason() {
        say(agent, path, reason);
        return Answer::AS_IT_IS;
    }
    if access(library, Access::READ_OK).is_err() {
        say(agent, path, "ramfold's library cannot be seen where it runs");
        return Answer::AS_IT_IS;
    }
    // The descriptor is closed when this returns: the program was not executed.
    let (session, _handed_down) = match agent.session_for_execution() {
        Ok(found) => found,
        Err(errno) => {
            say(
                agent,
                path,
                match errno {
                    Errno::ACCESS | Errno::PERM => {
                        "it is another user's, or in another user namespace, and may not open ramfold's session"
                    }
                    _ => "it runs where neither ramfold nor its agent can be seen in /proc",
                },
            );
            return Answer::AS_IT_IS;
        }
    };
    let environment = environment as Strings;
    let mut text = [0; TEXT_BYTES];
    let Some(changes) = Changes::new(
        &session,
        library,
        strings(environment),
        executable.first_library(),
        &mut text,
    ) else {
        return Answer::AS_IT_IS;
    };
    let count = strings(environment).count() + Changes::MORE + 1;
    let mut usual = [ptr::null::<c_char>(); VARIABLES_USUAL];
    let mut more = None;
    let list = if count <= VARIABLES_USUAL {
        &mut usual[..]
    } else {
        match Pointers::new(count) {
            Some(pointers) => more.insert(pointers).as_slice(),
            None => return Answer::AS_IT_IS,
        }
    };
    changes.apply(strings(environment), list);
    let mut arguments = call.arguments;
    arguments[place] = list.as_ptr() as usize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the program asked for this call; the list is one of strings, and ends with null.
    let result = unsafe { raw::syscall6(call.number, a, b, c, d, e, f) };
    Answer::made(result)
}

fn say(agent: &Agent, path: &CStr, why: &str) {
    let name = path.to_bytes();
    let name = core::str::from_utf8(&name[..name.len().min(200)]).unwrap_or("(a program)");
    agent.session().say(
        Once::NotAlong,
        format_args!("{name} runs without ramfold: {why} (said of the first such program only)"),
    );
}

/// A list too long for the stack. What execves with it never frees it: so it is a mapping.
struct Pointers {
    start: *mut *const c_char,
    count: usize,
}

impl Pointers {
    fn new(count: usize) -> Option<Pointers> {
        let bytes = (count * size_of::<usize>()).next_multiple_of(PAGE_SIZE);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory at a place of the kernel's choice.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }.ok()?;
        Some(Pointers { start: start.cast(), count })
    }

    fn as_slice(&mut self) -> &mut [*const c_char] {
        // SAFETY: zeroed memory of that length, which is its own.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.count) }
    }
}

impl Drop for Pointers {
    fn drop(&mut self) {
        let bytes = (self.count * size_of::<usize>()).next_multiple_of(PAGE_SIZE);
        // SAFETY: its own, and no slice of it is left.
        let _ = unsafe { munmap(self.start.cast(), bytes) };
    }
}
