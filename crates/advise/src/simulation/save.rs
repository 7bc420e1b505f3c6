//! The trace in ramfold's own format, written while it is simulated.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ramfold_model::is_sampled;
use ramfold_trace::Access;
use ramfold_trace::recorded::{AddressSpace, Header, Writer};

use super::Error;

/// The trace in ramfold's format, while it is read.
pub(super) struct Save<'a> {
    path: &'a Path,
    one_in: u64,
    /// What became of it so far.
    written: io::Result<Writer<BufWriter<File>>>,
}

impl<'a> Save<'a> {
    pub(super) fn create(
        one_in: u64,
        kind: AddressSpace,
        path: &'a Path,
    ) -> Result<Save<'a>, Error> {
        let create = || {
            let one_in = u32::try_from(one_in).map_err(io::Error::other)?;
            let header = Header { kind, one_in, look_ns: 0, block_pages: 1 };
            // A trace shows what a program does: it is for its owner alone.
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            Writer::new(BufWriter::new(file), header)
        };
        let written = Ok(create().map_err(|source| Error::Save { path: path.to_owned(), source })?);
        Ok(Save { path, one_in, written })
    }

    pub(super) fn access(&mut self, access: Access) {
        if let Ok(writer) = &mut self.written
            && is_sampled(access.page, self.one_in)
            && let Err(error) = writer.write(access)
        {
            self.written = Err(error);
        }
    }

    pub(super) fn finish(self) -> Result<(), Error> {
        let finished = self.written.and_then(|writer| writer.finish(0));
        finished.map(drop).map_err(|source| Error::Save { path: self.path.to_owned(), source })
    }
}
