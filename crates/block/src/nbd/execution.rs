//! Requests are made of the device here, and become replies.

use std::ops::ControlFlow;

use super::handshake::Style;
use super::job::{Job, Reply};
use super::protocol::{Code, STATE_HOLE, STATE_ZERO};
use super::reply::More;
use super::request::{Command, Span};
use crate::{BlockDevice, DeviceError};

/// Shorter runs of zeros are sent as data: a chunk costs the client more than their bytes.
const HOLE_BYTES_MIN: u64 = 32 << 10;
/// A reply tells of no more extents.
const EXTENTS_MAX: usize = 2048;
/// The device tells of no more for one request.
const LOOKS_MAX: u32 = 1 << 16;
/// What 32 bits hold, in whole pages.
const COMPACT_BYTES_MAX: u64 = (1 << 32) - 4096;

/// The number of the protocol for an error of the device.
pub(super) fn code_of(error: &DeviceError) -> Code {
    match error {
        DeviceError::NoRoom => Code::NoRoom,
        DeviceError::NotFast => Code::NotSupported,
        DeviceError::ReadOnly => Code::NotPermitted,
        DeviceError::Failed(_) => Code::Failed,
    }
}

/// Makes the request of the device; the job then has the reply. Returns whether all went well.
/// Advice is followed as long as `goes_on` says so.
pub(super) fn run(device: &dyn BlockDevice, job: &mut Job, goes_on: &dyn Fn() -> bool) -> bool {
    let Span { offset, bytes } = job.span;
    let result = match job.command {
        Command::Read { in_one_chunk } => read(device, job, in_one_chunk, More::None),
        Command::Write(durability) => device.write(offset, &job.data[..bytes as usize], durability),
        Command::Flush => device.flush(),
        Command::Trim(durability) => device.trim(offset, bytes, durability),
        Command::Zero(zeroing, durability) => device.zero(offset, bytes, zeroing, durability),
        Command::Cache if !goes_on() => Ok(()),
        Command::Cache => device.prefetch(offset, bytes, goes_on),
        Command::Status { one_extent } => status(device, job, one_extent),
    };
    match &result {
        Ok(()) if matches!(job.command, Command::Read { .. } | Command::Status { .. }) => {}
        Ok(()) => job.reply.put(&job.asked.done()),
        Err(error) => put_failure(job, error),
    }
    result.is_ok()
}

/// Reads the job's span. Where the reply has chunks, long runs of zeros are holes.
pub(super) fn read(
    device: &dyn BlockDevice,
    job: &mut Job,
    in_one_chunk: bool,
    more: More,
) -> Result<(), DeviceError> {
    let Span { offset, bytes } = job.span;
    let asked = job.asked;
    job.room(bytes as usize);
    let Job { data, reply, .. } = job;
    let is_whole = in_one_chunk || asked.style == Style::Simple || bytes < HOLE_BYTES_MIN;
    if is_whole || !has_holes(device, offset, bytes, &mut reply.runs)? {
        let data = &mut data[..bytes as usize];
        device.read(offset, data)?;
        reply.put(&asked.data(offset, bytes as u32, more));
        reply.put_data(0..bytes as usize);
        return Ok(());
    }
    let runs = std::mem::take(&mut reply.runs);
    let mut at = 0;
    for (nth, &(length, is_hole)) in runs.iter().enumerate() {
        let more = if nth + 1 == runs.len() { more } else { More::Follow };
        let range = at as usize..(at + length) as usize;
        if is_hole != 0 {
            reply.put(&asked.hole(offset + at, length as u32, more));
        } else {
            device.read(offset + at, &mut data[range.clone()])?;
            reply.put(&asked.data(offset + at, length as u32, more));
            reply.put_data(range);
        }
        at += length;
    }
    reply.runs = runs;
    Ok(())
}

/// Finds the long runs of zeros of a range; each run in `runs` is a hole (1) or not (0). Returns
/// whether there is a hole.
fn has_holes(
    device: &dyn BlockDevice,
    offset: u64,
    bytes: u64,
    runs: &mut Vec<(u64, u32)>,
) -> Result<bool, DeviceError> {
    runs.clear();
    // A run of zeros whose length is not yet known.
    let mut zeros = 0;
    let mut left = bytes;
    device.extents(offset, bytes, &mut |extent| {
        let length = extent.bytes.min(left);
        left -= length;
        if extent.is_zero {
            zeros += length;
        } else {
            end_zeros(&mut zeros, runs);
            put_run(runs, length, 0);
        }
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    end_zeros(&mut zeros, runs);
    // What the device did not tell of is data.
    put_run(runs, left, 0);
    Ok(runs.iter().any(|&(_, is_hole)| is_hole != 0))
}

fn end_zeros(zeros: &mut u64, runs: &mut Vec<(u64, u32)>) {
    put_run(runs, *zeros, (*zeros >= HOLE_BYTES_MIN).into());
    *zeros = 0;
}

/// Adds a run, to the last one if that is of the same kind.
fn put_run(runs: &mut Vec<(u64, u32)>, bytes: u64, kind: u32) {
    match runs.last_mut() {
        _ if bytes == 0 => {}
        Some((length, last)) if *last == kind => *length += bytes,
        _ => runs.push((bytes, kind)),
    }
}

/// Tells of the extents of the job's span.
fn status(device: &dyn BlockDevice, job: &mut Job, one_extent: bool) -> Result<(), DeviceError> {
    let Span { offset, bytes } = job.span;
    let (asked, Reply { runs, .. }) = (job.asked, &mut job.reply);
    let bytes = match asked.style {
        Style::Extended => bytes,
        _ => bytes.min(COMPACT_BYTES_MAX),
    };
    runs.clear();
    let (mut left, mut looks) = (bytes, 0);
    let most = if one_extent { 1 } else { EXTENTS_MAX };
    device.extents(offset, bytes, &mut |extent| {
        let length = extent.bytes.min(left);
        left -= length;
        looks += 1;
        let mut flags = 0;
        flags |= if extent.is_allocated { 0 } else { STATE_HOLE };
        flags |= if extent.is_zero { STATE_ZERO } else { 0 };
        put_run(runs, length, flags);
        if runs.len() > most || left == 0 || looks == LOOKS_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    runs.truncate(most);
    if runs.is_empty() {
        runs.push((bytes, 0));
    }
    let runs = std::mem::take(&mut job.reply.runs);
    job.reply.put(&asked.extents(runs.len() as u32));
    for &(length, flags) in &runs {
        job.reply.put(&asked.extent(length, flags));
    }
    job.reply.runs = runs;
    Ok(())
}

/// Has the reply tell of an error.
pub(super) fn put_failure(job: &mut Job, error: &DeviceError) {
    job.reply.clear();
    job.asked.error(code_of(error), error, |bytes| job.reply.put_bytes(bytes));
}
