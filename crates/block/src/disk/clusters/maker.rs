//! How clusters are made of pages that have become cold.

use std::sync::atomic::Ordering;

use ramfold_codec::{Page, ScratchError};
use ramfold_engine::ClusterCompressor;
use ramfold_store::{Key, Loaded, StoredWhen, Together, charged_bytes};

use super::{BYTES, CODEC, Clusters, HEADER, SIZE, UNIT, is_piece, piece_at};
use crate::disk::pages::SHARED;
use crate::disk::workspace::Coder;
use crate::disk::{GROUP, Inner, PAGE};

/// A cluster must be smaller than its pages by this part of them.
const WORTH_PART: usize = 16;

/// What clusters are made with.
pub(in crate::disk) struct Maker {
    compressor: ClusterCompressor,
    content: Box<[u8; BYTES]>,
    /// The pages' objects.
    before: Box<[u8; BYTES]>,
    /// The cluster's object.
    object: Box<[u8; BYTES]>,
}

/// The objects of four pages: encoding and length of each.
type Objects = [(u8, usize); UNIT as usize];

impl Maker {
    pub(in crate::disk) fn new() -> Result<Maker, ScratchError> {
        Ok(Maker {
            compressor: ClusterCompressor::new(CODEC, SIZE)?,
            content: Box::new([0; BYTES]),
            before: Box::new([0; BYTES]),
            object: Box::new([0; BYTES]),
        })
    }

    pub(in crate::disk) fn bytes() -> usize {
        3 * BYTES + ClusterCompressor::bytes(CODEC, SIZE)
    }

    /// Makes clusters of a group's units that are used whole.
    pub(in crate::disk) fn make_clusters(
        &mut self,
        inner: &Inner,
        coder: &mut Coder,
        group: Key,
    ) -> Together {
        let Some(clusters) = inner.clusters.as_ref().filter(|_| group < SHARED) else {
            return Together::Nothing;
        };
        let mut together = Together::Nothing;
        for first in (group..group + GROUP).step_by(UNIT as usize) {
            if clusters.is_used_whole(first / UNIT) {
                match self.make(inner, clusters, coder, first) {
                    Together::NoRoom => return Together::NoRoom,
                    Together::Tried => together = Together::Tried,
                    Together::Nothing => {}
                }
            }
        }
        together
    }

    /// Makes a cluster of the unit that begins at a page, if it has four objects and takes less
    /// then.
    fn make(
        &mut self,
        inner: &Inner,
        clusters: &Clusters,
        coder: &mut Coder,
        first: u64,
    ) -> Together {
        let Some(objects) = self.copy_objects(inner, first) else { return Together::Tried };
        let Some(len) = self.compress(coder, &objects) else { return Together::Tried };
        let object = &self.object[..len];
        let cut = |nth: usize| len * nth / UNIT as usize;
        let pieces: [_; UNIT as usize] = std::array::from_fn(|nth| {
            (piece_at(first + nth as u64), &object[cut(nth)..cut(nth + 1)])
        });
        let bytes = |lens: &mut dyn Iterator<Item = usize>| lens.map(charged_bytes).sum::<usize>();
        let before = bytes(&mut objects.iter().map(|&(_, len)| len));
        let after = bytes(&mut pieces.iter().map(|(_, piece)| piece.len()));
        let is_empty = pieces.iter().any(|(_, piece)| piece.is_empty());
        if is_empty || after > before - before / WORTH_PART {
            return Together::Tried;
        }
        // It was compressed without the lock.
        let _lock = inner.locks.lock(first);
        if !self.are_there(inner, first, &objects) {
            return Together::Tried;
        }
        // Counted first: the next holder of the lock looks for clusters only if there are any.
        clusters.count.fetch_add(1, Ordering::Relaxed);
        if inner.store.exchange_neighbours(first, &pieces, StoredWhen::AsBefore).is_ok() {
            inner.recompressed.fetch_add(UNIT, Ordering::Relaxed);
            return Together::Tried;
        }
        clusters.count.fetch_sub(1, Ordering::Relaxed);
        Together::NoRoom
    }

    /// Copies the objects of a unit, if each page has one of its own.
    fn copy_objects(&mut self, inner: &Inner, first: u64) -> Option<Objects> {
        let mut objects = Objects::default();
        let places = self.before.as_chunks_mut::<PAGE>().0;
        inner.store.neighbours(first, |pages| {
            for ((key, place), object) in (first..).zip(places).zip(&mut objects) {
                match pages.load(key) {
                    Ok(Some(Loaded::Object { encoding, bytes })) if !is_piece(encoding) => {
                        place[..bytes.len()].copy_from_slice(bytes);
                        *object = (encoding, bytes.len());
                    }
                    // One that is damaged stays, so that its next reader is told.
                    _ => return None,
                }
            }
            Some(())
        })?;
        Some(objects)
    }

    /// Whether a unit has the objects that were copied.
    fn are_there(&self, inner: &Inner, first: u64, objects: &Objects) -> bool {
        let places = self.before.as_chunks::<PAGE>().0;
        inner.store.neighbours(first, |pages| {
            (first..).zip(places).zip(objects).all(|((key, place), &(encoding, len))| {
                let found = pages.load(key);
                let copied = Loaded::Object { encoding, bytes: &place[..len] };
                matches!(found, Ok(Some(found)) if found == copied)
            })
        })
    }

    /// Compresses the copied objects' pages together. The length of the object, header included.
    fn compress(&mut self, coder: &mut Coder, objects: &Objects) -> Option<usize> {
        let Maker { compressor, content, before, object } = self;
        let pages = content.as_chunks_mut::<PAGE>().0;
        for ((&(encoding, len), place), page) in objects.iter().zip(before.as_chunks().0).zip(pages)
        {
            let place: &Page = place;
            coder.decompress(encoding, &place[..len], page).ok()?;
        }
        let len = compressor.compress(&content[..], &mut object[HEADER..]).ok()?;
        object[..HEADER].copy_from_slice(&[CODEC.encoding().into(), UNIT as u8]);
        Some(HEADER + len)
    }
}
