//! `--object-trace`: keeps what a process of the session records of its compressed objects.

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ramfold_session::Session;
use ramfold_store::{Event, TRACE_MAGIC};
use rustix::fs::statfs;

use crate::output_file;
use crate::size::{Size, SizedPath};

/// 32 million events, where nothing else is said.
const USUAL_SIZE: Size = Size::Bytes(256 << 20);
const WORD_BYTES: u64 = size_of::<u64>() as u64;
/// The first word and the last.
const FRAME_WORDS: u64 = 2;
/// The ring in the session has room for seconds.
const INTERVAL: Duration = Duration::from_millis(10);
/// Written at once.
const CHUNK_WORDS: u64 = 1 << 16;

/// A file that is written while the program runs.
pub struct ObjectTrace {
    file: File,
    words_max: u64,
}

/// What became of it.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    Whole,
    /// It may be no longer: bytes.
    Full(u64),
    /// Events came faster than they could be written.
    Overrun,
    /// No process recorded anything.
    Empty,
}

impl ObjectTrace {
    /// Begins the file, and lets the session's processes know.
    ///
    /// # Errors
    /// When there can be no such file.
    pub fn begin(place: &SizedPath, session: &Session) -> anyhow::Result<ObjectTrace> {
        let disk = statfs(output_file::folder_of(&place.path))?;
        let free = disk.f_bavail.saturating_mul(disk.f_bsize as u64);
        let bytes_max = place.size.unwrap_or(USUAL_SIZE).bytes(free);
        let words_max = (bytes_max / WORD_BYTES).saturating_sub(FRAME_WORDS);
        if words_max == 0 {
            anyhow::bail!("{bytes_max} bytes are too few for anything");
        }
        let mut file = output_file::begin(&place.path)?;
        file.write_all(&TRACE_MAGIC.to_ne_bytes())?;
        session.object_ring.want();
        Ok(ObjectTrace { file, words_max })
    }

    /// Writes what is recorded until `ended`. The thread that runs this is to be unparked then.
    ///
    /// # Errors
    /// When it cannot be written. It then has what came before.
    pub fn keep(mut self, session: &Session, ended: &AtomicBool) -> io::Result<Outcome> {
        let ring = &session.object_ring;
        let mut left = self.words_max;
        let mut bytes = Vec::new();
        loop {
            // Looked at first: what was recorded before the end is taken.
            let last = ended.load(Ordering::Acquire);
            loop {
                let words = ring.take().take(left.min(CHUNK_WORDS) as usize);
                bytes.clear();
                bytes.extend(words.flat_map(u64::to_ne_bytes));
                if bytes.is_empty() {
                    break;
                }
                self.file.write_all(&bytes)?;
                left -= bytes.len() as u64 / WORD_BYTES;
            }
            if last {
                break;
            }
            thread::park_timeout(INTERVAL);
        }
        let outcome = match (ring.is_used(), ring.has_more()) {
            (false, _) => Outcome::Empty,
            (true, false) => Outcome::Whole,
            (true, true) if left == 0 => Outcome::Full(self.words_max * WORD_BYTES),
            (true, true) => Outcome::Overrun,
        };
        let end = Event::end_word(!ring.has_more());
        self.file.write_all(&end.to_ne_bytes())?;
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    use ramfold_codec::Choice;
    use ramfold_session::OwnedSession;
    use ramfold_store::{Config, Recorder, Store, events};

    use super::*;

    struct Traced {
        session: &'static OwnedSession,
        folder: tempfile::TempDir,
    }

    impl Traced {
        fn new() -> Traced {
            let session = Box::leak(Box::new(OwnedSession::create(1 << 30, Choice::Auto).unwrap()));
            Traced { session, folder: tempfile::tempdir().unwrap() }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("objects")
        }

        fn begin(&self, size: &str) -> anyhow::Result<ObjectTrace> {
            let place = format!("{}{size}", self.path().display());
            ObjectTrace::begin(&place.parse().unwrap(), self.session)
        }

        /// A process' store, in which so many objects were put.
        fn put(&self, objects: u64) {
            let mut store = Store::new(&Config {
                pool_bytes_max: 1 << 30,
                reserve_bytes: 0,
                metadata_bytes_max: 64 << 20,
                spill: None,
            })
            .unwrap();
            store.record_objects(Recorder::of(&self.session.object_ring));
            (0..objects).for_each(|key| store.store_object(key, 1, &[1; 100]).unwrap());
        }

        fn keep(&self, trace: ObjectTrace) -> Outcome {
            trace.keep(self.session, &AtomicBool::new(true)).unwrap()
        }

        fn events(&self) -> Vec<Event> {
            let bytes = fs::read(self.path()).unwrap();
            let (words, []) = bytes.as_chunks() else { panic!("half a word") };
            assert_eq!(u64::from_ne_bytes(words[0]), TRACE_MAGIC);
            let words = words[1..].iter().map(|&word| u64::from_ne_bytes(word));
            events(words).map(Result::unwrap).collect()
        }
    }

    #[test]
    fn a_trace_has_what_the_first_process_with_an_object_did() {
        let traced = Traced::new();
        fs::write(traced.path(), "what was there before").unwrap();
        let trace = traced.begin("").unwrap();
        assert_eq!(fs::metadata(traced.path()).unwrap().mode() & 0o777, 0o600);
        traced.put(0);
        traced.put(7);
        traced.put(5);
        assert_eq!(traced.keep(trace), Outcome::Whole);
        let events = traced.events();
        assert_eq!(events.len(), 8);
        assert!(events[..7].iter().all(|event| matches!(event, Event::Put { len: 100, .. })));
        assert_eq!(events[7], Event::End { whole: true });
    }

    #[test]
    fn what_is_not_whole_says_so() {
        let traced = Traced::new();
        let trace = traced.begin("").unwrap();
        assert_eq!(traced.keep(trace), Outcome::Empty);
        assert_eq!(traced.events(), [Event::End { whole: true }]);

        let trace = traced.begin(":96").unwrap();
        traced.put(11);
        assert_eq!(traced.keep(trace), Outcome::Full(80));
        assert_eq!(fs::metadata(traced.path()).unwrap().len(), 96);
        assert_eq!(traced.events().last(), Some(&Event::End { whole: false }));

        let traced = Traced::new();
        let trace = traced.begin("").unwrap();
        traced.put(600_000);
        assert_eq!(traced.keep(trace), Outcome::Overrun);
        let events = traced.events();
        assert_eq!(events.len(), (1 << 19) + 1);
        assert_eq!(events.last(), Some(&Event::End { whole: false }));
    }

    #[test]
    fn a_file_that_cannot_be_is_refused() {
        let traced = Traced::new();
        for (text, problem) in [
            ("/no/such/folder/objects".to_owned(), "No such file"),
            ("/tmp".to_owned(), "directory"),
            (format!("{}:23", traced.path().display()), "23 bytes are too few"),
        ] {
            let place = text.parse().unwrap();
            let error = ObjectTrace::begin(&place, traced.session).map(drop).unwrap_err();
            assert!(format!("{error:#}").contains(problem), "{error:#}");
        }
        assert_eq!(fs::read_dir(traced.folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_full_disk_is_told_and_special_files_stay_what_they_are() {
        let traced = Traced::new();
        let full = ObjectTrace::begin(&"/dev/full".parse().unwrap(), traced.session);
        assert!(format!("{:#}", full.map(drop).unwrap_err()).contains("No space left"));
        let place = "/dev/null".parse().unwrap();
        let trace = ObjectTrace::begin(&place, traced.session).unwrap();
        traced.put(3);
        assert_eq!(traced.keep(trace), Outcome::Whole);
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
