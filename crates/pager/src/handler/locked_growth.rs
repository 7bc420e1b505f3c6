//! A thread that waits for memory before its event can be read.
//!
//! When mremap moves locked memory and makes it longer, the kernel brings the new part in before it
//! tells of the move (mm/mremap.c, up to Linux 6.18). Nothing can be given to a process that has
//! such news, so the thread would wait for ever for the first page of the new part. Nothing was
//! ever evicted there: the new part is taken out of the registration, and the kernel fills it.

use ramfold_sys::raw::nr;
use ramfold_sys::{PAGE_SIZE, proc};

use crate::agent::{Active, Core};
use crate::kernel::Kernel;

/// Is this what the fault of this thread at this address is? Then it has been seen to, and the
/// thread goes on.
pub(crate) fn let_through(active: &Active, core: &mut Core, thread: u32, address: usize) -> bool {
    let Ok(Some((nr::MREMAP, [from, old_len, new_len, ..]))) = proc::system_call(thread) else {
        return false;
    };
    let (old_len, new_len) =
        (old_len.next_multiple_of(PAGE_SIZE), new_len.next_multiple_of(PAGE_SIZE));
    // The kernel begins with the first page of the new part. It faults on no other memory in that
    // call once there is news, so this cannot be a page of the old one.
    if new_len <= old_len || (from..from + old_len).contains(&address) {
        return false;
    }
    let start = address & !(PAGE_SIZE - 1);
    let gone = active.kernel.unregister(start..start + (new_len - old_len)).is_ok();
    core.rescan_wanted |= gone;
    gone
}
