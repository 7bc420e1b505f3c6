//! Traces that `ramfold run --object-trace` made.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ramfold_store::{Event, TRACE_HEAD_BYTES, events, words_asked};

use super::trace::{Point, Step, Trace};

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
    pub fn read(path: &Path) -> Result<Trace> {
        let of_file = || format!("trace {}", path.display());
        let mut file = BufReader::with_capacity(1 << 20, File::open(path).with_context(of_file)?);
        let mut head = [0; TRACE_HEAD_BYTES];
        match file.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                bail!("{}: it is too short for a trace of objects", of_file())
            }
            read => read.with_context(of_file)?,
        }
        ensure!(words_asked(&head).with_context(of_file)? > 0, "{}: it is empty", of_file());
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let mut failed = None;
        let words = std::iter::from_fn(|| {
            let mut word = [0; 8];
            match file.read_exact(&mut word) {
                Ok(()) => Some(u64::from_ne_bytes(word)),
                Err(error) => {
                    failed = Some(error).filter(|error| error.kind() != ErrorKind::UnexpectedEof);
                    None
                }
            }
        });
        let trace = Trace::of_words(&name, words).with_context(of_file);
        failed.map_or(trace, |error| Err(error).with_context(of_file))
    }

    /// With points after each quarter of the steps, and where the objects had the most bytes.
    fn of_words(name: &str, words: impl Iterator<Item = u64>) -> Result<Trace> {
        let mut objects = Objects::default();
        let mut steps = Vec::new();
        let (mut bytes, mut most, mut most_at) = (0u64, 0, 0);
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
            }
            if bytes > most {
                (most, most_at) = (bytes, steps.len());
            }
        }
        ensure!(!steps.is_empty(), "there is no event in it");
        let mut points = vec![(most_at, Point::Most)];
        for (quarter, point) in
            (1..).zip([Point::Quarter, Point::Half, Point::Quarters, Point::End])
        {
            points.push((steps.len() * quarter / 4, point));
        }
        points.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, point) in points {
            steps.insert(at, Step::Point(point));
        }
        Ok(Trace { name: name.to_owned(), objects: objects.all.len() as u32, steps })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use ramfold_store::{Config, Recorder, Store};

    use super::super::measure;
    use super::*;
    use crate::random::Random;

    /// What a store records while objects come, go and move, as a file has it.
    fn recording() -> Vec<u8> {
        let words: &[_] = Vec::leak((0..100_000).map(|_| AtomicU64::new(0)).collect());
        let mut store = Store::new(&Config {
            pool_bytes_max: 64 << 20,
            reserve_bytes: 0,
            metadata_bytes_max: 16 << 20,
            spill: None,
        })
        .unwrap();
        store.record_objects(Recorder::begin(words).unwrap());
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
        drop(store);
        let asked = words[1].load(Ordering::Relaxed) as usize;
        let count = TRACE_HEAD_BYTES / 8 + asked;
        words[..count].iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    #[test]
    fn every_allocator_can_do_what_was_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects");
        std::fs::write(&path, recording()).unwrap();
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
    fn what_is_no_trace_is_refused_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects");
        let error = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            format!("{:#}", Trace::read(&path).map(drop).unwrap_err())
        };
        assert!(error(b"short").contains("too short"));
        assert!(error(&[0; 100]).contains("empty"));
        assert!(error(&[7; 100]).contains("no trace of objects"));
        let recording = recording();
        let mut damaged = recording.clone();
        damaged[TRACE_HEAD_BYTES + 87] = 0xee;
        assert!(error(&damaged).contains("word 10 "), "{}", error(&damaged));
        // An event twice.
        let (head, rest) = recording.split_at(TRACE_HEAD_BYTES);
        let twice = [head, &rest[..8], rest].concat();
        assert!(error(&twice).contains("event 1: two objects in one place"), "{}", error(&twice));
        let mut random = Random::new(4);
        for _ in 0..300 {
            let mut damaged = recording.clone();
            let at = TRACE_HEAD_BYTES + random.below(rest.len());
            damaged[at] ^= 1 << random.below(8);
            std::fs::write(&path, damaged).unwrap();
            // Told, or another trace; no panic.
            let _ = Trace::read(&path);
        }
        // Cut off anywhere it is a shorter trace.
        std::fs::write(&path, &recording[..recording.len() - 1001]).unwrap();
        assert!(Trace::read(&path).is_ok());
    }
}
