//! Traces that `ramfold run --object-trace` made.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ramfold_store::{Event, TRACE_MAGIC, events};

use super::trace::{Point, Step, Trace};
use crate::machine::counters::available_bytes;

const NO_TRACE: &str = "it is no trace of objects, or one of another version or machine";

/// Objects by where they lie, as numbers that are used again.
#[derive(Default)]
struct Objects {
    by_place: HashMap<u64, u32>,
    /// Each one's length, and how many places it has: two while it moves.
    all: Vec<(u16, u32)>,
    unused: Vec<u32>,
}

impl Objects {
    fn put(&mut self, place: u64, len: u16) -> Result<u32> {
        let id = self.unused.pop().unwrap_or(self.all.len() as u32);
        if id as usize == self.all.len() {
            self.all.push((0, 0));
        }
        self.all[id as usize] = (len, 1);
        self.lay(id, place)?;
        Ok(id)
    }

    fn lay(&mut self, id: u32, place: u64) -> Result<()> {
        match self.by_place.entry(place) {
            Entry::Vacant(free) => {
                free.insert(id);
                Ok(())
            }
            Entry::Occupied(_) => bail!("two objects in one place"),
        }
    }

    fn copy(&mut self, from: u64, to: u64) -> Result<()> {
        let id = *self.by_place.get(&from).context("an object moved that was not there")?;
        self.all[id as usize].1 += 1;
        self.lay(id, to)
    }

    /// The object and its length, if that was its last place.
    fn free(&mut self, place: u64) -> Result<Option<(u32, u16)>> {
        let id = self.by_place.remove(&place).context("what is freed was not there")?;
        let (len, places) = &mut self.all[id as usize];
        *places -= 1;
        if *places > 0 {
            return Ok(None);
        }
        self.unused.push(id);
        Ok(Some((id, *len)))
    }
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// When the file cannot be read, or is no trace.
    pub(super) fn read(path: &Path) -> Result<Trace> {
        let of_file = || format!("trace {}", path.display());
        let mut file = BufReader::with_capacity(1 << 20, File::open(path).with_context(of_file)?);
        let mut failed = None;
        let mut words = std::iter::from_fn(|| {
            let mut word = [0; 8];
            match file.read_exact(&mut word) {
                Ok(()) => Some(u64::from_ne_bytes(word)),
                Err(error) => {
                    failed = Some(error).filter(|error| error.kind() != ErrorKind::UnexpectedEof);
                    None
                }
            }
        });
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let begins = words.next() == Some(TRACE_MAGIC);
        let available = available_bytes()?;
        let trace =
            if begins { Trace::of_words(&name, words, available) } else { Err(anyhow!(NO_TRACE)) };
        failed.map_or(trace, |error| Err(error.into())).with_context(of_file)
    }

    /// With points after each quarter of the steps, and where the objects had the most bytes.
    fn of_words(
        name: &str,
        words: impl Iterator<Item = u64>,
        available_bytes: u64,
    ) -> Result<Trace> {
        let mut objects = Objects::default();
        let mut steps = Vec::new();
        let (mut bytes, mut most, mut most_at) = (0u64, 0, 0);
        let mut ended = false;
        for (number, event) in events(words).enumerate() {
            let at = || format!("event {number}");
            match event? {
                Event::Put { place, len } => {
                    let len = u16::try_from(len).with_context(at)?;
                    steps.push(Step::Put { id: objects.put(place, len).with_context(at)?, len });
                    bytes += u64::from(len);
                }
                Event::Free { place } => {
                    if let Some((id, len)) = objects.free(place).with_context(at)? {
                        steps.push(Step::Free { id });
                        bytes -= u64::from(len);
                    }
                }
                Event::Move { from, to } => objects.copy(from, to).with_context(at)?,
                Event::Compact => steps.push(Step::Compact),
                Event::End { whole } => {
                    ended = whole;
                    break;
                }
            }
            if bytes > most {
                (most, most_at) = (bytes, steps.len());
            }
        }
        ensure!(!steps.is_empty(), "there is no event in it");
        ensure!(
            most <= available_bytes / 2,
            "it has {} MiB of objects at a time, and {} MiB of memory are available for twice as \
             much",
            most >> 20,
            available_bytes >> 20
        );
        let name = if ended { name.to_owned() } else { format!("{name} (its beginning)") };
        let mut points = vec![(most_at, Point::Most)];
        for (quarter, point) in
            (1..).zip([Point::Quarter, Point::Half, Point::ThreeQuarters, Point::End])
        {
            points.push((steps.len() * quarter / 4, point));
        }
        // From behind, so that places stay; of two at the same place the first is to come first.
        points.sort_by_key(|(at, _)| *at);
        for (at, point) in points.into_iter().rev() {
            steps.insert(at, Step::Point(point));
        }
        Ok(Trace { name, objects: objects.all.len() as u32, steps })
    }
}

#[cfg(test)]
mod tests {
    use ramfold_store::{Config, ObjectRing, Recorder, Store};

    use super::super::replay::measure;
    use super::*;
    use crate::content::random::Random;

    fn file(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
        [TRACE_MAGIC].into_iter().chain(words).flat_map(u64::to_ne_bytes).collect()
    }

    /// What a store records while objects come, go and move, as a file has it.
    fn recording(ring: &'static ObjectRing, change: impl FnOnce(&Store)) -> Vec<u8> {
        ring.want();
        let mut store = Store::new(&Config {
            pool_bytes_max: 64 << 20,
            reserve_bytes: 0,
            metadata_bytes_max: 16 << 20,
            spill: None,
        })
        .unwrap();
        store.record_objects(Recorder::of(ring));
        change(&store);
        drop(store);
        file(ring.take().chain([Event::end_word(true)]))
    }

    fn churn(store: &Store) {
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let key = random.below(4_000) as u64;
            if random.below(3) == 0 {
                store.invalidate(key);
            } else {
                store.store_object(key, 1, &vec![7; 1 + random.below(4096)]).unwrap();
            }
        }
        (0..3_500).filter(|&key| store.invalidate(key)).count();
        assert!(store.compact(|| true) > 0);
    }

    #[test]
    fn every_allocator_can_do_what_was_recorded() {
        static RING: ObjectRing = ObjectRing::new();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects");
        std::fs::write(&path, recording(&RING, churn)).unwrap();
        let trace = Trace::read(&path).unwrap();
        assert_eq!(trace.name, "objects");
        assert!((2_000..4_000).contains(&trace.objects), "{}", trace.objects);
        let count = |wanted: fn(&Step) -> bool| trace.steps.iter().filter(|s| wanted(s)).count();
        assert_eq!(count(|step| *step == Step::Compact), 1);
        let puts = count(|step| matches!(step, Step::Put { .. }));
        let frees = count(|step| matches!(step, Step::Free { .. }));
        assert!(puts > 13_000 && (200..500).contains(&(puts - frees)), "{puts} {frees}");
        let rows = measure(&[trace], |_| {}).unwrap();
        let ours: Vec<_> = rows.iter().filter(|row| row.allocator == "size-classes").collect();
        let points: Vec<&str> = ours.iter().map(|row| row.after).collect();
        assert_eq!(points.len(), 5);
        assert_eq!(points[4], "end");
        let most = ours.iter().find(|row| row.after == "most bytes").unwrap();
        assert!(ours.iter().all(|row| row.compressed_bytes <= most.compressed_bytes));
        assert_eq!(ours[4].objects as usize, puts - frees);
    }

    #[test]
    fn a_trace_that_only_grows_ends_with_its_end() {
        static RING: ObjectRing = ObjectRing::new();
        let grows = |store: &Store| {
            (0..10).for_each(|key| store.store_object(key, 1, &[1; 100]).unwrap());
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects");
        std::fs::write(&path, recording(&RING, grows)).unwrap();
        let points: Vec<&str> = measure(&[Trace::read(&path).unwrap()], |_| {})
            .unwrap()
            .iter()
            .map(|row| row.after)
            .collect();
        assert_eq!(points[..5], ["1/4", "1/2", "3/4", "most bytes", "end"]);
    }

    #[test]
    fn what_this_machine_has_no_memory_for_is_told_before() {
        let words = || (1..=1000).map(|at| 1 << 48 | at << 13 | 4096);
        assert!(Trace::of_words("objects", words(), 8192 * 1000).is_ok());
        let error = Trace::of_words("objects", words(), 8192 * 999).map(drop).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("3 MiB of objects at a time, and 7 MiB of memory are available"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_trace_is_refused_with_a_reason() {
        static RING: ObjectRing = ObjectRing::new();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects");
        let error = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            format!("{:#}", Trace::read(&path).map(drop).unwrap_err())
        };
        for bad in [b"short".as_slice(), &[0; 100], &[7; 100]] {
            assert!(error(bad).contains("no trace of objects"));
        }
        for empty in [file([]), file([Event::end_word(true)])] {
            assert!(error(&empty).contains("there is no event in it"));
        }
        let recording = recording(&RING, churn);
        let (head, rest) = recording.split_at(8);
        let mut damaged = recording.clone();
        damaged[8 + 87] = 0xee;
        assert!(error(&damaged).contains("word 10 "), "{}", error(&damaged));
        // An event twice.
        let twice = [head, &rest[..8], rest].concat();
        assert!(error(&twice).contains("event 1: two objects in one place"), "{}", error(&twice));
        // Told, or another trace; no panic.
        let mut random = Random::new(4);
        let accepted = (0..60).filter(|_| {
            let mut damaged = recording.clone();
            damaged[8 + random.below(rest.len())] ^= 1 << random.below(8);
            std::fs::write(&path, damaged).unwrap();
            Trace::read(&path).is_ok_and(|trace| measure(&[trace], |_| {}).is_ok())
        });
        assert!((2..58).contains(&accepted.count()));
        // Cut off anywhere it is a shorter trace.
        std::fs::write(&path, &recording[..recording.len() - 1001]).unwrap();
        assert_eq!(Trace::read(&path).unwrap().name, "objects (its beginning)");
    }
}
