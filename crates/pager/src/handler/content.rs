//! What a page holds, made of what the store has of it.

use ramfold_codec::{DecodeError, Decompressor, Encoding, Page};
use ramfold_store::{Loaded, Spilled};

use crate::agent::{Active, Agent};
use crate::page::{self, PageNumber};
use crate::spill;

/// Where a page's content was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Nothing,
    /// In the buffer that was given.
    Here,
    /// Not yet: it is to be read.
    Spilled(Spilled),
}

/// Makes a page of what the store has in memory.
pub(crate) fn load(
    agent: &Agent,
    active: &Active,
    page: PageNumber,
    decompressor: &mut Decompressor<'_>,
    buffer: &mut Page,
) -> Content {
    let made = active.store.load(page, |loaded| match loaded {
        Loaded::SameFilled(word) => {
            for to in buffer.as_chunks_mut::<8>().0 {
                *to = word.to_ne_bytes();
            }
            Ok(Content::Here)
        }
        Loaded::Object { encoding, bytes } => {
            expand(encoding, bytes, decompressor, buffer).map(|()| Content::Here)
        }
        Loaded::Spilled(spilled) => Ok(Content::Spilled(spilled)),
    });
    match made {
        Ok(None) => Content::Nothing,
        Ok(Some(Ok(found))) => found,
        Ok(Some(Err(error))) => fail(agent, page, &error),
        Err(error) => fail(agent, page, &error),
    }
}

/// Makes a page of its object.
///
/// # Errors
/// If the object is none that this encoding has.
pub(crate) fn expand(
    encoding: u8,
    bytes: &[u8],
    decompressor: &mut Decompressor<'_>,
    page: &mut Page,
) -> Result<(), DecodeError> {
    if encoding == spill::RAW {
        let whole: &Page =
            bytes.try_into().map_err(|_| DecodeError::Malformed("length of a whole page"))?;
        *page = *whole;
        return Ok(());
    }
    let encoding = Encoding::try_from(encoding)
        .map_err(|_| DecodeError::Malformed("number of the encoding"))?;
    decompressor.decompress(encoding, bytes, page)
}

/// Makes a page of what the store has of it, wherever that is. `false` if it has nothing.
pub(crate) fn load_now(
    agent: &Agent,
    active: &Active,
    page: PageNumber,
    decompressor: &mut Decompressor<'_>,
    buffer: &mut Page,
) -> bool {
    loop {
        let spilled = match load(agent, active, page, decompressor, buffer) {
            Content::Nothing => return false,
            Content::Here => return true,
            Content::Spilled(spilled) => spilled,
        };
        let Some(access) = &active.spill else { fail(agent, page, &spill::ReadError::NotOpen) };
        let made = access
            .read_now(spilled, |bytes| expand(spilled.encoding(), bytes, decompressor, buffer));
        // It may have been moved in the file meanwhile, and what was there overwritten.
        if active.store.spilled(page) != Some(spilled) {
            continue;
        }
        match made {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => fail(agent, page, &error),
            Err(error) => fail(agent, page, &error),
        }
    }
}

/// The page is lost. The program must not go on without it.
pub(crate) fn fail(agent: &Agent, page: PageNumber, error: &dyn core::fmt::Display) -> ! {
    agent.fail(format_args!("page {:#x}: {error}", page::address_of(page)))
}
