//! The environment of a program, in the order and with the oddities that it is given with.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The environment that this process was started with, as the kernel has it: one entry a variable,
/// `NAME=VALUE`. Unlike [`std::env::vars_os`] it has what is no variable, and not what was changed
/// since.
///
/// # Errors
/// Where /proc/self/environ cannot be read.
pub fn initial_environment() -> io::Result<Vec<OsString>> {
    Ok(entries(&fs::read("/proc/self/environ")?))
}

fn entries(environment: &[u8]) -> Vec<OsString> {
    environment
        .split_inclusive(|&byte| byte == 0)
        .map(|entry| entry.strip_suffix(b"\0").unwrap_or(entry))
        .map(|entry| OsString::from_vec(entry.to_vec()))
        .collect()
}

/// The entries that a program is given.
pub(crate) struct Environment(Vec<OsString>);

impl Environment {
    /// Of these entries.
    pub(crate) fn new(entries: Vec<OsString>) -> Environment {
        Environment(entries)
    }

    /// The variables that this process has now.
    pub(crate) fn of_this_process() -> Environment {
        Environment(std::env::vars_os().map(|(name, value)| assignment(&name, &value)).collect())
    }

    /// The value of a variable: the first, where there are several, as getenv(3) has it.
    pub(crate) fn get(&self, name: &OsStr) -> Option<&OsStr> {
        self.0.iter().find_map(|entry| value_of(entry, name))
    }

    /// Sets a variable: the first of its name, or a new one at the end.
    pub(crate) fn set(&mut self, name: &OsStr, value: &OsStr) {
        let new = assignment(name, value);
        match self.0.iter_mut().find(|entry| value_of(entry, name).is_some()) {
            Some(entry) => *entry = new,
            None => self.0.push(new),
        }
    }

    /// Removes a variable.
    pub(crate) fn remove(&mut self, name: &OsStr) {
        self.0.retain(|entry| value_of(entry, name).is_none());
    }

    pub(crate) fn into_entries(self) -> Vec<OsString> {
        self.0
    }
}

fn assignment(name: &OsStr, value: &OsStr) -> OsString {
    OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat())
}

fn value_of<'a>(entry: &'a OsStr, name: &OsStr) -> Option<&'a OsStr> {
    let rest = entry.as_bytes().strip_prefix(name.as_bytes())?;
    rest.strip_prefix(b"=").map(OsStr::from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(environment: Environment) -> String {
        let entries = environment.into_entries();
        entries.join(OsStr::new("|")).into_string().unwrap()
    }

    #[test]
    fn an_environment_keeps_its_order_and_its_oddities() {
        let mut environment = Environment::new(entries(b"Z=1\0A=2\0odd\0Z=3\0B=x\0\0"));
        for (name, value) in [("A", "new"), ("N", "7")] {
            environment.set(OsStr::new(name), OsStr::new(value));
        }
        assert_eq!(environment.get(OsStr::new("Z")), Some(OsStr::new("1")));
        assert_eq!(environment.get(OsStr::new("odd")), None);
        assert_eq!(text(environment), "Z=1|A=new|odd|Z=3|B=x||N=7");
        assert_eq!(entries(b""), Vec::<OsString>::new());
    }

    #[test]
    fn a_removed_variable_is_gone_in_all_its_places() {
        let mut environment = Environment::new(entries(b"Z=1\0A=2\0Z=3\0ZZ=4\0"));
        environment.remove(OsStr::new("Z"));
        assert_eq!(text(environment), "A=2|ZZ=4");
    }
}
