//! A trace of the reads of a mount, written while it is served (`ramfold mount --trace`).

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hash;
use std::io::{self, BufWriter};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use ramfold_trace::recorded::{AddressSpace, Event, What, Writer};

use crate::{lock, page_trace};

/// Bits of a page's number that say where in its file it is.
const PAGE_BITS: u32 = 32;

/// A trace that is being written. Files are told apart by an `Id`.
#[derive(Debug)]
pub struct FileTrace<Id> {
    begun: Instant,
    /// What became of it so far.
    state: Mutex<io::Result<State<Id>>>,
}

#[derive(Debug)]
struct State<Id> {
    writer: Writer<BufWriter<File>>,
    /// Numbers of files, in the order in which they were first read.
    numbers: HashMap<Id, u32>,
    /// Accesses whose numbers do not fit into the format.
    lost: u32,
}

impl<Id: Eq + Hash> FileTrace<Id> {
    /// Begins the file, for its owner alone. One that is there is replaced.
    ///
    /// # Errors
    /// When it cannot be written, or is no regular file.
    pub fn begin(path: &Path) -> io::Result<FileTrace<Id>> {
        let writer = page_trace::begin(path, AddressSpace::Files, 1)?;
        let state = State { writer, numbers: HashMap::new(), lost: 0 };
        Ok(FileTrace { begun: Instant::now(), state: Mutex::new(Ok(state)) })
    }

    /// Notes a read of pages of a file.
    pub fn note(&self, file: Id, pages: Range<u64>) {
        let mut state = lock(&self.state);
        if let Ok(State { writer, numbers, lost }) = &mut *state {
            // With the lock held, so that events are in order.
            let time_us = self.begun.elapsed().as_micros() as u64;
            let known = u32::try_from(numbers.len());
            let number = numbers.get(&file).copied().or_else(|| {
                let number = known.ok()?;
                numbers.insert(file, number);
                Some(number)
            });
            let written = pages.into_iter().try_for_each(|page| {
                let Some(number) = number.filter(|_| page >> PAGE_BITS == 0) else {
                    *lost = lost.saturating_add(1);
                    return Ok(());
                };
                let page = u64::from(number) << PAGE_BITS | page;
                writer.write(Event { time_us, page, what: What::Accessed })
            });
            if let Err(error) = written {
                *state = Err(error);
            }
        }
    }

    /// Ends it. Returns how many accesses it lacks.
    ///
    /// # Errors
    /// When it could not be written.
    pub fn end(&self) -> io::Result<u32> {
        let ended = Err(io::Error::other("it has ended"));
        let State { writer, lost, .. } = std::mem::replace(&mut *lock(&self.state), ended)?;
        writer.finish(lost)?;
        Ok(lost)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::thread;

    use ramfold_trace::recorded::Reader;

    use super::*;

    #[test]
    fn files_are_numbered_as_they_are_first_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let trace = FileTrace::begin(&path).unwrap();
        trace.note("b", 5..7);
        trace.note("a", 0..1);
        trace.note("b", 6..7);
        trace.note("a", (1 << 32) - 1..(1 << 32) + 2);
        assert_eq!(trace.end().unwrap(), 2);
        assert!(trace.end().is_err());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let mut reader = Reader::new(File::open(&path).unwrap()).unwrap();
        let pages: Vec<u64> = reader.by_ref().map(|event| event.unwrap().page).collect();
        let a = 1 << 32;
        assert_eq!(pages, [5, 6, a, 6, a + 0xFFFF_FFFF]);
        assert_eq!((reader.lost(), reader.header().kind), (2, AddressSpace::Files));
    }

    #[test]
    fn reads_of_several_threads_are_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let trace = FileTrace::begin(&path).unwrap();
        thread::scope(|scope| {
            for number in 0..4_u64 {
                let trace = &trace;
                scope.spawn(move || (0..5000).for_each(|page| trace.note(number, page..page + 2)));
            }
        });
        assert_eq!(trace.end().unwrap(), 0);
        let reader = Reader::new(File::open(&path).unwrap()).unwrap();
        let events: Vec<Event> = reader.map(Result::unwrap).collect();
        assert_eq!(events.len(), 40_000);
        assert!(events.is_sorted_by_key(|event| event.time_us));
    }
}
