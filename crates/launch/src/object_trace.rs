//! The object trace: keeps what a process of the session records of its compressed objects.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ramfold_session::Session;
use ramfold_store::{Event, TRACE_MAGIC};
use rustix::fs::statfs;

use crate::Size;
use crate::output_file;

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
pub(crate) struct ObjectTrace {
    file: File,
    words_max: u64,
}

/// How complete an object trace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceOutcome {
    /// It has all events.
    Whole,
    /// The file may be no longer than this; it has the first events.
    Full {
        /// Bytes of events in it.
        bytes: u64,
    },
    /// Events came faster than they could be written; it has the first.
    Overrun,
    /// No process recorded anything.
    Empty,
}

/// Why an object trace cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// There is no room for a single event.
    #[error("{bytes} bytes are too few for anything")]
    TooSmall {
        /// How long the file may be.
        bytes: u64,
    },
    /// The file cannot be made or written.
    #[error(transparent)]
    File(#[from] io::Error),
}

impl ObjectTrace {
    /// Begins the file, and lets the session's processes know.
    ///
    /// # Errors
    /// When there can be no such file.
    pub(crate) fn begin(
        path: &Path,
        size: Option<Size>,
        session: &Session,
    ) -> Result<ObjectTrace, TraceError> {
        let disk = statfs(output_file::folder_of(path)).map_err(io::Error::from)?;
        let free = disk.f_bavail.saturating_mul(disk.f_bsize as u64);
        let bytes = size.unwrap_or(USUAL_SIZE).bytes(free);
        let words_max = (bytes / WORD_BYTES).saturating_sub(FRAME_WORDS);
        if words_max == 0 {
            return Err(TraceError::TooSmall { bytes });
        }
        let mut file = output_file::begin(path)?;
        file.write_all(&TRACE_MAGIC.to_ne_bytes())?;
        session.object_ring.want();
        Ok(ObjectTrace { file, words_max })
    }

    /// Writes what is recorded until `ended`. The thread that runs this is to be unparked then.
    ///
    /// # Errors
    /// When it cannot be written. It then has what came before.
    pub(crate) fn keep(
        mut self,
        session: &Session,
        ended: &AtomicBool,
    ) -> io::Result<TraceOutcome> {
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
            (false, _) => TraceOutcome::Empty,
            (true, false) => TraceOutcome::Whole,
            (true, true) if left == 0 => TraceOutcome::Full { bytes: self.words_max * WORD_BYTES },
            (true, true) => TraceOutcome::Overrun,
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

        fn begin(&self, bytes: Option<u64>) -> Result<ObjectTrace, TraceError> {
            ObjectTrace::begin(&self.path(), bytes.map(Size::Bytes), self.session)
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

        fn keep(&self, trace: ObjectTrace) -> TraceOutcome {
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
        let trace = traced.begin(None).unwrap();
        assert_eq!(fs::metadata(traced.path()).unwrap().mode() & 0o777, 0o600);
        traced.put(0);
        traced.put(7);
        traced.put(5);
        assert_eq!(traced.keep(trace), TraceOutcome::Whole);
        let events = traced.events();
        assert_eq!(events.len(), 8);
        assert!(events[..7].iter().all(|event| matches!(event, Event::Put { len: 100, .. })));
        assert_eq!(events[7], Event::End { whole: true });
    }

    #[test]
    fn what_is_not_whole_says_so() {
        let traced = Traced::new();
        let trace = traced.begin(None).unwrap();
        assert_eq!(traced.keep(trace), TraceOutcome::Empty);
        assert_eq!(traced.events(), [Event::End { whole: true }]);

        let trace = traced.begin(Some(96)).unwrap();
        traced.put(11);
        assert_eq!(traced.keep(trace), TraceOutcome::Full { bytes: 80 });
        assert_eq!(fs::metadata(traced.path()).unwrap().len(), 96);
        assert_eq!(traced.events().last(), Some(&Event::End { whole: false }));

        let traced = Traced::new();
        let trace = traced.begin(None).unwrap();
        traced.put(600_000);
        assert_eq!(traced.keep(trace), TraceOutcome::Overrun);
        let events = traced.events();
        assert_eq!(events.len(), (1 << 19) + 1);
        assert_eq!(events.last(), Some(&Event::End { whole: false }));
    }

    #[test]
    fn a_file_that_cannot_be_is_refused() {
        let traced = Traced::new();
        for (path, bytes, problem) in [
            (Path::new("/no/such/folder/objects"), None, "No such file"),
            (Path::new("/tmp"), None, "directory"),
            (&traced.path(), Some(23), "23 bytes are too few"),
        ] {
            let begun = ObjectTrace::begin(path, bytes.map(Size::Bytes), traced.session);
            let error = begun.map(drop).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        assert_eq!(fs::read_dir(traced.folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_full_disk_is_told_and_special_files_stay_what_they_are() {
        let traced = Traced::new();
        let begin = |path: &str| ObjectTrace::begin(Path::new(path), None, traced.session);
        let full = begin("/dev/full").map(drop).unwrap_err();
        assert!(full.to_string().contains("No space left"), "{full}");
        let trace = begin("/dev/null").unwrap();
        traced.put(3);
        assert_eq!(traced.keep(trace), TraceOutcome::Whole);
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
