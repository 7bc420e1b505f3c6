//! Damaged memory is an error, never a wrong page.

use super::{MIB, Page, content, store_of};
use crate::{EntryKind, LoadError};

#[test]
fn every_flipped_bit_of_an_object_is_noticed() {
    let store = store_of(4 * MIB, 0);
    for len in [1, 13, 300, 1200, 3836, 3837, 4096] {
        let bytes = content(len as u64, len);
        store.store_object(77, 9, &bytes).unwrap();
        for bit in 0..32 + 8 * len {
            store.flip_bit(77, bit);
            for result in [store.load(77, |_| ()), store.take(77, |_| ())] {
                match result {
                    Err(LoadError::Checksum { key, encoding, len: l, stored, computed }) => {
                        assert_eq!((key, encoding, l), (77, 9, len));
                        assert_ne!(stored, computed);
                    }
                    other => panic!("bit {bit} of {len} bytes: {other:?}"),
                }
            }
            store.flip_bit(77, bit);
        }
        // Nothing was lost by the refusals.
        let page = Page::Object { encoding: 9, bytes };
        assert_eq!(store.load(77, Page::keep), Ok(Some(page)));
    }
    store.audit();
}

#[test]
fn every_flipped_bit_of_a_same_filled_word_is_noticed() {
    let store = store_of(MIB, 0);
    store.store_same_filled(5, 0x0123_4567_89ab_cdef).unwrap();
    for bit in 0..32 + 64 {
        store.flip_bit(5, bit);
        assert!(matches!(store.load(5, |_| ()), Err(LoadError::Checksum { encoding: 0, .. })));
        store.flip_bit(5, bit);
    }
    assert_eq!(store.load(5, Page::keep), Ok(Some(Page::SameFilled(0x0123_4567_89ab_cdef))));
}

#[test]
fn no_flipped_bit_of_an_entry_gives_a_wrong_page_or_none() {
    let store = store_of(4 * MIB, 0);
    let pages = [
        Page::SameFilled(0),
        Page::SameFilled(7 << 32 | 7),
        Page::SameFilled(7),
        Page::Object { encoding: 1, bytes: content(1, 1000) },
        Page::Object { encoding: 15, bytes: content(2, 4096) },
    ];
    // Others of the same kinds around, which a wrong location could hit.
    for key in 0..200 {
        pages[key as usize % 5].store(&store, key).unwrap();
    }
    for (key, page) in (100..).zip(&pages) {
        for bit in 0..64 {
            store.flip_entry_bit(key, bit);
            match store.load(key, Page::keep) {
                // The mark is the owner's, and not checked.
                Ok(loaded) => assert_eq!(loaded.as_ref(), Some(page), "bit {bit}"),
                Err(LoadError::Entry { key: k, .. } | LoadError::Checksum { key: k, .. }) => {
                    assert_eq!(k, key);
                    assert!(!(53..61).contains(&bit), "bit {bit}");
                }
            }
            store.flip_entry_bit(key, bit);
        }
        assert_eq!(store.load(key, Page::keep).unwrap().as_ref(), Some(page));
    }
}

#[test]
fn a_damaged_entry_can_be_seen_replaced_and_forgotten() {
    const KIND: u32 = 61;
    let store = store_of(MIB, 0);
    for key in 0..2 {
        store.store_same_filled(key, 0).unwrap();
        store.flip_entry_bit(key, KIND);
        assert!(matches!(store.take(key, |_| ()), Err(LoadError::Entry { .. })));
    }
    let mut kinds = Vec::new();
    store.for_each(|_, kind| kinds.push(kind));
    assert_eq!(kinds, [EntryKind::Damaged, EntryKind::Damaged]);
    store.store_object(0, 1, b"page").unwrap();
    assert_eq!(store.load(0, |_| ()), Ok(Some(())));
    assert!(!store.invalidate(1));
    assert_eq!(store.load(1, |_| ()), Ok(None));
}

#[test]
fn an_object_under_another_key_is_noticed() {
    let store = store_of(MIB, 0);
    for page in [
        Page::SameFilled(3 << 32 | 3),
        Page::SameFilled(3),
        Page::Object { encoding: 1, bytes: vec![1; 100] },
        Page::Object { encoding: 1, bytes: vec![1; 4096] },
    ] {
        for to in [1, 64, 1 << 32, 1 << 60] {
            page.store(&store, 0).unwrap();
            store.rekey_wrongly(0, to);
            assert!(store.load(to, |_| ()).is_err(), "{to}");
            store.rekey_wrongly(to, 0);
            assert_eq!(store.load(0, Page::keep).unwrap().as_ref(), Some(&page));
        }
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let store = store_of(MIB, 0);
    store.store_object(0x1234, 3, &[0; 100]).unwrap();
    store.flip_bit(0x1234, 31);
    let error = store.load(0x1234, |_| ()).unwrap_err();
    let LoadError::Checksum { stored, computed, .. } = error else { panic!("{error}") };
    assert_eq!(stored ^ computed, 1 << 31);
    assert_eq!(
        error.to_string(),
        format!(
            "the object of key 0x1234 is damaged: encoding 3, 100 bytes, checksum stored \
             {stored:#010x}, computed {computed:#010x}"
        )
    );
}
