//! Clusters in the store: several pages as one object, cut into pieces under the keys of those
//! pages.
//!
//! An owner's pages have neighbouring keys, its first page a key that is a multiple of 4 or 16, as
//! its pages are few or many. A cluster of 1, 4 or 16 pages begins at a multiple of its size. Its
//! first key has the first piece, whose encoding tells the size; the rest lie under the keys that
//! follow.
//!
//! ```text
//! first piece:   [ format 1 | pieces 1 | object ... ]      encoding 10, 11, 12: 1, 4, 16 pages
//! others:        [ object goes on ... ]                    encoding 13
//! ```
//!
//! Format 0 is one word of 64 bits, again and again.

use ramfold_codec::cluster::{BYTES_MAX, ClusterSize};
use ramfold_codec::{DecodeError, Encoding, PAGE_SIZE, encodings};
use ramfold_engine::ClusterDecompressor;
use ramfold_policy::files::history::History;
use ramfold_store::{Key, LoadError, Loaded, Neighbours, Store, StoreError};

const HEADER: usize = 2;
const FORMAT_WORD: u8 = encodings::WORD;
const ENCODING_REST: u8 = encodings::CLUSTER_REST;

/// Most bytes that a cluster's object may have to be worth storing: a longer one saves too little
/// for what it costs to decompress it.
pub(crate) fn object_bytes_max(size: ClusterSize) -> usize {
    size.bytes() / 16 * 15 - HEADER
}

fn encoding_of(size: ClusterSize) -> u8 {
    encodings::of_cluster(size)
}

/// First key of the cluster of that size that a key is in.
pub(crate) fn first_key(key: Key, size: ClusterSize) -> Key {
    key & !(size.pages() as Key - 1)
}

/// What a cluster is stored as.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Object<'a> {
    /// One word of 64 bits, repeated.
    SameFilled(u64),
    Compressed {
        encoding: Encoding,
        bytes: &'a [u8],
    },
}

impl Object<'_> {
    /// What it takes, without the header and the store's seals.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Object::SameFilled(word) => size_of_val(word) as u64,
            Object::Compressed { bytes, .. } => bytes.len() as u64,
        }
    }
}

/// Why a cluster cannot be had though something is stored. It is never handed out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DamagedCluster {
    /// The store has found a piece damaged.
    #[error(transparent)]
    Store(#[from] LoadError),
    /// Pieces are missing, or are of different clusters.
    #[error("the pieces of the cluster at key {key:#x} do not belong together")]
    Pieces {
        /// The cluster's first key in the store.
        key: Key,
    },
    /// The codec cannot decompress the object.
    #[error("the cluster at key {key:#x} cannot be decompressed: {source}")]
    Decode {
        /// The cluster's first key in the store.
        key: Key,
        /// What the codec says.
        source: DecodeError,
    },
}

/// A cluster's object, copied out of the store: nobody waits while it is decompressed.
pub(crate) struct StoredCluster {
    pub(crate) first: Key,
    pub(crate) size: ClusterSize,
    /// This read included.
    pub(crate) history: History,
    format: u8,
    len: usize,
}

/// Memory in which clusters are found and decompressed. One for each thread that reads.
pub(crate) struct Workspace {
    object: Box<[u8]>,
    decompressor: ClusterDecompressor,
}

impl Workspace {
    pub(crate) fn new() -> Workspace {
        Workspace { object: vec![0; BYTES_MAX].into(), decompressor: ClusterDecompressor::new() }
    }

    /// The object of the cluster that a key is in, if it is stored.
    pub(crate) fn find(
        &mut self,
        store: &Store,
        key: Key,
    ) -> Result<Option<StoredCluster>, DamagedCluster> {
        store.neighbours(key, |neighbours| {
            for size in ClusterSize::ALL {
                let first = first_key(key, size);
                if let Some(found) = self.copy(neighbours, first, size)? {
                    neighbours.set_mark(first, found.history.bits());
                    return Ok(Some(found));
                }
            }
            Ok(None)
        })
    }

    /// Copies the cluster of that size that begins at a key, if one does.
    fn copy(
        &mut self,
        neighbours: &mut Neighbours<'_>,
        first: Key,
        size: ClusterSize,
    ) -> Result<Option<StoredCluster>, DamagedCluster> {
        if neighbours.encoding(first) != Some(encoding_of(size)) {
            return Ok(None);
        }
        let damaged = || DamagedCluster::Pieces { key: first };
        let (format, pieces, mut len) = match neighbours.load(first)? {
            Some(Loaded::Object { bytes, .. }) => {
                let (&[format, pieces], rest) =
                    bytes.split_first_chunk::<HEADER>().ok_or_else(damaged)?;
                self.object.get_mut(..rest.len()).ok_or_else(damaged)?.copy_from_slice(rest);
                (format, u64::from(pieces), rest.len())
            }
            _ => return Ok(None),
        };
        for key in first + 1..first + pieces {
            match neighbours.load(key)? {
                Some(Loaded::Object { encoding: ENCODING_REST, bytes }) => {
                    let place =
                        self.object.get_mut(len..).and_then(|room| room.get_mut(..bytes.len()));
                    place.ok_or_else(damaged)?.copy_from_slice(bytes);
                    len += bytes.len();
                }
                _ => return Err(damaged()),
            }
        }
        let history = History::from_bits(neighbours.mark(first)).read();
        Ok(Some(StoredCluster { first, size, history, format, len }))
    }

    /// Decompresses what was found last into `cluster`, of its size.
    pub(crate) fn decompress(
        &mut self,
        found: &StoredCluster,
        cluster: &mut [u8],
    ) -> Result<(), DamagedCluster> {
        let key = found.first;
        let object = &self.object[..found.len];
        if found.format == FORMAT_WORD {
            let word: [u8; 8] = object.try_into().map_err(|_| DamagedCluster::Pieces { key })?;
            cluster.as_chunks_mut().0.fill(word);
            return Ok(());
        }
        let decode = |source| DamagedCluster::Decode { key, source };
        let encoding =
            Encoding::try_from(found.format).map_err(|_| DamagedCluster::Pieces { key })?;
        self.decompressor.decompress(encoding, object, cluster).map_err(decode)
    }
}

/// Stores a cluster, in place of whatever the keys of its pages had, and of a larger one that they
/// are in. Nobody else may store anything of the same owner meanwhile.
///
/// # Errors
/// As [`Store::replace_neighbours`]; then nothing has changed.
pub(crate) fn put(
    store: &Store,
    first: Key,
    size: ClusterSize,
    object: Object<'_>,
    history: History,
) -> Result<(), StoreError> {
    let word;
    let (format, bytes) = match object {
        Object::SameFilled(value) => {
            word = value.to_le_bytes();
            (FORMAT_WORD, &word[..])
        }
        Object::Compressed { encoding, bytes } => (u8::from(encoding), bytes),
    };
    // Pieces of the same length: a slot for a whole page would be left with the rest in a small
    // one.
    let count = (HEADER + bytes.len()).div_ceil(PAGE_SIZE);
    let piece = (HEADER + bytes.len()).div_ceil(count);
    let (start, rest) = bytes.split_at(bytes.len().min(piece - HEADER));
    let mut first_piece = [0; PAGE_SIZE];
    first_piece[..HEADER].copy_from_slice(&[format, count as u8]);
    first_piece[HEADER..][..start.len()].copy_from_slice(start);
    let mut pieces = [(ENCODING_REST, &[][..]); ClusterSize::Sixteen.pages()];
    pieces[0] = (encoding_of(size), &first_piece[..HEADER + start.len()]);
    for (place, bytes) in pieces[1..].iter_mut().zip(rest.chunks(piece)) {
        place.1 = bytes;
    }
    for larger in ClusterSize::ALL.into_iter().filter(|larger| *larger > size) {
        let around = first_key(first, larger);
        if history_of(store, around, larger).is_some() {
            store.replace_neighbours(around, larger.pages(), &[], 0)?;
        }
    }
    store.replace_neighbours(first, size.pages(), &pieces[..count], history.bits())
}

/// Takes a cluster out of the store and leaves a ghost.
pub(crate) fn evict(store: &Store, first: Key, size: ClusterSize, ghost: History) {
    // A ghost needs a leaf, which is there: the cluster's own.
    let _ = store.replace_neighbours(first, size.pages(), &[], ghost.bits());
}

/// The history of a cluster, if one of that size begins at a key.
pub(crate) fn history_of(store: &Store, first: Key, size: ClusterSize) -> Option<History> {
    store.neighbours(first, |neighbours| {
        let is_there = neighbours.encoding(first) == Some(encoding_of(size));
        is_there.then(|| History::from_bits(neighbours.mark(first)))
    })
}

/// Calls `each` with the clusters and ghosts (without a size) of a group, and notes the histories
/// that it returns. A ghost for which it returns `None` is forgotten.
pub(crate) fn update_group(
    store: &Store,
    group: Key,
    mut each: impl FnMut(Key, Option<ClusterSize>, History) -> Option<History>,
) {
    store.neighbours(group, |neighbours| {
        for key in group..=group | 63 {
            let encoding = neighbours.encoding(key);
            let size =
                ClusterSize::ALL.into_iter().find(|size| encoding == Some(encoding_of(*size)));
            let history = History::from_bits(neighbours.mark(key));
            if size.is_none() && !history.is_ghost() {
                continue;
            }
            match each(key, size, history) {
                Some(changed) if changed != history => neighbours.set_mark(key, changed.bits()),
                Some(_) => {}
                None => neighbours.forget_ghost(key),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use ramfold_codec::ZstdLevel;
    use ramfold_codec::cluster::{self, ClusterCodec};
    use ramfold_store::Config;

    use super::*;

    fn store() -> Store {
        let pool_bytes_max = 16 << 20;
        let metadata_bytes_max = 4 << 20;
        Store::new(&Config { pool_bytes_max, reserve_bytes: 0, metadata_bytes_max, spill: None })
            .unwrap()
    }

    /// Content that compresses to about `percent` of its size.
    fn content(size: ClusterSize, percent: usize, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut bytes = vec![seed as u8; size.bytes()];
        for chunk in bytes.chunks_mut(100) {
            let random = chunk.len() * percent / 100;
            for byte in &mut chunk[..random] {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *byte = state as u8;
            }
        }
        bytes
    }

    fn put_content(store: &Store, first: Key, size: ClusterSize, content: &[u8]) {
        let codec = ClusterCodec::Zstd(ZstdLevel::FASTEST);
        let mut scratch = vec![0; cluster::compress_scratch_bytes(codec, size)];
        let mut object = vec![0; object_bytes_max(size)];
        let length = cluster::Compressor::new(codec, size, &mut scratch)
            .unwrap()
            .compress(content, &mut object)
            .unwrap();
        let bytes = &object[..length];
        let object = Object::Compressed { encoding: codec.encoding(), bytes };
        put(store, first, size, object, History::NEW).unwrap();
    }

    fn get(store: &Store, key: Key) -> Option<(StoredCluster, Vec<u8>)> {
        let mut workspace = Workspace::new();
        let found = workspace.find(store, key).unwrap()?;
        let mut cluster = vec![0xee; found.size.bytes()];
        workspace.decompress(&found, &mut cluster).unwrap();
        Some((found, cluster))
    }

    #[test]
    fn every_page_finds_its_cluster() {
        let store = store();
        for (nth, size) in (0..).zip(ClusterSize::ALL.into_iter().cycle().take(9)) {
            let percent = [0, 30, 85][nth as usize / 3];
            let (first, expected) = (64 * nth + 16, content(size, percent, nth));
            put_content(&store, first, size, &expected);
            for page in 0..size.pages() as Key {
                let (found, cluster) = get(&store, first + page).unwrap();
                assert_eq!((found.first, found.size), (first, size));
                assert_eq!(u64::from(found.history.reads()), (page + 1).min(3));
                assert!(cluster == expected);
            }
            assert!(get(&store, first - 1).is_none());
            assert!(get(&store, first + size.pages() as Key).is_none());
            let mut seen = Vec::new();
            update_group(&store, 64 * nth, |key, size, history| {
                seen.push((key, size));
                Some(history)
            });
            assert_eq!(seen, [(first, Some(size))]);
        }
        let word = 0x0123_4567_89ab_cdef;
        put(&store, 0, ClusterSize::Sixteen, Object::SameFilled(word), History::RETURNING).unwrap();
        let (found, cluster) = get(&store, 7).unwrap();
        assert!(found.history.is_main());
        assert!(cluster.chunks(8).all(|bytes| bytes == word.to_le_bytes()));
    }

    #[test]
    fn a_cluster_replaces_what_was_there_and_leaves_a_ghost() {
        let store = store();
        for page in 0..16 {
            put_content(&store, page, ClusterSize::One, &content(ClusterSize::One, 20, page));
        }
        let large = content(ClusterSize::Sixteen, 80, 99);
        put_content(&store, 0, ClusterSize::Sixteen, &large);
        assert!(get(&store, 9).unwrap().1 == large);
        evict(&store, 0, ClusterSize::Sixteen, History::ghost(5));
        assert!((0..16).all(|key| get(&store, key).is_none()));
        assert_eq!(store.statistics().objects, 0);
        let mut seen = Vec::new();
        for _ in 0..2 {
            update_group(&store, 0, |key, size, history| {
                seen.push((key, size, history.ages_since(7)));
                None
            });
        }
        assert_eq!(seen, [(0, None, 2)]);
        assert_eq!(store.statistics().leaves, 0);
    }

    #[test]
    fn pieces_that_do_not_belong_together_are_an_error() {
        let store = store();
        let expected = content(ClusterSize::Sixteen, 80, 1);
        put_content(&store, 0, ClusterSize::Sixteen, &expected);
        store.invalidate(5);
        assert!(matches!(Workspace::new().find(&store, 3), Err(DamagedCluster::Pieces { key: 0 })));
        // A piece too few, and what is no object at all.
        for (format, pieces, bytes) in [(1, 1, &[0; 100][..]), (77, 1, &[1]), (0, 1, &[1; 9])] {
            let object = [&[format, pieces], bytes].concat();
            store.replace_neighbours(0, 16, &[(12, &object)], 0).unwrap();
            let mut workspace = Workspace::new();
            let found = workspace.find(&store, 0).unwrap().unwrap();
            assert!(workspace.decompress(&found, &mut vec![0; 65536]).is_err());
        }
        store.replace_neighbours(0, 4, &[(11, &[2])], 0).unwrap();
        assert!(Workspace::new().find(&store, 0).is_err());
    }
}
