//! Encryption of the objects that leave RAM: memory holds secrets, and a disk keeps what was
//! written.
//!
//! Each object is encrypted by itself, so that one can be read without the others, under a key that
//! is in RAM only. The nonce is the number of the write of its segment (no two writes under one key
//! have the same, in any process) and the object's place in the file.

use aes_gcm::Aes128Gcm;
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::aead::{AeadInOut, KeyInit, Nonce, Tag};
use chacha20poly1305::ChaCha20Poly1305;

use super::SpillError;
use super::extent::{Spilled, UNIT_BYTES};
use crate::OBJECT_BYTES_MAX;

/// Bytes of the key.
pub const KEY_BYTES: usize = 32;

pub(super) const TAG_BYTES: usize = 16;
/// Bytes before the object: its length in 16 bits, its encoding in 8, and 8 of zero.
pub(super) const HEADER_BYTES: usize = 4;

/// Units of the file that an object of `len` bytes takes.
pub(super) const fn units_of(len: usize) -> usize {
    (HEADER_BYTES + len + TAG_BYTES).div_ceil(UNIT_BYTES)
}

const _: () = {
    // The entry has room for the number of units,
    assert!(units_of(OBJECT_BYTES_MAX) < 1 << super::extent::COUNT_BITS);
    // and the header for the length and the encoding.
    assert!(OBJECT_BYTES_MAX <= u16::MAX as usize && ramfold_codec::encodings::BITS <= u8::BITS);
};

/// A key, expanded for use: more than a kilobyte.
pub struct SpillCipher(Algorithm);

#[expect(clippy::large_enum_variant, reason = "a process has one, and no heap")]
enum Algorithm {
    /// Where the processor has instructions for it: 2 GB/s and more.
    AesGcm(Aes128Gcm),
    /// Everywhere else: without such instructions it is faster, and takes the same time for all
    /// keys.
    ChaCha20Poly1305(ChaCha20Poly1305),
}

impl SpillCipher {
    /// A cipher with this key, which must be random and used for one spill file only.
    pub fn new(key: &[u8; KEY_BYTES]) -> SpillCipher {
        SpillCipher::with(key, has_aes())
    }

    fn with(key: &[u8; KEY_BYTES], has_aes: bool) -> SpillCipher {
        SpillCipher(match key.split_first_chunk::<16>() {
            Some((first, _)) if has_aes => Algorithm::AesGcm(Aes128Gcm::new(&(*first).into())),
            _ => Algorithm::ChaCha20Poly1305(ChaCha20Poly1305::new(&(*key).into())),
        })
    }

    /// Encrypts an extent in place: a header and an object, which are there, followed by zeros and
    /// room for the tag. `first` is its first unit in the file.
    pub(super) fn seal(
        &self,
        sequence: u64,
        first: u32,
        extent: &mut [u8],
    ) -> Result<(), SpillError> {
        let Some((text, tag)) = extent.split_last_chunk_mut::<TAG_BYTES>() else {
            return Err(SpillError::Cipher { first });
        };
        let nonce = nonce(sequence, first);
        let made = match &self.0 {
            Algorithm::AesGcm(cipher) => seal_with(cipher, nonce, text),
            Algorithm::ChaCha20Poly1305(cipher) => seal_with(cipher, nonce, text),
        };
        *tag = made.ok_or(SpillError::Cipher { first })?;
        Ok(())
    }

    /// Decrypts an object, which was read from [`Spilled::file_range`], in place, and returns it.
    ///
    /// The page may have been stored again, or its object moved, since the store was asked. A
    /// caller that read without a lock asks the store again, and uses the object only if the answer
    /// is the same.
    ///
    /// # Errors
    /// [`SpillError::Damaged`] if the bytes are not those that were written there.
    pub fn open<'b>(&self, spilled: Spilled, extent: &'b mut [u8]) -> Result<&'b [u8], SpillError> {
        let damaged = || SpillError::Damaged { range: spilled.file_range() };
        if extent.len() != usize::from(spilled.place().count) * UNIT_BYTES {
            return Err(damaged());
        }
        let (text, tag) = extent.split_last_chunk_mut::<TAG_BYTES>().ok_or_else(damaged)?;
        let nonce = nonce(spilled.sequence(), spilled.place().first);
        let is_whole = match &self.0 {
            Algorithm::AesGcm(cipher) => open_with(cipher, nonce, text, *tag),
            Algorithm::ChaCha20Poly1305(cipher) => open_with(cipher, nonce, text, *tag),
        };
        if !is_whole {
            return Err(damaged());
        }
        let (header, rest) = text.split_first_chunk::<HEADER_BYTES>().ok_or_else(damaged)?;
        let [low, high, encoding, 0] = *header else { return Err(damaged()) };
        let len = usize::from(u16::from_le_bytes([low, high]));
        if encoding != spilled.encoding() {
            return Err(damaged());
        }
        rest.get(..len).ok_or_else(damaged)
    }
}

fn nonce(sequence: u64, first: u32) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&sequence.to_le_bytes());
    nonce[8..].copy_from_slice(&first.to_le_bytes());
    nonce
}

/// Encrypts in place. Returns the tag; `None` for a text that is too long, which no object is.
fn seal_with<C>(cipher: &C, nonce: [u8; 12], text: &mut [u8]) -> Option<[u8; TAG_BYTES]>
where
    C: AeadInOut,
    Nonce<C>: From<[u8; 12]>,
    Tag<C>: Into<[u8; TAG_BYTES]>,
{
    let tag = cipher.encrypt_inout_detached(&nonce.into(), &[], InOutBuf::from(text)).ok()?;
    Some(tag.into())
}

fn open_with<C>(cipher: &C, nonce: [u8; 12], text: &mut [u8], tag: [u8; TAG_BYTES]) -> bool
where
    C: AeadInOut,
    Nonce<C>: From<[u8; 12]>,
    Tag<C>: From<[u8; TAG_BYTES]>,
{
    cipher.decrypt_inout_detached(&nonce.into(), &[], InOutBuf::from(text), &tag.into()).is_ok()
}

#[cfg(target_arch = "x86_64")]
cpufeatures::new!(aes_instructions, "aes", "pclmulqdq");
#[cfg(target_arch = "aarch64")]
cpufeatures::new!(aes_instructions, "aes");

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn has_aes() -> bool {
    aes_instructions::get()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ciphers_seal_each_place_and_each_write_in_its_own_way() {
        let mut seen = std::collections::HashSet::new();
        for has_aes in [false, true] {
            let cipher = SpillCipher::with(&[3; KEY_BYTES], has_aes);
            for (sequence, first) in [(1, 0), (1, 1), (2, 0), (1 << 40, 0), (1, 1 << 31)] {
                let mut extent = [0; 128];
                cipher.seal(sequence, first, &mut extent).unwrap();
                assert!(seen.insert(extent), "{sequence} {first}");
            }
        }
        // No room for the tag.
        let cipher = SpillCipher::new(&[3; KEY_BYTES]);
        assert_eq!(cipher.seal(1, 7, &mut [0; 15]), Err(SpillError::Cipher { first: 7 }));
    }

    #[test]
    fn the_longest_object_takes_as_many_units_as_fit_an_entry() {
        assert_eq!((units_of(1), units_of(44), units_of(45)), (1, 1, 2));
        assert_eq!(units_of(OBJECT_BYTES_MAX), 65);
    }
}
