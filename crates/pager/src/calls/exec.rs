//! The agent comes along when the program executes another, whatever environment it gives that.
//!
//! What leads to the agent is added where it is missing, and taken out again when the agent has
//! started there (`crate::entry`): so the new program finds the environment that it was given. The
//! session's variable says what was added.
//!
//! Everything here is safe in a child of vfork, which has its parent's memory, and in a handler of
//! signals on a small stack. Of what the program passes only that is read which can be: for the
//! rest the kernel has an answer.

use core::ffi::{CStr, c_char};

use ramfold_sys::careful::CarefulReader;
use ramfold_sys::executable::{self, Executable, SanitizerName, WORK_BYTES, Work};
use ramfold_sys::scratch::Taker;
use ramfold_sys::{Errno, PAGE_SIZE, proc, raw};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Access, AtFlags, CWD, access, accessat};
use rustix::process::{Resource, getegid, geteuid, getgid, getrlimit, getuid};

use super::{Answer, Call, SCRATCHES};
use crate::agent::Agent;
use crate::entry::environment::{Changes, Strings, Unchanged, Variables, Without};
use crate::entry::session_place::SessionPlace;
use crate::session::Once;

/// `PATH_MAX` of linux/limits.h, with the end of the path.
const PATH_BYTES_MAX: usize = 4096;
/// What strings and lists may take (execve(2)): a quarter of the stack's limit, within these.
const STRINGS_BYTES_LEAST: u64 = 128 << 10;
const STRINGS_BYTES_MOST: u64 = 6 << 20;

#[inline(never)]
pub(super) fn on_execve(call: &Call) -> Answer {
    let [path, _, environment, ..] = call.arguments;
    along(call, Some(CWD), path, AtFlags::empty(), environment, 2)
}

#[inline(never)]
pub(super) fn on_execveat(call: &Call) -> Answer {
    let [folder, path, _, environment, flags, _] = call.arguments;
    let flags = AtFlags::from_bits_retain(flags as u32);
    // Others ask for something else than an execution, or are refused.
    if !(AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW).contains(flags) {
        return Answer::AS_IT_IS;
    }
    let folder = match folder as i32 {
        // SAFETY: it is only passed on to the kernel, which says whether it is open.
        folder @ 0.. => Some(unsafe { BorrowedFd::borrow_raw(folder) }),
        folder if folder == CWD.as_raw_fd() => Some(CWD),
        _ => None,
    };
    along(call, folder, path, flags, environment, 3)
}

/// Makes the call with an environment that leads to the agent. `place`: of the environment among
/// the arguments.
#[inline(never)]
fn along(
    call: &Call,
    folder: Option<BorrowedFd<'_>>,
    path: usize,
    flags: AtFlags,
    environment: usize,
    place: usize,
) -> Answer {
    let Some(agent) = Agent::get() else { return Answer::AS_IT_IS };
    let mut reader = CarefulReader::new();
    // SAFETY: it is the program's, which has passed it to a call.
    let Some(path) = (unsafe { reader.string(path, PATH_BYTES_MAX - 1) }) else {
        return Answer::AS_IT_IS;
    };
    let folder = folder.or(path.to_bytes().starts_with(b"/").then_some(CWD));
    let Some(folder) = folder else { return Answer::AS_IT_IS };
    // A search for a program in many folders ends here for most of them.
    if !executable::is_candidate(folder, path, flags) {
        return Answer::AS_IT_IS;
    }
    // SAFETY: as above.
    let variables = unsafe { Variables::find(environment as Strings, &mut reader) };
    let Some(variables) = variables else { return Answer::AS_IT_IS };
    let program = Program { agent, folder, path, flags };
    match program.execute(call, place, &variables) {
        Ok(result) if result != too_big() => Answer::made(result),
        Ok(_) => {
            if fits(call, place, path) {
                program.say("its arguments and environment leave no room for ramfold's variables");
            }
            Answer::AS_IT_IS
        }
        Err(None) => Answer::AS_IT_IS,
        Err(Some(reason)) => {
            program.say(reason);
            Answer::AS_IT_IS
        }
    }
}

/// What is to be executed.
struct Program<'a> {
    agent: &'static Agent,
    folder: BorrowedFd<'a>,
    path: &'a CStr,
    flags: AtFlags,
}

/// Why the agent does not come along; `None` where that is right, or for the kernel to say.
type Reason = Option<&'static str>;

impl Program<'_> {
    /// Makes the call, with other variables in the environment. What the kernel answers.
    fn execute(
        &self,
        call: &Call,
        place: usize,
        variables: &Variables<'_>,
    ) -> Result<isize, Reason> {
        let library = self.agent.library().ok_or(None)?;
        let pointers = variables.count + Changes::MORE + 1;
        let list_bytes = pointers * size_of::<*const c_char>();
        let text_bytes = Changes::text_bytes(variables, library, size_of::<SanitizerName>());
        let shares = proc::own_pid() != self.agent.pid();
        let taker = if shares { Taker::Guest } else { Taker::Own };
        let mut scratch = SCRATCHES
            .take(WORK_BYTES + list_bytes + text_bytes, taker)
            .map_err(|_| "there is no memory for its environment")?;
        let (work, rest) = scratch.bytes().split_first_chunk_mut().ok_or(None)?;
        let (list, text) = rest.split_at_mut(list_bytes);

        let executable = self.look(work)?;
        if access(library, Access::READ_OK).is_err() {
            self.say("ramfold's library cannot be seen where it runs");
            // The loader would complain of it.
            let without = Without::new(library, variables, text).ok_or(None)?;
            // SAFETY: as below.
            return Ok(unsafe {
                execute_with(call, place, list, |list| without.apply(variables, list))
            });
        }
        // The descriptor is closed when this returns: the program was not executed.
        let (session, _handed_down) = self.session()?;
        let first = executable.first_library();
        let changes =
            Changes::new(&session, library, variables, first, text).map_err(|why| match why {
                Unchanged::Leads => None,
                Unchanged::NoRoom => Some("its LD_PRELOAD is as long as the kernel permits"),
            })?;
        // SAFETY: the environment is the program's, which asked for this call, and was looked at a
        // moment ago.
        Ok(unsafe { execute_with(call, place, list, |list| changes.apply(variables, list)) })
    }

    fn look(&self, work: &mut Work) -> Result<Executable, Reason> {
        // What cannot be executed the kernel refuses.
        let found = executable::look(self.folder, self.path, self.flags, work).map_err(|_| None)?;
        match found.reason() {
            None => Ok(found),
            reason => Err(reason.filter(|_| self.is_permitted())),
        }
    }

    #[inline(never)]
    fn is_permitted(&self) -> bool {
        let flags = self.flags | AtFlags::EACCESS;
        accessat(self.folder, self.path, Access::EXEC_OK, flags) != Err(Errno::ACCESS)
    }

    #[inline(never)]
    fn session(&self) -> Result<(SessionPlace, Option<OwnedFd>), Reason> {
        if is_secure() {
            return Err(Some("its effective user or group is not its real one"));
        }
        self.agent.session_for_execution().map_err(|errno| {
            Some(match errno {
                _ if self.agent.changed_user_namespace() => {
                    "it is in another user namespace, and may not open ramfold's session"
                }
                Errno::ACCESS | Errno::PERM if self.agent.changed_user() => {
                    "it is another user's, and may not open ramfold's session"
                }
                Errno::ACCESS | Errno::PERM => "it may not open ramfold's session",
                _ => "it runs where neither ramfold nor its agent can be seen in /proc",
            })
        })
    }

    #[cold]
    #[inline(never)]
    fn say(&self, why: &str) {
        let name = self.path.to_bytes();
        let name = core::str::from_utf8(&name[..name.len().min(200)]).unwrap_or_default();
        let name = if name.is_empty() { "(a program)" } else { name };
        self.agent.session().say(
            Once::NotAlong,
            format_args!(
                "{name} runs without ramfold: {why} (said of the first such program only)"
            ),
        );
    }
}

/// Is what this process executes a program that gains privileges, to the loader (ld.so(8))? It
/// takes in no library by a path then.
fn is_secure() -> bool {
    geteuid() != getuid() || getegid() != getgid()
}

/// Makes the call with the environment that is written to this memory.
///
/// # Safety
/// The program asked for this call, and `write` makes a list of strings that ends with null.
unsafe fn execute_with(
    call: &Call,
    place: usize,
    memory: &mut [u8],
    write: impl FnOnce(&mut [*const c_char]),
) -> isize {
    // SAFETY: any bytes are a pointer. The memory begins at a page, and the list at a whole word.
    let (_, list, _) = unsafe { memory.align_to_mut::<*const c_char>() };
    const { assert!(WORK_BYTES.is_multiple_of(align_of::<*const c_char>())) };
    write(list);
    let mut arguments = call.arguments;
    arguments[place] = list.as_ptr() as usize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: by the caller's word.
    unsafe { raw::syscall6(call.number, a, b, c, d, e, f) }
}

fn too_big() -> isize {
    -(Errno::TOOBIG.raw_os_error() as isize)
}

/// Would the kernel take these strings as they are? Only of what it does not take with more.
#[cold]
#[inline(never)]
fn fits(call: &Call, place: usize, path: &CStr) -> bool {
    let mut reader = CarefulReader::new();
    let mut of_strings = |list: usize| {
        let mut bytes = 0;
        for at in (list..).step_by(size_of::<usize>()).take_while(|_| list != 0) {
            match reader.word(at)? {
                0 => break,
                string => {
                    // SAFETY: it is the program's, which has passed it to a call.
                    let string = unsafe { reader.string(string, 32 * PAGE_SIZE - 1) }?;
                    bytes += string.count_bytes() + 1 + size_of::<usize>();
                }
            }
        }
        Some(bytes)
    };
    let lists = [call.arguments[place - 1], call.arguments[place]];
    let [Some(arguments), Some(environment)] = lists.map(&mut of_strings) else {
        return false;
    };
    let limit = getrlimit(Resource::Stack).current.map_or(u64::MAX, |bytes| bytes / 4);
    let limit = limit.clamp(STRINGS_BYTES_LEAST, STRINGS_BYTES_MOST);
    (path.count_bytes() + 1 + arguments + environment) as u64 <= limit
}
