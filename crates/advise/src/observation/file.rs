//! Observations in files, to measure on one machine or day and to advise on another.
//!
//! A record is a trace of version 2 ([`ramfold_trace::recorded`]): its events are those of the
//! sampled pages, and its notes are the rest, as JSON.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use ramfold_trace::recorded::{AddressSpace, Header, Reader, What, Writer};
use tempfile::NamedTempFile;

use super::{BLOCK_PAGES, Observation};

/// Why an observation was not saved, or not loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is another file.
    #[error(
        "{} is there already and is no record of `ramfold advise`: it stays as it is; name another \
         file, or remove it first",
        path.display()
    )]
    IsOther {
        /// The file.
        path: PathBuf,
        /// What is wrong with it as a record.
        source: Box<Error>,
    },
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no whole trace.
    #[error("cannot read {} as a record of `ramfold advise`", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ramfold_trace::Error,
    },
    /// It is a trace and nothing else.
    #[error(
        "{} is a trace of page accesses and no record of `ramfold advise --record`: `ramfold \
         simulate` reads it",
        path.display()
    )]
    NoNotes {
        /// The file.
        path: PathBuf,
    },
    /// The notes are not what an observation is.
    #[error("the notes of {} are not those of a record: {why}; record it again", path.display())]
    Notes {
        /// The file.
        path: PathBuf,
        /// What is wrong with them.
        why: String,
    },
    /// Something in it cannot have been measured.
    #[error("the record {} makes no sense: {why}", path.display())]
    Senseless {
        /// The file.
        path: PathBuf,
        /// What.
        why: String,
    },
}

/// Saves it, for its owner alone: it shows what a program does. A record is replaced, another file
/// is not; a pipe or a device is written to.
///
/// # Errors
/// When it cannot be written, when there is another file, or when a number in it makes no sense.
pub fn save(path: &Path, observation: &Observation) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    observation.check().map_err(|why| Error::Senseless { path: path.to_owned(), why })?;
    let metadata = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    if metadata.as_ref().is_some_and(|metadata| !metadata.is_file()) {
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        return write(file, observation).map_err(failed);
    }
    // An empty one was made for this, by mktemp(1) for example.
    if metadata.is_some_and(|metadata| metadata.len() > 0)
        && let Err(error) = load(path)
    {
        return Err(Error::IsOther { path: path.to_owned(), source: Box::new(error) });
    }
    replace(path, observation).map_err(failed)
}

/// What fails in the middle leaves the file as it was.
fn replace(path: &Path, observation: &Observation) -> io::Result<()> {
    // Where the path is a symbolic link, the file that it leads to.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|path| !path.as_os_str().is_empty());
    // Of mode 0600.
    let mut new = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    write(&mut new, observation)?;
    new.persist(path)?;
    Ok(())
}

fn write(output: impl Write, observation: &Observation) -> io::Result<()> {
    let header = Header {
        kind: AddressSpace::Memory,
        one_in: observation.one_in,
        look_ns: 0,
        block_pages: BLOCK_PAGES as u32,
    };
    let mut writer = Writer::new(BufWriter::new(output), header)?;
    writer.write_notes(&serde_json::to_string(observation)?)?;
    for &event in &observation.events {
        writer.write(event)?;
    }
    writer.finish(0)?.flush()
}

/// Loads it. Its numbers are such as can be measured ([`Observation::check`]).
///
/// # Errors
/// When it is no record, is damaged, or has a number that makes no sense.
pub fn load(path: &Path) -> Result<Observation, Error> {
    let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let refused = |source| Error::Trace { path: path.to_owned(), source };
    let mut reader = Reader::new(BufReader::new(file)).map_err(refused)?;
    let events = reader.by_ref().collect::<Result<Vec<_>, _>>().map_err(refused)?;
    let notes = reader.notes().map_err(refused)?;
    if notes.is_empty() {
        return Err(Error::NoNotes { path: path.to_owned() });
    }
    let damaged = |why: String| Error::Notes { path: path.to_owned(), why };
    let mut observation: Observation =
        serde_json::from_str(notes).map_err(|error| damaged(error.to_string()))?;
    let header = reader.header();
    if header.one_in != observation.one_in || u64::from(header.block_pages) != BLOCK_PAGES {
        return Err(damaged("they say another sample than the trace".to_owned()));
    }
    observation.events = events;
    for event in &mut observation.events {
        if let What::Touched { watched_us } | What::Untouched { watched_us } = &mut event.what {
            // Longer than there is a trace it was not watched.
            *watched_us = (*watched_us).min(event.time_us);
        }
    }
    observation.check().map_err(|why| Error::Senseless { path: path.to_owned(), why })?;
    Ok(observation)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use proptest::prelude::*;
    use ramfold_model::is_block_sampled;
    use ramfold_model::rounds::{Look, Round};
    use ramfold_trace::recorded::Event;

    use super::*;
    use crate::observation::{Block, Contents, Machine, Size, Subject, Trial, WholeRun, Window};

    fn some() -> Observation {
        Observation {
            subject: Subject::Process {
                pid: 7,
                name: "sleep".to_owned(),
                arguments: vec!["sleep".to_owned(), "a b".to_owned()],
            },
            machine: Machine { processors: 2, memory_bytes: 1 << 34, kernel: "6.1".to_owned() },
            began_s: 1_790_000_000,
            seconds: 30.5,
            run: Some(WholeRun { wall_s: 30.5, processor_s: 20.25, observation_s: 0.1 }),
            need_bytes: 5 << 20,
            sizes: vec![Size { at_s: 0.0, bytes: 0 }, Size { at_s: 1.0 / 3.0, bytes: 5 << 20 }],
            contents: Contents {
                codecs: vec!["lz4".to_owned(), "zstd".to_owned()],
                blocks: vec![Block {
                    first_page: 1 << 40,
                    at_s: 0.7,
                    charged_bytes: vec![vec![0, 0], vec![4096, 1024]],
                }],
            },
            windows: vec![Window { seconds: 0.05, pages: 17.5 }],
            rounds: vec![Round {
                at_us: 3,
                pages: 9,
                looks: vec![Look { after_us: 2000, touched: 4, pages: 8 }],
            }],
            one_in: 1,
            trials: vec![Trial {
                memory_bytes: 4 << 20,
                codec: "lz4".to_owned(),
                wall_s: 36.5,
                at_least: false,
                processor_s: 22.5,
                pool_bytes: 1 << 18,
                faults: 1000,
                others: Some(0.75),
                failed: None,
            }],
            not_seen: vec!["what comes later".to_owned()],
            events: events(&[(3, 9, 2), (5, 1 << 45, 1), (5, 9, 3)]),
        }
    }

    fn events(of: &[(u64, u64, u64)]) -> Vec<Event> {
        let event = |&(time_us, page, kind)| {
            let watched_us = time_us / 2;
            let what = match kind % 5 {
                0 => What::Accessed,
                1 => What::Touched { watched_us },
                2 => What::Appeared,
                3 => What::Gone,
                _ => What::Untouched { watched_us },
            };
            Event { time_us, page, what }
        };
        of.iter().map(event).collect()
    }

    /// The file's name in a folder of its own.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        (folder, path)
    }

    fn refused(bytes: &[u8]) -> String {
        let (_folder, path) = place();
        fs::write(&path, bytes).unwrap();
        let error = load(&path).unwrap_err();
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", cause.unwrap_or_default())
    }

    fn bytes_of(observation: &Observation) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, observation).unwrap();
        bytes
    }

    fn observations() -> impl Strategy<Value = Observation> {
        let sizes = prop::collection::vec((0.0..1e6f64, 0..1u64 << 60), 0..30);
        let windows = prop::collection::vec((1e-6..1e6f64, 0.0..1e9f64), 0..30);
        let look = (any::<u64>(), 0..1u64 << 20, 0..1u64 << 20);
        let rounds = prop::collection::vec((0..99u64, prop::collection::vec(look, 0..5)), 0..9);
        let page = prop::collection::vec(0..=4096u16, 3);
        let block =
            (any::<u64>(), 0.0..1e6f64, prop::collection::vec(page, 1..=BLOCK_PAGES as usize));
        let blocks = prop::collection::vec(block, 0..20);
        let happened = prop::collection::vec((0..1u64 << 50, any::<u64>(), any::<u64>()), 0..200);
        let text = prop::collection::vec(any::<String>(), 0..4);
        (sizes, (windows, rounds), blocks, happened, text, 0..4u32, 1..=1u64 << 60).prop_map(
            |(mut sizes, (windows, rounds), blocks, mut happened, not_seen, level, need_bytes)| {
                let one_in = 1 << level;
                // A record has the blocks of its sample alone.
                happened.retain(|(_, page, _)| is_block_sampled(page / BLOCK_PAGES, one_in));
                sizes.sort_by(|one, other| one.0.total_cmp(&other.0));
                happened.sort_unstable();
                let block =
                    |(first_page, at_s, charged_bytes)| Block { first_page, at_s, charged_bytes };
                let look =
                    |(after_us, touched, more)| Look { after_us, touched, pages: touched + more };
                let mut at_us = 0;
                let round = |(later_us, looks): (u64, Vec<_>)| {
                    at_us += later_us + 1;
                    Round { at_us, pages: later_us, looks: looks.into_iter().map(look).collect() }
                };
                Observation {
                    rounds: rounds.into_iter().map(round).collect(),
                    subject: Subject::Program(not_seen.clone()),
                    need_bytes,
                    one_in,
                    sizes: sizes.into_iter().map(|(at_s, bytes)| Size { at_s, bytes }).collect(),
                    windows: windows
                        .into_iter()
                        .map(|(seconds, pages)| Window { seconds, pages })
                        .collect(),
                    contents: Contents {
                        codecs: ["auto", "lz4", "wkv"].map(str::to_owned).to_vec(),
                        blocks: blocks.into_iter().map(block).collect(),
                    },
                    not_seen,
                    events: events(&happened),
                    ..some()
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_saved_is_loaded(observation in observations()) {
            let (_folder, path) = place();
            save(&path, &observation).unwrap();
            prop_assert_eq!(load(&path).unwrap(), observation);
        }

        #[test]
        fn what_was_cut_off_or_changed_is_refused_or_makes_sense(
            cut in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), bit in 0..8u8,
        ) {
            let bytes = bytes_of(&some());
            refused(&bytes[..cut.index(bytes.len())]);
            let mut changed = bytes.clone();
            changed[at.index(bytes.len())] ^= 1 << bit;
            let (_folder, path) = place();
            fs::write(&path, &changed).unwrap();
            // Of the header and the end a change may mean something; of the rest it is found.
            let place = at.index(bytes.len());
            let is_checked = (32..bytes.len() - 16).contains(&place);
            prop_assert!(load(&path).is_err() || !is_checked);
        }

        #[test]
        fn notes_of_any_kind_make_nothing_panic(
            at in any::<prop::sample::Index>(), with in "[0-9eE.,:+\\-nul\"\\[\\]{}]{0,4}", count in 0..6usize,
        ) {
            let mut notes = serde_json::to_string(&some()).unwrap();
            let at = at.index(notes.len());
            let end = (at + count).min(notes.len());
            if notes.is_char_boundary(at) && notes.is_char_boundary(end) {
                notes.replace_range(at..end, &with);
            }
            let (_folder, path) = place();
            fs::write(&path, with_notes(&notes)).unwrap();
            if let Ok(loaded) = load(&path) {
                prop_assert_eq!(loaded.check(), Ok(()));
            }
        }
    }

    fn with_notes(notes: &str) -> Vec<u8> {
        let header = Header { kind: AddressSpace::Memory, one_in: 1, look_ns: 0, block_pages: 8 };
        let mut writer = Writer::new(Vec::new(), header).unwrap();
        writer.write_notes(notes).unwrap();
        writer
            .write(Event { time_us: 5, page: 5, what: What::Touched { watched_us: 99 } })
            .unwrap();
        writer.finish(0).unwrap()
    }

    #[test]
    fn what_is_no_record_is_told() {
        let bytes = bytes_of(&some());
        assert!(refused(&bytes[..bytes.len() - 1]).contains("in the middle of a record"));
        assert!(refused(b"").contains("in the middle of a record"));
        let mut other = bytes.clone();
        other[7] = 9;
        assert!(refused(&other).contains("of version 9; this ramfold reads version 2"));
        assert!(refused(&[b'x'; 100]).contains("it does not begin as one"));
        assert!(refused(&with_notes("")).contains("is a trace of page accesses and no record"));
        assert!(refused(&with_notes("{}")).contains("missing field `subject`"));
        assert!(refused(&with_notes("{\"subj")).contains("EOF while parsing"));
        let notes = serde_json::to_string(&Observation { one_in: 4, ..some() }).unwrap();
        assert!(refused(&with_notes(&notes)).contains("another sample"));
        let missing = load(Path::new("/nowhere/record")).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read /nowhere/record");
    }

    #[test]
    fn numbers_that_make_no_sense_are_told() {
        let as_text = serde_json::to_string(&some()).unwrap();
        for (number, with, told) in [
            ("5242880,\"sizes", "0,\"sizes", "what was looked at has 0 bytes"),
            ("17179869184", "0", "its machine has 0 bytes"),
            ("\"processors\":2", "\"processors\":0", "no processor"),
            ("30.5,\"run", "-1,\"run", "a time is -1 seconds"),
            ("20.25", "1e99", "a time is 1"),
            ("0.3333333333333333", "-2", "a size is of -2 seconds"),
            ("{\"at_s\":0.0", "{\"at_s\":5", "not in the order of time"),
            ("[4096,1024]", "[4096]", "has not the sizes of its 2 codecs"),
            ("[4096,1024]", "[4096,5000]", "a page becomes 5000 bytes"),
            ("[[0,0],[4096,1024]]", "[]", "a block has 0 pages"),
            ("[\"lz4\",\"zstd\"]", "[\"lz4\",\"lz4\"]", "the codec lz4 is there twice"),
            ("0.05", "0", "a window has 0 seconds"),
            ("17.5", "-1", "a window has -1 pages"),
            ("4194304", "0", "a trial has 0 bytes of memory"),
            ("262144", "2000000000000000000", "the pool of a trial has 2000000000000000000 bytes"),
            ("36.5", "-1", "a trial took -1 seconds"),
            ("22.5", "1e99", "a trial took 1"),
            ("0.75", "-1", "others took -1 processors of a trial"),
            (
                "{\"wall_s\":30.5,\"processor_s\":20.25,\"observation_s\":0.1}",
                "null",
                "no run with all memory",
            ),
        ] {
            let changed = as_text.replacen(number, with, 1);
            assert_ne!(changed, as_text, "{number}");
            let refused = refused(&with_notes(&changed));
            assert!(refused.contains(told), "{refused}");
        }
        // JSON has no such number.
        let refused = refused(&with_notes(&as_text.replacen("17.5", "null", 1)));
        assert!(refused.contains("are not those of a record"), "{refused}");
        let (_folder, path) = place();
        let senseless = Observation { seconds: f64::NAN, ..some() };
        let error = save(&path, &senseless).unwrap_err().to_string();
        assert!(error.contains("makes no sense: a time is NaN seconds"), "{error}");
        assert!(!path.exists());
    }

    #[test]
    fn a_record_without_trials_is_read() {
        let notes = serde_json::to_string(&some()).unwrap();
        let trials = notes.find(",\"trials\":").unwrap()..notes.find(",\"not_seen\":").unwrap();
        let mut older = notes.clone();
        older.replace_range(trials, "");
        assert_ne!(older, notes);
        let (_folder, path) = place();
        fs::write(&path, with_notes(&older)).unwrap();
        let loaded = load(&path).unwrap();
        assert_eq!((loaded.trials, loaded.run), (Vec::new(), some().run));
    }

    #[test]
    fn a_trial_without_others_is_read() {
        let notes = serde_json::to_string(&some()).unwrap();
        let older = notes.replacen(",\"others\":0.75", "", 1);
        assert_ne!(older, notes);
        let (_folder, path) = place();
        fs::write(&path, with_notes(&older)).unwrap();
        assert_eq!(load(&path).unwrap().trials[0].others, None);
    }

    #[test]
    fn trials_are_kept() {
        let failed = Trial {
            at_least: true,
            failed: Some("signal 9 ended the program".to_owned()),
            ..some().trials[0].clone()
        };
        let observation = Observation { trials: vec![some().trials[0].clone(), failed], ..some() };
        let (_folder, path) = place();
        save(&path, &observation).unwrap();
        assert_eq!(load(&path).unwrap(), observation);
    }

    #[test]
    fn a_page_was_not_watched_longer_than_there_is_a_trace() {
        let (_folder, path) = place();
        let notes = serde_json::to_string(&some()).unwrap();
        fs::write(&path, with_notes(&notes)).unwrap();
        let loaded = load(&path).unwrap();
        assert_eq!(loaded.events[0].what, What::Touched { watched_us: 5 });
    }

    #[test]
    fn a_record_is_its_owners_and_replaces_records_only() {
        let (folder, path) = place();
        fs::write(&path, "").unwrap();
        let link = folder.path().join("link");
        symlink("record", &link).unwrap();
        for seconds in [1.0, 2.0] {
            let observation = Observation { seconds, ..some() };
            save(&link, &observation).unwrap();
            assert_eq!(load(&path).unwrap(), observation);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        }
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
        for other in [&b"a letter"[..], &with_notes(""), &bytes_of(&some())[..200]] {
            fs::write(&path, other).unwrap();
            let error = save(&path, &some()).unwrap_err().to_string();
            assert!(error.contains("is there already and is no record"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), other);
        }
        let error = save(Path::new("/nowhere/record"), &some()).unwrap_err();
        assert_eq!(error.to_string(), "cannot write /nowhere/record");
        save(Path::new("/dev/null"), &some()).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
