//! The hash that equal pages are found by.

use ramfold_codec::Page;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64_with_secret;

use crate::disk::random;

/// Bytes of XXH3's secret.
const KEY_BYTES: usize = 192;

/// XXH3 with a secret that is drawn for each disk, so that nobody who does not know it can choose
/// pages of one hash. Such pages would do little harm: a page is compared with a few others at
/// most, and shares an object only if all bytes are equal.
pub(in crate::disk) struct PageHash {
    key: Box<[u8; KEY_BYTES]>,
    #[cfg(test)]
    always: Option<u64>,
}

impl PageHash {
    /// A hash with a random key.
    pub(in crate::disk) fn new() -> Result<PageHash, Errno> {
        Ok(PageHash {
            key: Box::new(random::bytes()?),
            #[cfg(test)]
            always: None,
        })
    }

    /// A hash that is the same for all pages.
    #[cfg(test)]
    pub(in crate::disk) fn constant(value: u64) -> PageHash {
        PageHash { key: Box::new([0; KEY_BYTES]), always: Some(value) }
    }

    pub(in crate::disk) fn of(&self, page: &Page) -> u64 {
        #[cfg(test)]
        if let Some(value) = self.always {
            return value;
        }
        xxh3_64_with_secret(page, &*self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_pages_have_one_hash_and_each_disk_has_its_own() {
        let (first, second) = (PageHash::new().unwrap(), PageHash::new().unwrap());
        let page = [7; 4096];
        let mut other = page;
        other[4095] ^= 1;
        assert_eq!(first.of(&page), first.of(&page));
        assert_ne!(first.of(&page), first.of(&other));
        assert_ne!(first.of(&page), second.of(&page));
    }
}
