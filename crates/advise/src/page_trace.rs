//! A trace of a program's page accesses, written while the program runs
//! (`ramfold run --trace`).

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Mutex;

use ramfold_launch::{SeenPages, WatchOutcome, output_file};
use ramfold_trace::recorded::{AddressSpace, Header, Writer};

use crate::lock;
use crate::observation::BLOCK_PAGES;
use crate::program::trace_event;

/// A trace that is being written.
#[derive(Debug)]
pub struct PageTrace {
    /// What became of it so far.
    written: Mutex<io::Result<Writer<BufWriter<File>>>>,
}

impl PageTrace {
    /// Begins the file, for its owner alone. One that is there is replaced.
    ///
    /// # Errors
    /// When it cannot be written, or is no regular file: how large a part of the pages is in it is
    /// known at its end, and stands at its beginning.
    pub fn begin(path: &Path) -> io::Result<PageTrace> {
        let writer = begin(path, AddressSpace::Memory, BLOCK_PAGES as u32)?;
        Ok(PageTrace { written: Mutex::new(Ok(writer)) })
    }

    /// Notes what was seen. Content of pages is not in a trace.
    pub fn note(&self, seen: &SeenPages) {
        let SeenPages::Event(event) = *seen else { return };
        let mut written = lock(&self.written);
        if let Ok(writer) = &mut *written
            && let Err(error) = writer.write(trace_event(event))
        {
            *written = Err(error);
        }
    }

    /// Ends it. Returns how many events it lacks.
    ///
    /// # Errors
    /// When it could not be written.
    pub fn end(&self, outcome: WatchOutcome) -> io::Result<u64> {
        let mut written = lock(&self.written);
        let ended = Err(io::Error::other("it has ended"));
        let writer = std::mem::replace(&mut *written, ended)?;
        let lost = u32::try_from(outcome.lost).unwrap_or(u32::MAX);
        writer.finish_sampled(lost, outcome.one_in)?;
        Ok(outcome.lost)
    }
}

/// Begins the file of a trace, for its owner alone.
pub(crate) fn begin(
    path: &Path,
    kind: AddressSpace,
    block_pages: u32,
) -> io::Result<Writer<BufWriter<File>>> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        let why = "a trace of pages wants a regular file: its beginning is written last";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let header = Header { kind, one_in: 1, look_ns: 0, block_pages };
    Writer::new(BufWriter::new(output_file::begin(path)?), header)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use ramfold_launch::{PageEvent, Watched};
    use ramfold_trace::recorded::{Event, Reader, What};

    use super::*;

    #[test]
    fn a_trace_has_the_last_sample() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        std::fs::write(&path, "an older one").unwrap();
        let trace = PageTrace::begin(&path).unwrap();
        for page in 0..2048 {
            let event = PageEvent {
                process: 3,
                page,
                time_us: page,
                watched_us: 0,
                what: Watched::Appeared,
            };
            trace.note(&SeenPages::Event(event));
        }
        let outcome = WatchOutcome { one_in: 16, lost: 2, lacks_content: false };
        assert_eq!(trace.end(outcome).unwrap(), 2);
        assert!(trace.end(outcome).is_err());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let mut reader = Reader::new(File::open(&path).unwrap()).unwrap();
        let events: Vec<Event> = reader.by_ref().map(Result::unwrap).collect();
        assert_eq!((events.len(), reader.lost(), reader.header().one_in), (128, 2, 16));
        let is_right = |event: &Event| event.page >> 44 == 3 && event.what == What::Appeared;
        assert!(events.iter().all(is_right));
    }

    #[test]
    fn what_cannot_be_a_trace_is_refused() {
        for path in ["/dev/null", "/no/such/folder/trace", "/tmp"] {
            assert!(PageTrace::begin(Path::new(path)).is_err(), "{path}");
        }
        if Path::new("/dev/full").exists() {
            let error = PageTrace::begin(Path::new("/dev/full")).unwrap_err();
            assert!(error.to_string().contains("regular file"), "{error}");
        }
    }
}
