//! `--object-trace`: a file for what happens to the compressed objects of a process.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::Context;
use ramfold_pager::session::OwnedSession;
use ramfold_store::{TRACE_HEAD_BYTES, words_asked};
use rustix::fs::{FallocateFlags, fallocate, statfs};
use tempfile::NamedTempFile;

use crate::output_file;
use crate::size::{Size, SizedPath};

/// Room for 32 million events, where nothing else is said.
const USUAL_SIZE: Size = Size::Bytes(256 << 20);
const WORD_BYTES: u64 = size_of::<u64>() as u64;

/// A file that a process of the session may write a trace to. It gets its name at the end.
pub struct ObjectTrace {
    path: PathBuf,
    file: NamedTempFile,
    bytes: u64,
}

/// What became of it.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    Whole,
    /// There was no room for more than the first part.
    Cut {
        bytes: u64,
        wanted_bytes: u64,
    },
    /// No process came to record anything, so there is no file.
    Nothing,
}

impl ObjectTrace {
    /// Makes the file, with all its room: a process that writes to it must not meet a full disk.
    ///
    /// # Errors
    /// When there can be no such file.
    pub fn set_up(place: &SizedPath, session: &OwnedSession) -> anyhow::Result<ObjectTrace> {
        let path = &place.path;
        output_file::check(path)?;
        let folder = output_file::folder_of(path);
        let disk = statfs(folder)?;
        let free = disk.f_bavail.saturating_mul(disk.f_bsize as u64);
        let bytes = place.size.unwrap_or(USUAL_SIZE).bytes(free) / WORD_BYTES * WORD_BYTES;
        if bytes <= TRACE_HEAD_BYTES as u64 {
            anyhow::bail!("{bytes} bytes are too few for anything");
        }
        let file = NamedTempFile::new_in(folder)?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes)
            .with_context(|| format!("setting {} MiB aside", bytes >> 20))?;
        session.object_trace.lend(&file)?;
        Ok(ObjectTrace { path: path.clone(), file, bytes })
    }

    /// Gives the file its name, and the length of what is in it, when nobody writes any more.
    ///
    /// # Errors
    /// When it cannot be read or named.
    pub fn finish(self) -> anyhow::Result<Outcome> {
        let mut head = [0; TRACE_HEAD_BYTES];
        self.file.as_file().read_exact_at(&mut head, 0)?;
        let asked = words_asked(&head)?;
        if asked == 0 {
            return Ok(Outcome::Nothing);
        }
        let wanted_bytes = asked.saturating_mul(WORD_BYTES).saturating_add(head.len() as u64);
        let bytes = wanted_bytes.min(self.bytes);
        self.file.as_file().set_len(bytes)?;
        self.file.persist(&self.path)?;
        Ok(if bytes < wanted_bytes { Outcome::Cut { bytes, wanted_bytes } } else { Outcome::Whole })
    }
}

#[cfg(test)]
mod tests {
    use ramfold_codec::Choice;

    use super::*;

    fn set_up(text: &str) -> anyhow::Result<(OwnedSession, ObjectTrace)> {
        let session = OwnedSession::create(1 << 30, Choice::Auto).unwrap();
        let trace = ObjectTrace::set_up(&text.parse().unwrap(), &session)?;
        Ok((session, trace))
    }

    #[test]
    fn what_nobody_wrote_to_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects");
        let (session, trace) = set_up(&format!("{}:1M", path.display())).unwrap();
        assert!(session.object_trace.is_lent());
        assert_eq!(trace.file.as_file().metadata().unwrap().len(), 1 << 20);
        assert_eq!(trace.finish().unwrap(), Outcome::Nothing);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_cannot_be_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("objects");
        for (text, problem) in [
            ("/no/such/folder/objects".to_owned(), "No such file"),
            ("/tmp".to_owned(), "directory"),
            (format!("{}:64", file.display()), "too few"),
            (format!("{}:900000G", file.display()), "setting 921600000 MiB aside"),
        ] {
            let error = set_up(&text).map(drop).unwrap_err();
            assert!(format!("{error:#}").contains(problem), "{error:#}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
