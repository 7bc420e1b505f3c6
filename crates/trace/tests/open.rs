//! Traces as they come: the format is told, zstd is undone, and after an error there is nothing
//! more.

use ramfold_trace::recorded::{AddressSpace, Event, Header, What, Writer};
use ramfold_trace::{Access, Accesses, Content, Error, Format, open};

fn accesses<'a>(bytes: &'a [u8], format: Option<Format>) -> (Format, Accesses<'a>) {
    let trace = open(bytes, format).unwrap();
    let Content::Accesses(accesses) = trace.content else { panic!("pages that were watched") };
    (trace.format, accesses)
}

fn pages(bytes: &[u8], format: Option<Format>) -> (Format, Vec<u64>) {
    let (format, accesses) = accesses(bytes, format);
    (format, accesses.map(|access| access.unwrap().page).collect())
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut output = vec![0; bytes.len() + 1024];
    // SAFETY: both slices are as long as is said.
    let len = unsafe {
        zstd_sys::ZSTD_compress(
            output.as_mut_ptr().cast(),
            output.len(),
            bytes.as_ptr().cast(),
            bytes.len(),
            3,
        )
    };
    output.truncate(len);
    output
}

fn recorded() -> Vec<u8> {
    let header = Header { kind: AddressSpace::Memory, one_in: 1, look_ns: 0, block_pages: 1 };
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    for page in [7, 8, 7] {
        writer.write(Access { time: page, page }).unwrap();
    }
    writer.finish(0).unwrap()
}

#[test]
fn the_format_is_told_from_the_first_bytes() {
    assert_eq!(pages(&recorded(), None), (Format::Recorded, vec![7, 8, 7]));
    assert_eq!(pages(b"\n1,5\n2,6\n", None), (Format::Csv, vec![5, 6]));
    assert_eq!(pages(b"==9== Lackey\n L 1000,4\n", None), (Format::Lackey, vec![1]));
    let mut record = vec![0; 24];
    record[4] = 9;
    record[16..].fill(0xFF);
    assert_eq!(pages(&record, Some(Format::OracleGeneral)), (Format::OracleGeneral, vec![9]));
    assert_eq!(Format::of_name("w01.oracleGeneral.bin.zst"), Some(Format::OracleGeneral));
    for unknown in [&b"hello\n"[..], b"\0\x01\x02", b""] {
        assert!(matches!(open(unknown, None), Err(Error::Unknown)));
    }
}

#[test]
fn compressed_traces_are_like_others() {
    assert_eq!(pages(&compress(&recorded()), None), (Format::Recorded, vec![7, 8, 7]));
    let text: String = (0..50_000).map(|nth| format!("{nth},{}\n", nth % 77)).collect();
    // Two frames, cut within a line.
    let (one, other) = text.as_bytes().split_at(100_001);
    let frames = [compress(one), compress(other)].concat();
    let (format, pages) = pages(&frames, None);
    assert_eq!((format, pages.len()), (Format::Csv, 50_000));
    let cut = &frames[..frames.len() / 2];
    assert!(accesses(cut, None).1.any(|access| access.is_err()));
}

#[test]
fn nothing_comes_after_an_error() {
    let (_, mut accesses) = accesses(b"1,2\nbad,line\n3,4\n", None);
    assert_eq!(accesses.next().unwrap().unwrap().page, 2);
    assert!(accesses.next().unwrap().is_err());
    assert!(accesses.next().is_none());
}

#[test]
fn events_of_watched_pages_come_as_such() {
    let header = Header { kind: AddressSpace::Memory, one_in: 1, look_ns: 0, block_pages: 8 };
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    let event = Event { time_us: 5, page: 9, what: What::Touched { watched_us: 3 } };
    writer.write(event).unwrap();
    let bytes = writer.finish(0).unwrap();
    let trace = open(&bytes[..], None).unwrap();
    let Content::Watched(events) = trace.content else { panic!("they are no accesses") };
    assert_eq!(events.map(Result::unwrap).collect::<Vec<_>>(), [event]);
    let cut = &bytes[..bytes.len() - 20];
    let Content::Watched(mut events) = open(cut, None).unwrap().content else { panic!() };
    assert!(events.next().unwrap().is_err() && events.next().is_none());
}
