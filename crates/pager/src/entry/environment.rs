//! The variables that lead the loader to the agent, and the agent to its session.
//!
//! Where the program leaves them out of the environment of what it executes they are added, and
//! taken out again by the constructor there. The session's variable says what was added:
//!
//!     RAMFOLD_SESSION=PID:FD:KEY[:ADDED]
//!
//! `ADDED` is a letter for each change: `s` the session's variable itself, `p` the loader's, `d` a
//! third one beside a single one of these, because two are taken out at a time; or `rSKIP,LENGTH`:
//! of the loader's value, only LENGTH bytes behind the first SKIP were there before.

use core::ffi::{CStr, c_char};
use core::fmt::{self, Write};

use ramfold_sys::careful::CarefulReader;

use super::session_place::SessionPlace;
use crate::session::SESSION_VARIABLE;

pub(crate) const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
const PAD_VARIABLE: &str = "RAMFOLD_PAD";
const PAD: &CStr = c"RAMFOLD_PAD=";

/// A list of strings that ends with null: an environment, or null for none.
pub(crate) type Strings = *const *const c_char;

/// The strings of an environment. The caller vouches for the list.
pub(crate) fn strings(environment: Strings) -> impl Iterator<Item = &'static CStr> {
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
pub(crate) fn value_of<'a>(string: &'a CStr, name: &str) -> Option<&'a [u8]> {
    string.to_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// The kernel takes no longer string (`MAX_ARG_STRLEN` of linux/binfmts.h), its end included.
const STRING_BYTES_MAX: usize = 32 << 12;

/// What matters here of the environment that a program gives to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variables<'a> {
    list: Strings,
    pub count: usize,
    session: Option<&'a [u8]>,
    preload: Option<&'a [u8]>,
}

impl Variables<'_> {
    /// `None` where the list, or what tells of a string which variable it is, cannot be read.
    ///
    /// # Safety
    /// What can be read must stay so, and as it is, while the variables are used.
    pub(crate) unsafe fn find(list: Strings, reader: &mut CarefulReader) -> Option<Self> {
        let mut found = Variables { list, count: 0, session: None, preload: None };
        if list.is_null() {
            return Some(found);
        }
        loop {
            match reader.word(list.wrapping_add(found.count) as usize)? {
                0 => return Some(found),
                // SAFETY: by the caller's word.
                string => unsafe { found.note(string, reader) }?,
            }
            found.count += 1;
        }
    }

    /// # Safety
    /// As of [`Self::find`].
    unsafe fn note(&mut self, string: usize, reader: &mut CarefulReader) -> Option<()> {
        let variables =
            [(SESSION_VARIABLE, &mut self.session), (PRELOAD_VARIABLE, &mut self.preload)];
        for (name, value) in variables {
            if value.is_none() && reader.starts_with(string, name.as_bytes())? {
                // SAFETY: by the caller's word.
                let string = unsafe { reader.string(string, STRING_BYTES_MAX) }?;
                *value = value_of(string, name);
            }
        }
        Some(())
    }
}

/// Why an environment stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unchanged {
    /// It leads to the agent.
    Leads,
    /// Its variable for the loader is as long as the kernel permits, or nearly.
    NoRoom,
}

/// What has to be different in an environment for the agent to come along.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changes<'a> {
    session: &'a CStr,
    preload: Option<&'a CStr>,
    adds_session: bool,
    adds_preload: bool,
}

impl<'a> Changes<'a> {
    /// How much text [`Self::new`] makes at most, with a name so long before all others.
    pub(crate) fn text_bytes(
        variables: &Variables<'_>,
        library: &CStr,
        first_bytes: usize,
    ) -> usize {
        const OTHERS: usize = 256;
        let given = [variables.session, variables.preload];
        let given: usize = given.iter().flatten().map(|value| value.len()).sum();
        given + first_bytes + library.count_bytes() + OTHERS
    }

    /// For a session that is found at `place`, and the agent's library of that path. `first`: a
    /// library that must come before all others.
    ///
    /// # Errors
    /// Where nothing is to be different.
    pub(crate) fn new(
        place: &SessionPlace,
        library: &CStr,
        variables: &Variables<'_>,
        first: Option<&str>,
        text: &'a mut [u8],
    ) -> Result<Changes<'a>, Unchanged> {
        let Variables { session, preload, .. } = *variables;
        let list = preload.unwrap_or(b"");
        let has = |library: &[u8]| list.split(splits).any(|name| name == library);
        let library = library.to_bytes();
        let first = first.filter(|first| !has(first.as_bytes()));
        // Another session's, which the program has begun, stays.
        let other = session
            .filter(|value| SessionPlace::parse(value).is_some_and(|other| other.key != place.key));
        let leads = session.is_some() && place.pid != 0 || other.is_some();
        if leads && first.is_none() && has(library) {
            return Err(Unchanged::Leads);
        }
        let adds_library = !has(library);
        let changes_preload = first.is_some() || adds_library;
        let (adds_session, adds_preload) = (session.is_none(), preload.is_none());
        // The name and what stands behind it.
        let skip = first.map_or(0, |first| first.len() + 1);

        let mut line = Text::new(text);
        let written = write_session(&mut line, place, other, |line| {
            let letter = |is_so: bool, letter| if is_so { letter } else { "" };
            let added = letter(adds_session, "s");
            let pads = letter(adds_session != adds_preload, "d");
            write!(line, ":{added}{}{pads}", letter(adds_preload, "p"))?;
            if changes_preload && !adds_preload {
                write!(line, "r{skip},{}", list.len())?;
            }
            Ok(())
        });
        let (session, text) = written.ok().and_then(|()| line.finish()).ok_or(Unchanged::NoRoom)?;
        let mut preload = None;
        if changes_preload {
            let mut line = Text::new(text);
            let library = if adds_library { library } else { b"" };
            let written = write_preload(&mut line, first, list, library);
            let (line, _) = written.ok().and_then(|()| line.finish()).ok_or(Unchanged::NoRoom)?;
            if line.count_bytes() >= STRING_BYTES_MAX {
                return Err(Unchanged::NoRoom);
            }
            preload = Some(line);
        }
        Ok(Changes { session, preload, adds_session, adds_preload })
    }

    /// Variables more than there were, and the null at the end.
    pub(crate) const MORE: usize = 3;

    /// Writes the changed environment: `list` has room for [`Changes::MORE`] more than there are.
    ///
    /// # Safety
    /// The environment must be as it was when the variables were found.
    pub(crate) unsafe fn apply(&self, variables: &Variables<'_>, list: &mut [*const c_char]) {
        let mut places = list.iter_mut();
        let mut put = |string: *const c_char| {
            if let Some(place) = places.next() {
                *place = string;
            }
        };
        for index in 0..variables.count {
            // SAFETY: within the list, which is of strings, by the caller's word.
            let string = unsafe { variables.list.add(index).read_unaligned() };
            // SAFETY: as above.
            let is = |name| !string.is_null() && unsafe { is_variable(string, name) };
            match self.preload {
                _ if is(SESSION_VARIABLE) => put(self.session.as_ptr()),
                Some(preload) if is(PRELOAD_VARIABLE) => put(preload.as_ptr()),
                _ => put(string),
            }
        }
        if self.adds_session {
            put(self.session.as_ptr());
        }
        if let Some(preload) = self.preload.filter(|_| self.adds_preload) {
            put(preload.as_ptr());
        }
        if self.adds_session != self.adds_preload {
            put(PAD.as_ptr());
        }
        if let Some(place) = places.next() {
            *place = core::ptr::null();
        }
    }
}

/// An environment without what leads to the agent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Without<'a> {
    /// What is left of the variable for the loader.
    preload: Option<&'a CStr>,
}

impl<'a> Without<'a> {
    /// `None` where the environment does not lead there. As much text as [`Changes::text_bytes`]
    /// says is enough.
    pub(crate) fn new(
        library: &CStr,
        variables: &Variables<'_>,
        text: &'a mut [u8],
    ) -> Option<Self> {
        let list = variables.preload?;
        let library = library.to_bytes();
        if !list.split(splits).any(|name| name == library) {
            return None;
        }
        let mut line = Text::new(text);
        write!(line, "{PRELOAD_VARIABLE}=").ok()?;
        let (empty, mut at) = (line.length, 0);
        for name in list.split(splits) {
            if name != library {
                if line.length > empty {
                    line.push(&list[at - 1..at]).ok()?;
                }
                line.push(name).ok()?;
            }
            at += name.len() + 1;
        }
        let is_left = line.length > empty;
        let (line, _) = line.finish()?;
        Some(Without { preload: is_left.then_some(line) })
    }

    /// Writes the changed environment: `list` has room for all that there is.
    ///
    /// # Safety
    /// As of [`Changes::apply`].
    pub(crate) unsafe fn apply(&self, variables: &Variables<'_>, list: &mut [*const c_char]) {
        let strings = (0..variables.count).filter_map(|index| {
            // SAFETY: within the list, which is of strings, by the caller's word.
            let string = unsafe { variables.list.add(index).read_unaligned() };
            // SAFETY: as above.
            let is = |name| !string.is_null() && unsafe { is_variable(string, name) };
            match self.preload {
                _ if is(SESSION_VARIABLE) => None,
                preload if is(PRELOAD_VARIABLE) => preload.map(CStr::as_ptr),
                _ => Some(string),
            }
        });
        for (place, string) in list.iter_mut().zip(strings.chain([core::ptr::null()])) {
            *place = string;
        }
    }
}

/// What stands between names in the loader's variable.
fn splits(byte: &u8) -> bool {
    matches!(byte, b' ' | b':' | b'\t' | b'\n')
}

/// The session's variable, and what was added.
fn write_session(
    line: &mut Text<'_>,
    place: &SessionPlace,
    other: Option<&[u8]>,
    write_added: impl Fn(&mut Text<'_>) -> fmt::Result,
) -> fmt::Result {
    write!(line, "{SESSION_VARIABLE}=")?;
    match other {
        Some(other) => line.push(other)?,
        None => write!(line, "{place}")?,
    }
    write_added(line)
}

/// The loader's variable: `library` may be empty.
fn write_preload(
    line: &mut Text<'_>,
    first: Option<&str>,
    list: &[u8],
    library: &[u8],
) -> fmt::Result {
    write!(line, "{PRELOAD_VARIABLE}=")?;
    if let Some(first) = first {
        write!(line, "{first}:")?;
    }
    line.push(list)?;
    if !list.is_empty() && !library.is_empty() {
        line.push(b":")?;
    }
    line.push(library)
}

/// # Safety
/// It must be a string.
unsafe fn is_variable(string: *const c_char, name: &str) -> bool {
    let start = name.bytes().chain([b'=']);
    // A character is signed, or not, as the architecture has it.
    let string = string.cast::<u8>();
    // SAFETY: no further than the first byte that differs, as the last one of the string does.
    start.enumerate().all(|(offset, byte)| unsafe { *string.add(offset) } == byte)
}

/// Takes out of the environment of this process what was added to it.
///
/// # Safety
/// It must be the environment as the kernel put it on the stack, with the auxiliary vector behind
/// it, and nobody may use it meanwhile.
pub(crate) unsafe fn restore(environment: Strings) {
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

/// Takes strings out of the list, two or none. The list becomes shorter, and what lies behind it is
/// found by going on behind its end: so the room of two strings becomes an entry of the auxiliary
/// vector that says nothing.
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

    fn push(&mut self, more: &[u8]) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..self.length + more.len());
        room.ok_or(fmt::Error)?.copy_from_slice(more);
        self.length += more.len();
        Ok(())
    }

    /// The text, ended by zero, and what is left of its place.
    fn finish(mut self) -> Option<(&'a CStr, &'a mut [u8])> {
        self.push(&[0]).ok()?;
        let (text, rest) = self.bytes.split_at_mut(self.length);
        Some((CStr::from_bytes_with_nul(text).ok()?, rest))
    }
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes())
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

    /// An environment as a program passes it.
    struct List<'a>(Vec<*const c_char>, core::marker::PhantomData<&'a CStr>);

    impl<'a> List<'a> {
        fn new(given: &[&'a CStr]) -> Self {
            let end = core::iter::once(core::ptr::null());
            let list = given.iter().map(|string| string.as_ptr()).chain(end).collect();
            List(list, core::marker::PhantomData)
        }

        fn find(&self) -> Variables<'a> {
            // SAFETY: as it was made.
            unsafe { Variables::find(self.0.as_ptr(), &mut CarefulReader::new()) }.unwrap()
        }
    }

    /// What a program is given, and what it finds when the agent has started.
    fn there_and_back(given: &[&CStr], first: Option<&str>) -> (Vec<String>, Vec<String>) {
        let environment = List::new(given);
        let variables = environment.find();
        let first_bytes = first.map_or(0, str::len);
        let mut text = vec![0; Changes::text_bytes(&variables, LIBRARY, first_bytes)];
        let Ok(changes) = Changes::new(&PLACE, LIBRARY, &variables, first, &mut text) else {
            let unchanged: Vec<_> = given.iter().map(|s| s.to_str().unwrap().to_owned()).collect();
            return (unchanged.clone(), unchanged);
        };
        let mut list = vec![core::ptr::dangling(); variables.count + Changes::MORE + 1];
        // SAFETY: it is as it was.
        unsafe { changes.apply(&variables, &mut list) };
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
        let leads = |given: &[&CStr], first| {
            let (variables, mut text) = (List::new(given).find(), [0; 512]);
            let changes = Changes::new(&PLACE, LIBRARY, &variables, first, &mut text);
            changes.err() == Some(Unchanged::Leads)
        };
        let session = c"RAMFOLD_SESSION=7:8:9";
        assert!(leads(&[session, c"LD_PRELOAD=/lib/agent.so"], None));
        let first = Some("libasan.so.6");
        assert!(leads(&[session, c"LD_PRELOAD=libasan.so.6:/lib/agent.so"], first));
        assert!(!leads(&[session, c"LD_PRELOAD=/lib/agent.so"], first));
    }

    #[test]
    fn what_leads_to_an_agent_out_of_sight_is_taken_out() {
        let left = |given: &[&CStr]| {
            let list = List::new(given);
            let variables = list.find();
            let mut text = vec![0; Changes::text_bytes(&variables, LIBRARY, 0)];
            let without = Without::new(LIBRARY, &variables, &mut text)?;
            let mut list = vec![core::ptr::null(); variables.count + 1];
            // SAFETY: the list is as it was.
            unsafe { without.apply(&variables, &mut list) };
            let texts = strings(list.as_ptr()).map(|text| text.to_str().unwrap().to_owned());
            Some(texts.collect::<Vec<_>>())
        };
        let session = c"RAMFOLD_SESSION=12:3:00000000000000ff";
        let given = |preload| left(&[c"A=b", session, preload, c"C=d"]).unwrap();
        assert_eq!(given(c"LD_PRELOAD=/lib/agent.so"), ["A=b", "C=d"]);
        for (preload, expected) in [
            (c"LD_PRELOAD=x.so y.so:/lib/agent.so", "LD_PRELOAD=x.so y.so"),
            (c"LD_PRELOAD=/lib/agent.so:x.so", "LD_PRELOAD=x.so"),
            (c"LD_PRELOAD=x.so:/lib/agent.so y.so", "LD_PRELOAD=x.so y.so"),
        ] {
            assert_eq!(given(preload), ["A=b", expected, "C=d"]);
        }
        assert_eq!(left(&[c"A=b", session, c"LD_PRELOAD=/lib/agent.so.1"]), None);
        assert_eq!(left(&[session]), None);
    }

    #[test]
    fn a_long_list_of_libraries_has_room_up_to_what_the_kernel_takes() {
        for (names, is_too_long) in [(150, false), (11_000, false), (13_106, true)] {
            let given = CString::new(format!("LD_PRELOAD={}", "libm.so.6:".repeat(names))).unwrap();
            assert!(given.count_bytes() < STRING_BYTES_MAX);
            let (there, back) = there_and_back(&[c"A=b", &given], None);
            assert_eq!(back[1].as_bytes(), given.to_bytes());
            assert_eq!(there[1].ends_with(":/lib/agent.so"), !is_too_long, "{names}");
        }
    }

    #[test]
    fn every_variable_of_a_name_is_changed() {
        let given = [c"LD_PRELOAD=x.so", c"A=b", c"LD_PRELOAD=y.so", c"LD_PRELOADS=z.so"];
        let (there, _) = there_and_back(&given, None);
        let expected = "LD_PRELOAD=x.so:/lib/agent.so";
        assert_eq!([&there[0], &there[2], &there[3]], [expected, expected, "LD_PRELOADS=z.so"]);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let variables = List::new(&[c"A=b"]).find();
        for bytes in [0, 40, 60] {
            let mut text = vec![0; bytes];
            let changes = Changes::new(&PLACE, LIBRARY, &variables, None, &mut text);
            assert_eq!(changes.err(), Some(Unchanged::NoRoom), "{bytes}");
        }
    }

    #[test]
    fn an_environment_that_cannot_be_read_is_left_to_the_kernel() {
        let memory = ramfold_sys::mem::Reservation::new(8192).unwrap();
        memory.commit(0, 4096).unwrap();
        let end = memory.as_ptr().wrapping_add(4096);
        let is_found = |list: Strings| {
            // SAFETY: nobody changes it.
            unsafe { Variables::find(list, &mut CarefulReader::new()) }.is_some()
        };
        let bad = 8 as *const c_char;
        assert!(!is_found([c"A=b".as_ptr(), bad, core::ptr::null()].as_ptr()));
        // The list does not end, or is not there.
        let last = end.cast::<*const c_char>().wrapping_sub(1);
        // SAFETY: within the first page.
        unsafe { last.write(c"A=b".as_ptr()) };
        assert!(!is_found(last) && !is_found(end.cast()) && !is_found(bad.cast()));
        assert!(is_found(core::ptr::null()));
        // A string that does not end is the kernel's affair, but for the variables that count.
        for (start, found) in [(&b"A=b"[..], true), (b"LD_PREL", false), (b"LD_PRELOAD=x", false)] {
            let string = end.wrapping_sub(start.len());
            // SAFETY: within the first page.
            unsafe { string.copy_from(start.as_ptr(), start.len()) };
            assert_eq!(is_found([string.cast_const().cast(), core::ptr::null()].as_ptr()), found);
        }
    }
}
