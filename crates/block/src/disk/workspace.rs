//! What a request works with: codecs and buffers, reserved before the first one comes, so that no
//! request asks the system for memory.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ramfold_codec::encodings::RAW;
use ramfold_codec::{Choice, Encoding, Objective, Page, ScratchError};
use ramfold_engine::PageCodecs;
use ramfold_store::OBJECT_BYTES_MAX;
use ramfold_sys::sync::{Mutex, MutexGuard};

use super::PAGE;
use super::clusters::ClusterRoom;

/// An object that is longer is not worth decompressing: the page is kept as it is. The slot of such
/// an object is a ninth smaller than a page.
pub(super) const COMPRESSED_BYTES_MAX: usize = 3628;

/// An extent of the spill file, read from sector to sector: a page more at either end at most.
pub(super) const EXTENT_BYTES_MAX: usize = 4 * PAGE;

/// Codecs as the store's encodings name them.
pub(super) struct Coder(PageCodecs);

impl Coder {
    pub(super) fn new(choice: Choice) -> Result<Coder, ScratchError> {
        PageCodecs::new(choice).map(Coder)
    }

    /// Bytes that a coder takes.
    pub(super) fn bytes(choice: Choice) -> usize {
        PageCodecs::bytes(choice)
    }

    /// Compresses a page into `object`; `None` where it does not fit there.
    pub(super) fn compress(
        &mut self,
        page: &Page,
        objective: Objective,
        object: &mut [u8],
    ) -> Option<(u8, usize)> {
        let made = self.0.compress(page, objective, object);
        made.ok().map(|(encoding, len)| (encoding.into(), len))
    }

    /// Decompresses an object of several pages.
    pub(super) fn decompress_cluster(
        &mut self,
        encoding: u8,
        object: &[u8],
        cluster: &mut [u8],
    ) -> Result<(), String> {
        let encoding = Encoding::try_from(encoding).map_err(|error| error.to_string())?;
        self.0.decompress_cluster(encoding, object, cluster).map_err(|error| error.to_string())
    }

    /// Decompresses an object, or copies a page that was stored as it is.
    pub(super) fn decompress(
        &mut self,
        encoding: u8,
        object: &[u8],
        page: &mut Page,
    ) -> Result<(), String> {
        if encoding == RAW {
            let object = object.try_into().map_err(|_| "a raw page has another length")?;
            *page = object;
            return Ok(());
        }
        let encoding = Encoding::try_from(encoding).map_err(|error| error.to_string())?;
        self.0.decompress(encoding, object, page).map_err(|error| error.to_string())
    }
}

/// Memory that begins at a page, as files that are read past the page cache need it.
#[repr(C, align(4096))]
pub(super) struct Aligned(pub(super) [u8; EXTENT_BYTES_MAX]);

/// What a disk needs workspaces for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    pub(super) codec: Choice,
    pub(super) has_spill: bool,
    pub(super) has_clusters: bool,
}

impl Needs {
    /// Pages in memory, each by itself.
    pub(super) fn of_pages(codec: Choice) -> Needs {
        Needs { codec, has_spill: false, has_clusters: false }
    }
}

/// Codecs and buffers for one request at a time.
pub(super) struct Workspace {
    pub(super) coder: Coder,
    /// A page that another is compared with.
    pub(super) page: Box<Page>,
    /// A page of which a part is read or changed. Empty while it is lent.
    pub(super) part: Box<[u8]>,
    /// What a page was compressed to.
    pub(super) made: Box<[u8; OBJECT_BYTES_MAX]>,
    /// What was found in the store.
    pub(super) found: Box<[u8; OBJECT_BYTES_MAX]>,
    /// What was read from the spill file; there is none without such a file.
    pub(super) extent: Option<Box<Aligned>>,
    /// A cluster that was found; only where there are any.
    pub(super) cluster: Option<Box<ClusterRoom>>,
    pub(super) number: usize,
}

/// What requests have counted, for each workspace by itself.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Counters {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) bytes_read: AtomicU64,
    pub(super) bytes_written: AtomicU64,
    pub(super) no_room: AtomicU64,
    pub(super) shared_writes: AtomicU64,
    pub(super) unequal: AtomicU64,
}

/// Adds where one thread at a time does.
pub(super) fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

struct Place {
    workspace: Mutex<Workspace>,
    counters: Counters,
}

/// The workspaces: as many requests as there are of them are served at the same time.
pub(super) struct Workspaces {
    places: Box<[Place]>,
}

impl Workspaces {
    pub(super) fn new(count: usize, needs: Needs) -> Result<Workspaces, ScratchError> {
        let places = (0..count).map(|number| {
            Ok(Place {
                workspace: Mutex::new(Workspace {
                    coder: Coder::new(needs.codec)?,
                    page: Box::new([0; PAGE]),
                    part: Box::new([0; PAGE]),
                    made: Box::new([0; OBJECT_BYTES_MAX]),
                    found: Box::new([0; OBJECT_BYTES_MAX]),
                    extent: needs.has_spill.then(|| Box::new(Aligned([0; EXTENT_BYTES_MAX]))),
                    cluster: needs.has_clusters.then(|| Box::new(ClusterRoom::new())),
                    number,
                }),
                counters: Counters::default(),
            })
        });
        Ok(Workspaces { places: places.collect::<Result<_, ScratchError>>()? })
    }

    /// Bytes that each takes.
    pub(super) fn bytes_each(needs: Needs) -> usize {
        let extent = if needs.has_spill { size_of::<Aligned>() } else { 0 };
        let cluster = if needs.has_clusters { ClusterRoom::bytes() } else { 0 };
        let codec = Coder::bytes(needs.codec);
        codec + 2 * PAGE + 2 * OBJECT_BYTES_MAX + extent + cluster + size_of::<Place>()
    }

    /// A workspace that nobody else uses: mostly the one that this thread had before.
    pub(super) fn take(&self) -> MutexGuard<'_, Workspace> {
        let mut workspace = self.free();
        if let Some(room) = &mut workspace.cluster {
            room.forget();
        }
        workspace
    }

    fn free(&self) -> MutexGuard<'_, Workspace> {
        let count = self.places.len();
        let mine = usual_place() % count;
        for nth in 0..count {
            if let Some(workspace) = self.places[(mine + nth) % count].workspace.try_lock() {
                return workspace;
            }
        }
        self.places[mine].workspace.lock()
    }

    /// The counters of a workspace, for the request that has it.
    pub(super) fn counters(&self, workspace: &Workspace) -> &Counters {
        &self.places[workspace.number].counters
    }

    /// The sum of a counter.
    pub(super) fn sum(&self, counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        self.places.iter().map(|place| counter(&place.counters).load(Ordering::Relaxed)).sum()
    }
}

/// A number of this thread's own, counted up from 0.
fn usual_place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PLACE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    PLACE.with(|place| {
        if place.get() == usize::MAX {
            place.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        place.get()
    })
}
