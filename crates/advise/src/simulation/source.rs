//! Where accesses come from: a trace that is read twice, or one of watched pages, which is kept.

use std::fs::File;
use std::io::{self, BufReader, Read};

use ramfold_model::simulate::watched::{Activity, Sampling};
use ramfold_trace::recorded::{AddressSpace, Event, Header};
use ramfold_trace::{Access, Content, Format, Trace};

use super::{Error, Request};
use crate::progress::Progress;

/// Accesses to a watched page that follow each other within this time are one: no policy tells them
/// apart, and a page in use all the time would have millions.
const GAP_US: u64 = 1000;

/// A trace.
pub(super) struct Source<'a> {
    request: &'a Request,
    progress: &'a Progress,
    pub(super) format: Format,
    /// What ramfold's own says of itself.
    header: Option<Header>,
    /// What is known of pages that were watched, where the trace is of such.
    pub(super) activity: Option<Activity>,
}

/// Counts what is read of a file.
struct Counted<'a> {
    file: File,
    progress: &'a Progress,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buffer)?;
        self.progress.add(len as u64);
        Ok(len)
    }
}

impl<'a> Source<'a> {
    /// Opens the trace, and reads it where it is of watched pages.
    pub(super) fn open(request: &'a Request, progress: &'a Progress) -> Result<Self, Error> {
        let Trace { format, header, content } = open(request, progress)?;
        let activity = match (content, header) {
            (Content::Watched(events), Some(header)) => {
                let failed = |source| Error::Trace { path: request.path.clone(), source };
                let events = events.collect::<Result<Vec<Event>, _>>().map_err(failed)?;
                let sampling = Sampling {
                    one_in: header.one_in.into(),
                    block_pages: header.block_pages.into(),
                };
                Some(Activity::new(events, sampling, 0))
            }
            _ => None,
        };
        if activity.is_some() && (request.one_in.is_some() || request.save.is_some()) {
            return Err(Error::IsSample { path: request.path.clone() });
        }
        Ok(Source { request, progress, format, header, activity })
    }

    /// One page in this many is in the trace.
    pub(super) fn one_in(&self) -> u64 {
        self.header.map_or(1, |header| header.one_in.into())
    }

    /// What its pages are.
    pub(super) fn kind(&self) -> AddressSpace {
        self.header.map_or(AddressSpace::Memory, |header| header.kind)
    }

    /// Calls `each` for each access.
    pub(super) fn for_each(&self, mut each: impl FnMut(Access)) -> Result<(), Error> {
        if let Some(activity) = &self.activity {
            for (time, page) in activity.accesses(GAP_US) {
                each(Access { time, page });
            }
            return Ok(());
        }
        let trace = open(self.request, self.progress)?;
        let Content::Accesses(accesses) = trace.content else { return Ok(()) };
        for access in accesses {
            each(
                access
                    .map_err(|source| Error::Trace { path: self.request.path.clone(), source })?,
            );
        }
        Ok(())
    }
}

fn open<'a>(request: &Request, progress: &'a Progress) -> Result<Trace<'a>, Error> {
    let failed = |source| Error::Trace { path: request.path.clone(), source };
    let open = || -> io::Result<File> {
        let file = File::open(&request.path)?;
        let metadata = file.metadata()?;
        progress.set_all(2 * metadata.len());
        Ok(file)
    };
    let file = open().map_err(|error| failed(error.into()))?;
    let counted = BufReader::with_capacity(1 << 18, Counted { file, progress });
    ramfold_trace::open(counted, request.format).map_err(failed)
}
