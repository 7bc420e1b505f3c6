//! The trace of what happens to objects (`--object-trace`): of one process in a session, the first
//! whose memory is looked after.

use core::{ptr, slice};

use ramfold_store::Recorder;
use ramfold_sys::Errno;
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::agent::Agent;
use crate::session::Once;

/// What records this process' objects: nothing, where no trace is wanted or another process makes it.
pub fn begin(agent: &Agent) -> Recorder {
    let file = &agent.session().object_trace;
    if !file.is_lent() {
        return Recorder::default();
    }
    let begun = file
        .open(None, |path| open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()))
        .and_then(|file| {
            let bytes = usize::try_from(fstat(&file)?.st_size).map_err(|_| Errno::OVERFLOW)?;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh mapping at an address of the kernel's choice.
            let start =
                unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0)? };
            // SAFETY: mapped for as long as the process lives, but for when it is unused. The launcher
            // has set room aside on the disk, and makes the file no shorter before all have ended.
            let words = unsafe { slice::from_raw_parts(start.cast(), bytes / size_of::<u64>()) };
            let recorder = Recorder::begin(words);
            if recorder.is_none() {
                // SAFETY: nobody has the words.
                unsafe { munmap(start, bytes)? };
            }
            Ok(recorder)
        });
    match begun {
        Ok(recorder) => recorder.unwrap_or_default(),
        Err(errno) => {
            agent.session().say(
                Once::NotRecorded,
                format_args!("goes on without --object-trace: the file cannot be mapped: {errno}"),
            );
            Recorder::default()
        }
    }
}
