//! An object's name: where its slot begins and how long it is.

use core::marker::PhantomData;
use core::num::NonZeroU64;

pub(crate) const LOCATION_BITS: u32 = 35;
const LEN_BITS: u32 = 13;
/// The longest object's length fits.
const _: () = assert!(crate::OBJECT_BYTES_MAX < 1 << LEN_BITS);
const LEN_MASK: u64 = (1 << LEN_BITS) - 1;

/// The right to one slot of the pool and to what is in it. The pool frees it
/// ([`Allocator::free`](crate::Allocator::free)); one that is dropped is memory lost.
#[must_use]
#[derive(Debug)]
pub struct Object(NonZeroU64);

/// A look at an object that somebody owns for at least `'a`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectRef<'a>(NonZeroU64, PhantomData<&'a Object>);

impl Object {
    /// Bits that [`Self::into_bits`] uses, from the lowest.
    pub(crate) const BITS: u32 = LOCATION_BITS + LEN_BITS;

    /// # Safety
    /// The caller owns the slot at `location` (in units of 16 bytes) and gives it to the object;
    /// `len` is 1 to 4096.
    #[inline]
    pub(super) unsafe fn new(location: u64, len: usize) -> Object {
        debug_assert!(location < 1 << LOCATION_BITS && len != 0);
        // SAFETY: the length is not zero.
        Object(unsafe { NonZeroU64::new_unchecked(location << LEN_BITS | len as u64) })
    }

    /// Location and length of the object that has these bits; `None` for bits that no object has.
    /// Unlike an object they are no right to the slot.
    #[inline]
    pub(crate) fn parts(bits: u64) -> Option<(u64, usize)> {
        let (location, len) = (bits >> LEN_BITS, (bits & LEN_MASK) as usize);
        (len != 0 && location < 1 << LOCATION_BITS).then_some((location, len))
    }

    /// The object as a number, which [`Self::from_bits`] turns back.
    #[inline]
    pub(crate) fn into_bits(self) -> u64 {
        self.0.get()
    }

    /// # Safety
    /// The bits came from [`Self::into_bits`], and are given up by whoever kept them. Bits damaged
    /// since then are noticed by the pool or by the seal, as far as the slot can be another's.
    #[inline]
    pub(crate) unsafe fn from_bits(bits: u64) -> Option<Object> {
        NonZeroU64::new(bits).filter(|_| bits & LEN_MASK != 0).map(Object)
    }

    #[inline]
    pub(crate) fn as_ref(&self) -> ObjectRef<'_> {
        ObjectRef(self.0, PhantomData)
    }
}

impl ObjectRef<'_> {
    /// # Safety
    /// As [`Object::from_bits`], but the object stays its owner's, who keeps it for at least the
    /// look's lifetime if the look is used to read it.
    #[inline]
    pub(crate) unsafe fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits)
            .filter(|_| bits & LEN_MASK != 0)
            .map(|bits| ObjectRef(bits, PhantomData))
    }

    /// The object as a number, as [`Object::into_bits`] has it.
    #[inline]
    pub(crate) fn bits(self) -> u64 {
        self.0.get()
    }

    /// Where the slot begins, in units of 16 bytes from the start of the pool.
    #[inline]
    pub(crate) fn location(self) -> u64 {
        self.0.get() >> LEN_BITS
    }

    /// Bytes of the object, without its seal.
    #[inline]
    pub(crate) fn len(self) -> usize {
        (self.0.get() & LEN_MASK) as usize
    }
}
