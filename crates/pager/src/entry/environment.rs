//! The variables that lead the loader to the agent, and the agent to its session.
//!
//! Where the program leaves them out of the environment of what it executes they are added, and taken
//! out again by the constructor there. The session's variable says what was added:
//!
//!     RAMFOLD_SESSION=PID:FD:KEY[:ADDED]
//!
//! `ADDED` is a letter for each change: `s` the session's variable itself, `p` the loader's, `d` a third
//! one beside a single one of these, because two are taken out at a time; or `rSKIP,LENGTH`: of the
//! loader's value, only LENGTH bytes behind the first SKIP were there before.

use core::ffi::{CStr, c_char};
use core::fmt::{self, Write};

use super::session_place::SessionPlace;
use crate::session::SESSION_VARIABLE;

pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
const PAD_VARIABLE: &str = "RAMFOLD_PAD";
const PAD: &CStr = c"RAMFOLD_PAD=";

/// A list of strings that ends with null: an environment, or null for none.
pub type Strings = *const *const c_char;

/// The strings of an environment. The caller vouches for the list.
pub fn strings(environment: Strings) -> impl Iterator<Item = &'static CStr> {
    let mut at = environment;
    core::iter::from_fn(move || {
        // SAFETY: a list of strings that ends with null, by the caller's word.
        unsafe {
            let string = at.as_ref()?.as_ref()?;
            at = at.add(1);
            Some(CStr::from_ptr(string))
        }
    })
}

/// The value of a variable in a string like `NAME=VALUE`.
pub fn value_of<'a>(string: &'a CStr, name: &str) -> Option<&'a [u8]> {
    string.to_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// What has to be different in an environment for the agent to come along.
#[derive(Debug, PartialEq, Eq)]
pub struct Changes<'a> {
    session: &'a CStr,
    preload: Option<&'a CStr>,
    adds_session: bool,
    adds_preload: bool,
}

impl<'a> Changes<'a> {
    /// For a session that is found at `place`, and the agent's library of that path. `None` where nothing
    /// has to be different, or there is no room for it in `text`. `first`: a library that must come before
    /// all others.
    pub fn new<'b>(
        place: &SessionPlace,
        library: &CStr,
        environment: impl Iterator<Item = &'b CStr>,
        first: Option<&str>,
        text: &'a mut [u8],
    ) -> Option<Changes<'a>> {
        let (mut session, mut preload) = (None, None);
        for string in environment {
            session = session.or(value_of(string, SESSION_VARIABLE));
            preload = preload.or(value_of(string, PRELOAD_VARIABLE));
        }
        let list = preload.unwrap_or(b"");
        let has = |library: &[u8]| {
            list.split(|b| matches!(b, b' ' | b':' | b'\t' | b'\n')).any(|name| name == library)
        };
        let library = library.to_bytes();
        let first = first.filter(|first| !has(first.as_bytes()));
        // Another session's, which the program has begun, stays.
        let other = session
            .filter(|value| SessionPlace::parse(value).is_some_and(|other| other.key != place.key));
        let leads = session.is_some() && place.pid != 0 || other.is_some();
        if leads && first.is_none() && has(library) {
            return None;
        }
        let preload_end = text.len() / 2;
        let (preload_text, session_text) = text.split_at_mut(preload_end);
        let mut preload_line = Text::new(preload_text);
        write!(preload_line, "{PRELOAD_VARIABLE}=").ok()?;
        if let Some(first) = first {
            write!(preload_line, "{first}:").ok()?;
        }
        let skip = preload_line.length - PRELOAD_VARIABLE.len() - 1;
        preload_line.push(list)?;
        if !has(library) {
            preload_line.push(if list.is_empty() { b"" } else { b":" })?;
            preload_line.push(library)?;
        }
        let changes_preload = first.is_some() || !has(library);
        let (adds_session, adds_preload) = (session.is_none(), preload.is_none());

        let mut session_line = Text::new(session_text);
        write!(session_line, "{SESSION_VARIABLE}=").ok()?;
        match other {
            Some(other) => session_line.push(other)?,
            None => write!(session_line, "{place}").ok()?,
        }
        let letter = |is_so: bool, letter| if is_so { letter } else { "" };
        let added = letter(adds_session, "s");
        let pads = letter(adds_session != adds_preload, "d");
        write!(session_line, ":{added}{}{pads}", letter(adds_preload, "p")).ok()?;
        if changes_preload && !adds_preload {
            write!(session_line, "r{skip},{}", list.len()).ok()?;
        }
        Some(Changes {
            session: session_line.finish()?,
            preload: if changes_preload { Some(preload_line.finish()?) } else { None },
            adds_session,
            adds_preload,
        })
    }

    /// Variables more than there were, and the null at the end.
    pub const MORE: usize = 3;

    /// Writes the changed environment: `list` has room for [`Changes::MORE`] more than there are.
    pub fn apply<'b>(
        &self,
        environment: impl Iterator<Item = &'b CStr>,
        list: &mut [*const c_char],
    ) {
        let mut places = list.iter_mut();
        let mut put = |string: &CStr| {
            if let Some(place) = places.next() {
                *place = string.as_ptr();
            }
        };
        for string in environment {
            match self.preload {
                _ if value_of(string, SESSION_VARIABLE).is_some() => put(self.session),
                Some(preload) if value_of(string, PRELOAD_VARIABLE).is_some() => put(preload),
                _ => put(string),
            }
        }
        if self.adds_session {
            put(self.session);
        }
        if let Some(preload) = self.preload.filter(|_| self.adds_preload) {
            put(preload);
        }
        if self.adds_session != self.adds_preload {
            put(PAD);
        }
        if let Some(place) = places.next() {
            *place = core::ptr::null();
        }
    }
}

/// Takes out of the environment of this process what was added to it.
///
/// # Safety
/// It must be the environment as the kernel put it on the stack, with the auxiliary vector behind it, and
/// nobody may use it meanwhile.
pub unsafe fn restore(environment: Strings) {
    let find =
        |name: &str| strings(environment).position(|string| value_of(string, name).is_some());
    let Some(place) = find(SESSION_VARIABLE) else { return };
    // SAFETY: within the list.
    let session = unsafe { CStr::from_ptr(*environment.add(place)) };
    let (Some(value), start) = (value_of(session, SESSION_VARIABLE), session.as_ptr()) else {
        return;
    };
    let Some(colon) =
        value.iter().enumerate().filter(|(_, b)| **b == b':').map(|(at, _)| at).nth(2)
    else {
        return;
    };
    let added = &value[colon + 1..];
    let has = |letter: u8| added.contains(&letter);
    let skip_and_length = added.iter().position(|b| *b == b'r').and_then(|at| {
        let (skip, rest) = ramfold_sys::maps::number(&added[at + 1..], 10)?;
        let (length, _) = ramfold_sys::maps::number(rest.strip_prefix(b",")?, 10)?;
        Some((skip as usize, length as usize))
    });
    if let Some((skip, length)) = skip_and_length
        && let Some(place) = find(PRELOAD_VARIABLE)
    {
        // SAFETY: a string of the environment, longer than what it becomes.
        unsafe {
            let value =
                (*environment.add(place)).cast_mut().cast::<u8>().add(PRELOAD_VARIABLE.len() + 1);
            value.copy_from(value.add(skip), length);
            value.add(length).write(0);
        }
    }
    let gone = [(b's', SESSION_VARIABLE), (b'p', PRELOAD_VARIABLE), (b'd', PAD_VARIABLE)]
        .map(|(letter, name)| find(name).filter(|_| has(letter)));
    if !has(b's') {
        let name = SESSION_VARIABLE.len() + 1;
        // SAFETY: in the string, whose memory is this process's own.
        unsafe { start.cast_mut().cast::<u8>().add(name + colon).write(0) };
    }
    // SAFETY: by the caller's word.
    unsafe { take_out(environment.cast_mut(), gone) };
}

/// Takes strings out of the list, two or none. The list becomes shorter, and what lies behind it is found
/// by going on behind its end: so the room of two strings becomes an entry of the auxiliary vector that
/// says nothing.
unsafe fn take_out(list: *mut *const c_char, gone: [Option<usize>; 3]) {
    const AT_IGNORE: usize = 1;
    if gone.iter().flatten().count() != 2 {
        return;
    }
    let (mut from, mut to) = (0, 0);
    loop {
        // SAFETY: up to the null that ends the list.
        let string = unsafe { list.add(from).read() };
        if !gone.contains(&Some(from)) {
            // SAFETY: not behind what was read.
            unsafe { list.add(to).write(string) };
            to += 1;
        }
        from += 1;
        if string.is_null() {
            break;
        }
    }
    // SAFETY: the places of the two last entries of the list as it was.
    unsafe {
        list.add(to).write(core::ptr::without_provenance(AT_IGNORE));
        list.add(to + 1).write(core::ptr::null());
    }
}

/// Text in a fixed place.
struct Text<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> Text<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        Text { bytes, length: 0 }
    }

    fn push(&mut self, more: &[u8]) -> Option<()> {
        self.bytes.get_mut(self.length..self.length + more.len())?.copy_from_slice(more);
        self.length += more.len();
        Some(())
    }

    /// The text, ended by zero.
    fn finish(mut self) -> Option<&'a CStr> {
        self.push(&[0])?;
        CStr::from_bytes_with_nul(&self.bytes[..self.length]).ok()
    }
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes()).ok_or(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    const PLACE: SessionPlace = SessionPlace { pid: 12, fd: 3, key: 0xff };
    const LIBRARY: &CStr = c"/lib/agent.so";

    /// An environment on a stack: its strings, null, and an auxiliary vector.
    struct OnStack {
        strings: Vec<CString>,
        words: Vec<*const c_char>,
    }

    impl OnStack {
        fn new(strings: &[&CStr]) -> Self {
            let strings: Vec<CString> = strings.iter().map(|string| (*string).to_owned()).collect();
            let mut words: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
            let vector = [0, 33, 0x7000, 0, 0].map(core::ptr::without_provenance);
            words.extend(vector);
            OnStack { strings, words }
        }

        fn list(&self) -> Vec<String> {
            assert!(self.strings.len() <= self.words.len());
            strings(self.words.as_ptr()).map(|text| text.to_str().unwrap().to_owned()).collect()
        }

        /// The auxiliary vector, found behind the list.
        fn vector(&self) -> Vec<[usize; 2]> {
            let behind = self.words.iter().position(|word| word.is_null()).unwrap() + 1;
            self.words[behind..]
                .chunks_exact(2)
                .map(|pair| [pair[0] as usize, pair[1] as usize])
                .filter(|[key, _]| *key != 1)
                .collect()
        }
    }

    /// What a program is given, and what it finds when the agent has started.
    fn there_and_back(given: &[&CStr], first: Option<&str>) -> (Vec<String>, Vec<String>) {
        let mut text = [0; 512];
        let Some(changes) = Changes::new(&PLACE, LIBRARY, given.iter().copied(), first, &mut text)
        else {
            let unchanged: Vec<_> = given.iter().map(|s| s.to_str().unwrap().to_owned()).collect();
            return (unchanged.clone(), unchanged);
        };
        let mut list = vec![core::ptr::null(); given.len() + Changes::MORE + 1];
        changes.apply(given.iter().copied(), &mut list);
        let passed: Vec<&CStr> = strings(list.as_ptr()).collect();
        let stack = OnStack::new(&passed);
        let there = stack.list();
        // SAFETY: laid out as the kernel does it.
        unsafe { restore(stack.words.as_ptr()) };
        assert_eq!(stack.vector(), [[33, 0x7000], [0, 0]], "{given:?}");
        (there, stack.list())
    }

    #[test]
    fn a_program_finds_the_environment_that_it_was_given() {
        let (ours, both) = (c"LD_PRELOAD=/lib/agent.so", c"LD_PRELOAD=x.so:/lib/agent.so");
        let session = c"RAMFOLD_SESSION=7:8:9";
        for given in [
            &[][..],
            &[c"A=b", c"PATH=/bin"],
            &[c"LD_PRELOAD=x.so", c"A=b"],
            &[c"LD_PRELOAD="],
            &[c"A=b", session],
            &[session, ours, c"B=c"],
            &[session, both],
            &[c"C=d", ours],
            &[c"LD_PRELOAD=x.so y.so", session, c"D=e"],
        ] {
            for first in [None, Some("libasan.so.8")] {
                let (there, back) = there_and_back(given, first);
                let expected: Vec<_> =
                    given.iter().map(|string| string.to_str().unwrap().to_owned()).collect();
                assert_eq!(back, expected);
                let value = |name: &str| {
                    there.iter().find_map(|string| string.strip_prefix(name)?.strip_prefix('='))
                };
                let list = value("LD_PRELOAD").unwrap();
                assert!(list.split([':', ' ']).any(|name| name == "/lib/agent.so"), "{there:?}");
                assert_eq!(list.starts_with("libasan.so.8:"), first.is_some(), "{there:?}");
                let given_session = given.contains(&session);
                let expected = if given_session { "7:8:9" } else { "12:3:00000000000000ff" };
                assert!(value("RAMFOLD_SESSION").unwrap().starts_with(expected), "{there:?}");
            }
        }
    }

    #[test]
    fn what_leads_to_the_agent_is_left_as_it_is() {
        let given = [c"RAMFOLD_SESSION=7:8:9", c"LD_PRELOAD=/lib/agent.so"];
        let mut text = [0; 512];
        assert_eq!(Changes::new(&PLACE, LIBRARY, given.into_iter(), None, &mut text), None);
        let first = Some("libasan.so.6");
        let given = [c"RAMFOLD_SESSION=7:8:9", c"LD_PRELOAD=libasan.so.6:/lib/agent.so"];
        assert_eq!(Changes::new(&PLACE, LIBRARY, given.into_iter(), first, &mut text), None);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let mut text = [0; 40];
        assert_eq!(Changes::new(&PLACE, LIBRARY, [c"A=b"].into_iter(), None, &mut text), None);
    }
}
