//! Cleaning: what is left of segments that are nearly empty is moved together.

use super::batch::Item;
use super::{Claims, Disk, Space, Spill, SpillCipher, SpillError, Spilled};
use crate::Store;
use crate::index::{LEAF_ENTRIES, View};

/// Most segments that are cleaned at once.
const CLEANED_AT_ONCE: usize = 16;

impl<D: Disk, C: Claims> Spill<'_, D, C> {
    /// Moves the objects of several segments that are nearly empty into one. Returns whether there
    /// was something to gain.
    ///
    /// # Errors
    /// Why a segment could not be read, or the batch not be written. Its objects stay where they
    /// were.
    pub(crate) fn clean(
        &mut self,
        store: &Store,
        cipher: &SpillCipher,
    ) -> Result<bool, SpillError> {
        self.finish(store)?;
        let Some(victims) = self.victims(store) else { return Ok(false) };
        let segment = self.spare.take().or_else(|| self.claim(store)).ok_or(SpillError::Full)?;
        self.begin(store, segment)?;
        if let Err(error) = self.copy_rest(store, cipher, &victims) {
            self.give_up(store, segment);
            return Err(error);
        }
        self.send(store, cipher, true)?;
        self.finish(store)?;
        self.release_empty(store);
        self.spare = self.claims.claim();
        Ok(true)
    }

    /// The segments with the fewest live units, as many as fit into one segment together; `None`
    /// where no segment would become free.
    fn victims(&self, store: &Store) -> Option<[Option<u32>; CLEANED_AT_ONCE]> {
        let mut victims = [None; CLEANED_AT_ONCE];
        let mut units = [u32::MAX; CLEANED_AT_ONCE];
        for number in store.space.segments() {
            let Some(usage) = store.space.usage(number) else { continue };
            // The emptiest ones so far, in order.
            let place = units.partition_point(|&units| units <= usage.live_units);
            if usage.live_units > 0 && place < CLEANED_AT_ONCE {
                victims[place..].rotate_right(1);
                units[place..].rotate_right(1);
                (victims[place], units[place]) = (Some(number), usage.live_units);
            }
        }
        let room = (store.space.segment_bytes() / Space::UNIT_BYTES as usize) as u32;
        let (mut total, mut count) = (0, 0);
        while count < CLEANED_AT_ONCE && units[count] < room && total + units[count] <= room {
            total += units[count];
            count += 1;
        }
        victims[count..].fill(None);
        (count >= 2).then_some(victims)
    }

    /// Copies the objects of some segments of the file into the batch.
    fn copy_rest(
        &mut self,
        store: &Store,
        cipher: &SpillCipher,
        victims: &[Option<u32>],
    ) -> Result<(), SpillError> {
        let (one, other) = self.batches.split_at_mut(1);
        let (batch, rest) = match self.next {
            0 => (&mut one[0], &mut other[0]),
            _ => (&mut other[0], &mut one[0]),
        };
        rest.clear();
        let is_victim = |place| victims.contains(&store.space.segment_number(place));
        for number in store.index.leaf_numbers() {
            store.index.visit_leaf(number, 0..LEAF_ENTRIES, |key, bits, view| match view {
                View::Spilled { place, encoding, .. } if is_victim(place) => {
                    // An object that finds no room stays where it is.
                    rest.list(key, bits, place, encoding)
                }
                _ => true,
            });
        }
        for &victim in victims.iter().flatten() {
            let Some(usage) = store.space.usage(victim) else { continue };
            let first_unit = store.space.first_unit(victim);
            let offset = u64::from(first_unit) * Space::UNIT_BYTES;
            let len = (usage.written_units as usize * Space::UNIT_BYTES as usize)
                .next_multiple_of(ramfold_sys::PAGE_SIZE);
            let (buffer, listed) = rest.listed();
            let bytes = &mut buffer[..len];
            self.disk.read(offset, bytes).map_err(|errno| SpillError::Read {
                offset,
                len,
                errno,
            })?;
            let here = |item: &&Item| store.space.segment_number(item.place()) == Some(victim);
            for item in listed.iter().filter(here) {
                let (place, range) = (item.place(), item.place().file_range());
                let extent = bytes
                    .get_mut((range.start - offset) as usize..(range.end - offset) as usize)
                    .ok_or(SpillError::Damaged { range })?;
                let Some(sequence) = store.space.sequence(place) else { continue };
                let spilled = Spilled::new(place, item.encoding, sequence);
                batch.push(item.key, item.bits, item.encoding, cipher.open(spilled, extent)?);
            }
        }
        Ok(())
    }
}
