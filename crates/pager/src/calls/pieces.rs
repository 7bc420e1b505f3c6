//! mremap of what the kernel would hold as one mapping if all or none of it were registered.
//!
//! Memory that is registered and memory that is not yet never become one mapping, and the kernel
//! moves and extends one mapping at a time: for a range of several it says EFAULT. Then the pieces
//! are moved one by one, and the last is extended.

use core::ops::Range;

use ramfold_sys::{Errno, PAGE_SIZE, maps};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::sched_yield;

use super::memory::{is_error, make_mremap};
use crate::agent::Agent;

const MREMAP_MAYMOVE: usize = 1;
const MREMAP_FIXED: usize = 2;
const MREMAP_DONTUNMAP: usize = 4;

/// Pieces found by one look at the mappings.
const PIECES_MAX: usize = 32;
/// Looks in a row that help nothing: the agent may divide a piece meanwhile, but not for ever.
const LOOKS_MAX: usize = 16;

/// The arguments of mremap(2).
#[derive(Clone, Copy)]
pub(super) struct Mremap {
    pub old: usize,
    pub old_bytes: usize,
    pub new_bytes: usize,
    pub flags: usize,
    pub new: usize,
}

impl Mremap {
    /// The call, made by the kernel or piece by piece. What the kernel answers, or an error as it
    /// gives them.
    pub(super) fn make(&self, agent: &Agent) -> isize {
        // The agent may become active meanwhile.
        agent.move_gate.begin_move(sched_yield);
        let is_active = agent.active().is_some();
        let result = if is_active { self.make_in_pieces() } else { make_mremap(self) };
        agent.move_gate.end_move();
        result
    }

    fn make_in_pieces(&self) -> isize {
        // Linux 6.17 moves several mappings to a given place, up to the first that is registered:
        // it must not begin.
        if !self.moves_to_a_place() {
            let result = make_mremap(self);
            if result != fault() {
                return result;
            }
        }
        let rounded = Mremap {
            old_bytes: self.old_bytes.next_multiple_of(PAGE_SIZE),
            new_bytes: self.new_bytes.next_multiple_of(PAGE_SIZE),
            ..*self
        };
        match Pieces::look(rounded.old_range()) {
            Some(pieces) if pieces.count > 1 => rounded.by_pieces(),
            _ => make_mremap(self),
        }
    }

    /// A call to move all of this that the kernel does not refuse for its arguments alone.
    fn moves_to_a_place(&self) -> bool {
        let Mremap { old, old_bytes, new_bytes, flags, new } = *self;
        let (old, new) = (old..old.saturating_add(old_bytes), new..new.saturating_add(new_bytes));
        flags & !MREMAP_DONTUNMAP == MREMAP_MAYMOVE | MREMAP_FIXED
            && old_bytes == new_bytes
            && (old.start | new.start).is_multiple_of(PAGE_SIZE)
            && (old.end <= new.start || new.end <= old.start)
    }

    fn old_range(&self) -> Range<usize> {
        self.old..self.old.saturating_add(self.old_bytes)
    }

    #[inline(never)]
    fn by_pieces(&self) -> isize {
        let Mremap { old, old_bytes, new_bytes, flags, new } = *self;
        let may_stay = flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) == 0;
        if may_stay && new_bytes > old_bytes {
            let result = self.extend_last();
            if !is_error(result) {
                return old as isize;
            }
            if flags & MREMAP_MAYMOVE == 0 || result != error(Errno::NOMEM) {
                return result;
            }
        }
        let mut kept_bytes = old_bytes;
        if new_bytes < old_bytes {
            // SAFETY: the program gives this memory up.
            if let Err(errno) = unsafe { unmap(old + new_bytes..old + old_bytes) } {
                return error(errno);
            }
            kept_bytes = new_bytes;
        }
        // It is nobody else's until the last piece is there: another thread could map something
        // where nothing is.
        let place = if flags & MREMAP_FIXED != 0 {
            // SAFETY: the program asks for it to be replaced.
            unsafe { reserve(new, new_bytes, MapFlags::FIXED) }
        } else {
            // SAFETY: it replaces nothing.
            unsafe { reserve(0, new_bytes, MapFlags::empty()) }
        };
        let new = match place {
            Ok(new) => new,
            Err(errno) => return error(errno),
        };
        let kept = Mremap { old_bytes: kept_bytes, new, ..*self };
        let Err((result, moved)) = kept.move_pieces() else { return new as isize };
        self.move_back(new, moved);
        result
    }

    /// Moves back what was moved to `new` before the rest could not be. Where another thread has
    /// mapped something at the old place meanwhile, or what is to go back is refused too, it stays.
    fn move_back(&self, new: usize, moved: usize) {
        let Mremap { old, new_bytes, flags, .. } = *self;
        // SAFETY: it replaces nothing.
        let is_free =
            moved == 0 || unsafe { reserve(old, moved, MapFlags::FIXED_NOREPLACE) }.is_ok();
        let back = Mremap { old: new, old_bytes: moved, new_bytes: moved, flags: 0, new: old };
        if is_free && back.move_pieces().is_ok() && flags & MREMAP_FIXED == 0 {
            // SAFETY: reserved for this; what was moved there is back.
            let _ = unsafe { unmap(new..new + new_bytes) };
        }
    }

    /// Where the last piece can grow in its place, nothing has to move.
    fn extend_last(&self) -> isize {
        for _ in 0..LOOKS_MAX {
            let Some(last) = self.last_piece() else { return fault() };
            let result = make_mremap(&Mremap {
                old: last.start,
                old_bytes: last.len(),
                new_bytes: last.len() + self.new_bytes - self.old_bytes,
                flags: 0,
                new: 0,
            });
            if result != fault() {
                return result;
            }
        }
        fault()
    }

    fn last_piece(&self) -> Option<Range<usize>> {
        let end = self.old + self.old_bytes;
        let mut start = self.old;
        loop {
            let pieces = Pieces::look(start..end)?;
            let last = pieces.as_slice().last()?.clone();
            if last.end == end {
                return Some(last);
            }
            start = last.end;
        }
    }

    /// Moves each piece to its place behind `new`, the last with what comes to it. The error, and
    /// how many bytes were moved before.
    fn move_pieces(&self) -> Result<(), (isize, usize)> {
        let end = self.old + self.old_bytes;
        let mut at = self.old;
        let mut looks = 0;
        while at < end {
            let Some(pieces) = Pieces::look(at..end).filter(|_| looks < LOOKS_MAX) else {
                return Err((fault(), at - self.old));
            };
            looks += 1;
            for piece in pieces.as_slice() {
                let more = if piece.end == end { self.new_bytes - self.old_bytes } else { 0 };
                let result = make_mremap(&Mremap {
                    old: piece.start,
                    old_bytes: piece.len(),
                    new_bytes: piece.len() + more,
                    flags: self.flags | MREMAP_MAYMOVE | MREMAP_FIXED,
                    new: self.new + (piece.start - self.old),
                });
                if result == fault() {
                    break;
                }
                if is_error(result) {
                    return Err((result, at - self.old));
                }
                at = piece.end;
                looks = 0;
            }
        }
        Ok(())
    }
}

/// Mappings of one kind, each behind the other, that make up the start of a range.
struct Pieces {
    ranges: [Range<usize>; PIECES_MAX],
    count: usize,
}

impl Pieces {
    /// `None` where some of the range is not the program's private memory, has holes or does not
    /// allow the same everywhere: the kernel would not have it as one mapping either.
    fn look(range: Range<usize>) -> Option<Pieces> {
        // A mapping that another thread changes meanwhile can be missing (seen with Linux 6.18).
        Pieces::look_once(&range).or_else(|| Pieces::look_once(&range))
    }

    fn look_once(range: &Range<usize>) -> Option<Pieces> {
        let mut pieces = Pieces { ranges: [const { 0..0 }; PIECES_MAX], count: 0 };
        let (mut at, mut access, mut is_one_kind) = (range.start, None, true);
        let mut buffer = [0; 2048];
        maps::for_each(&mut buffer, |mapping| {
            let piece = mapping.range.start.max(range.start)..mapping.range.end.min(range.end);
            if piece.is_empty() {
                return;
            }
            let allowed = (mapping.readable, mapping.writable, mapping.executable);
            is_one_kind &= piece.start == at
                && mapping.is_private_anonymous()
                && *access.get_or_insert(allowed) == allowed;
            at = piece.end;
            if let Some(place) = pieces.ranges.get_mut(pieces.count) {
                *place = piece;
                pieces.count += 1;
            }
        })
        .ok()?;
        (is_one_kind && at == range.end).then_some(pieces)
    }

    fn as_slice(&self) -> &[Range<usize>] {
        &self.ranges[..self.count]
    }
}

/// Address space that nothing is in, at a place that `how` says, or at any.
///
/// # Safety
/// With [`MapFlags::FIXED`] what is there is replaced.
unsafe fn reserve(at: usize, bytes: usize, how: MapFlags) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | how;
    // SAFETY: by the caller's word.
    unsafe { mmap_anonymous(at as *mut _, bytes, ProtFlags::empty(), flags) }
        .map(|start| start as usize)
}

/// # Safety
/// As of munmap(2).
unsafe fn unmap(range: Range<usize>) -> Result<(), Errno> {
    // SAFETY: by the caller's word.
    unsafe { rustix::mm::munmap(range.start as *mut _, range.len()) }
}

fn error(errno: Errno) -> isize {
    -(errno.raw_os_error() as isize)
}

fn fault() -> isize {
    error(Errno::FAULT)
}
