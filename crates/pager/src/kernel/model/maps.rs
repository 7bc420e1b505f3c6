//! The mappings of the program of a simulation.

use core::ops::Range;

use ramfold_sys::Errno;
pub(crate) use ramfold_sys::maps::{Flags, Mapping, Usage};

use super::memory::Access;
use super::running;

/// As one look found them: what the program does meanwhile is not seen.
pub(crate) fn for_each(_buffer: &mut [u8], mut f: impl FnMut(&Mapping<'_>)) -> Result<(), Errno> {
    for found in mappings()? {
        f(&mapping(found));
    }
    Ok(())
}

pub(crate) fn for_each_with_usage(
    _buffer: &mut [u8],
    mut f: impl FnMut(&Mapping<'_>, Usage, Flags<'_>),
) -> Result<(), Errno> {
    for found in mappings()? {
        f(&mapping(found), Usage::default(), Flags::of(b""));
    }
    Ok(())
}

/// Where one mapping can be asked for.
pub(crate) struct Maps;

impl Maps {
    pub(crate) fn open() -> Result<Maps, Errno> {
        Ok(Maps)
    }

    pub(crate) fn at(&self, address: usize) -> Result<Option<Mapping<'static>>, Errno> {
        Ok(mappings()?.into_iter().find(|(range, _)| range.contains(&address)).map(mapping))
    }
}

fn mappings() -> Result<Vec<(Range<usize>, Access)>, Errno> {
    Ok(running().ok_or(Errno::NOENT)?.state().mappings())
}

fn mapping((range, access): (Range<usize>, Access)) -> Mapping<'static> {
    Mapping {
        range,
        readable: access != Access::None,
        writable: access == Access::Write,
        executable: false,
        private: true,
        inode: 0,
        name: b"",
    }
}
