//! `/dev/ublkbN`: requests of the kernel come by io_uring, to a thread for each hardware queue.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ramfold_sys::Errno;
use ramfold_sys::swap::become_io_flusher;
use ramfold_sys::ublk::{
    Control, DeviceInfo, Features, NewDevice, Operation, Queue, Queues, Request, State,
};

use super::error::{KernelError, Tried};
use super::note::{Backing, Notes};
use crate::{BlockDevice, DeviceError, Durability, STACK_BYTES, Zeroing};

/// Devices of ours have this in the upper half of their mark, and below it their maker's process.
const MARK: u64 = 0x7261_6d66;
/// [`AfterKill::Fail`], beside the process, whose number is below 2^22.
const MARK_FAIL: u64 = 1 << 31;
/// How long the kernel may take to take back what a dead server had.
const QUIESCE_TIME_MAX: Duration = Duration::from_secs(30);
const QUIESCE_INTERVAL: Duration = Duration::from_millis(10);

/// How a device is made.
#[derive(Clone, Debug)]
pub struct UblkConfig {
    /// The number in `/dev/ublkbN`; the next free one without.
    pub device: Option<u32>,
    /// The size of a block, a power of two from 512 to the page's.
    pub block_bytes: u32,
    /// Hardware queues, each served by a thread.
    pub queues: u16,
    /// Requests of a queue under way at most. Each has memory for `request_bytes_max`.
    pub queue_depth: u16,
    /// Bytes of a request that reads or writes at most, a power of two.
    pub request_bytes_max: u32,
    /// Nothing may be written.
    pub read_only: bool,
    /// What becomes of it when its server is killed.
    pub after_kill: AfterKill,
    /// What its data lies in, which is noted for the next server.
    pub backing: Option<Backing>,
}

/// What becomes of a device when its server is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterKill {
    /// The kernel takes it away at once, and requests fail. Not for swap: what is gone cannot be
    /// turned off, and stays in the kernel's list until reboot.
    Remove,
    /// Requests wait for another server ([`UblkDevice::recover`]), which is handed those again that
    /// were under way. Only right where the other has all data that this one had: on a backing file
    /// with each write written through.
    Wait,
    /// Requests wait until [`clean_up`](super::clean_up) fails them and takes the device away: for
    /// swap, which it turns off before.
    Fail,
}

impl Default for UblkConfig {
    fn default() -> UblkConfig {
        UblkConfig {
            device: None,
            block_bytes: 4096,
            queues: 1,
            queue_depth: 64,
            request_bytes_max: 128 << 10,
            read_only: false,
            after_kill: AfterKill::Remove,
            backing: None,
        }
    }
}

/// A device that is served; dropping this ends it.
///
/// When the process dies, [`AfterKill`] says what becomes of the device; what is left then,
/// [`clean_up`](super::clean_up) takes away.
pub struct UblkDevice {
    control: Control,
    info: DeviceInfo,
    threads: Vec<JoinHandle<io::Result<()>>>,
    is_ended: bool,
}

impl UblkDevice {
    /// Makes a device and serves it.
    ///
    /// # Errors
    /// There is no ublk in the kernel, the number is in use, or this is not root.
    pub fn start(
        device: Arc<dyn BlockDevice>,
        config: &UblkConfig,
    ) -> Result<UblkDevice, KernelError> {
        let described = || match config.device {
            Some(number) => format!("make /dev/ublkb{number}"),
            None => "make a ublk device".to_owned(),
        };
        let mut control = open_control(&described())?;
        let fail = if config.after_kill == AfterKill::Fail { MARK_FAIL } else { 0 };
        let mark = MARK << 32 | fail | u64::from(std::process::id());
        let new = NewDevice {
            device: config.device,
            queues: config.queues,
            queue_depth: config.queue_depth,
            request_bytes_max: config.request_bytes_max,
            recoverable: config.after_kill != AfterKill::Remove,
            mark,
        };
        let info = control.add(&new).tried(described)?;
        let mut made = UblkDevice { control, info, threads: Vec::new(), is_ended: false };
        let features = Features {
            bytes: device.size_bytes(),
            block_bytes: config.block_bytes,
            request_bytes_max: info.request_bytes_max,
            read_only: config.read_only,
        };
        made.control.set_features(info.device, &features).tried(described)?;
        made.note(config).tried(described)?;
        made.serve(&device).tried(described)?;
        made.control.start(info.device).tried(described)?;
        Ok(made)
    }

    /// Takes over a device whose server was killed.
    ///
    /// # Errors
    /// It does not wait for a server, or has another size than the device behind it.
    pub fn recover(number: u32, device: Arc<dyn BlockDevice>) -> Result<UblkDevice, KernelError> {
        let described = || format!("take /dev/ublkb{number} over");
        let mut control = open_control(&described())?;
        let info = control.info(number).tried(described)?;
        let features = control.features(number).tried(described)?;
        if features.bytes != device.size_bytes() {
            let sizes = format!("it has {} bytes, not {}", features.bytes, device.size_bytes());
            return Err(io::Error::other(sizes)).tried(described);
        }
        if !info.is_recoverable() {
            return Err(io::Error::other("it was not made to wait for another server"))
                .tried(described);
        }
        begin_recovery(&mut control, number).tried(described)?;
        // Where this fails it goes on to wait for a server.
        let mut taken = UblkDevice { control, info, threads: Vec::new(), is_ended: true };
        taken.serve(&device).tried(described)?;
        taken.control.end_recovery(number).tried(described)?;
        taken.is_ended = false;
        Ok(taken)
    }

    /// The number in `/dev/ublkbN`.
    pub fn number(&self) -> u32 {
        self.info.device
    }

    /// `/dev/ublkbN`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.info.device))
    }

    /// Whether all queues are served: they are not when somebody else has stopped the device, or a
    /// thread has failed.
    pub fn is_served(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Takes the device away, when what is under way is answered.
    ///
    /// # Errors
    /// What the kernel says, or what has ended a thread before.
    pub fn stop(mut self) -> Result<(), KernelError> {
        self.end()
    }

    /// Notes what the data lies in.
    fn note(&self, config: &UblkConfig) -> io::Result<()> {
        let Some(backing) = &config.backing else { return Ok(()) };
        match Notes::of_this_machine().write(self.info.device, self.info.mark, backing) {
            // It would wait for ever.
            Err(why) if config.after_kill == AfterKill::Wait => Err(why),
            // Then the next server cannot say why the device is removed.
            _ => Ok(()),
        }
    }

    /// Starts a thread for each queue, and waits until the kernel has what it needs to send
    /// requests.
    fn serve(&mut self, device: &Arc<dyn BlockDevice>) -> io::Result<()> {
        let queues = Arc::new(Queues::open(&self.info)?);
        let (ready, are_ready) = mpsc::channel();
        for queue in 0..self.info.queues {
            let (queues, device, ready) = (Arc::clone(&queues), Arc::clone(device), ready.clone());
            let thread =
                thread::Builder::new().name(format!("ublk-{queue}")).stack_size(STACK_BYTES);
            self.threads.push(thread.spawn(move || serve_queue(&queues, queue, &*device, &ready))?);
        }
        drop(ready);
        for _ in 0..self.info.queues {
            are_ready.recv().map_err(|_| io::Error::other("a thread has ended"))??;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), KernelError> {
        self.is_ended = true;
        let number = self.info.device;
        let described = || format!("end /dev/ublkb{number}");
        let stopped = self.control.stop(number).tried(described);
        let mut served = Ok(());
        for thread in self.threads.drain(..) {
            if let Ok(Err(error)) = thread.join() {
                served = Err(error).tried(described);
            }
        }
        let deleted = self.control.delete_without_waiting(number).tried(described);
        if deleted.is_ok() {
            Notes::of_this_machine().remove(number, self.info.mark);
        }
        stopped.and(served).and(deleted)
    }
}

impl Drop for UblkDevice {
    fn drop(&mut self) {
        if !self.is_ended {
            // The kernel does not know it any more, then.
            let _ = self.end();
        }
    }
}

pub(super) fn open_control(described: &str) -> Result<Control, KernelError> {
    Control::open().map_err(|why| {
        let is_missing = why.kind() == io::ErrorKind::NotFound;
        let error = KernelError::new(described, why);
        match is_missing {
            true => error
                .advise("the kernel's ublk is not loaded: `modprobe ublk_drv` as root loads it"),
            false => error,
        }
    })
}

/// The kernel takes requests back from a dead server first, and says `EBUSY` until it has.
fn begin_recovery(control: &mut Control, number: u32) -> io::Result<()> {
    let started = Instant::now();
    loop {
        match control.begin_recovery(number) {
            Err(why)
                if why.kind() == io::ErrorKind::ResourceBusy
                    && started.elapsed() < QUIESCE_TIME_MAX =>
            {
                thread::sleep(QUIESCE_INTERVAL);
            }
            result => return result,
        }
    }
}

fn serve_queue(
    queues: &Arc<Queues>,
    queue: u16,
    device: &dyn BlockDevice,
    ready: &Sender<io::Result<()>>,
) -> io::Result<()> {
    // Not allowed without CAP_SYS_RESOURCE: swap, which needs it, asks for it itself.
    let _ = become_io_flusher();
    let mut served = match Queue::fetch(queues, queue) {
        Ok(served) => served,
        Err(why) => {
            // The other end waits for each thread.
            let _ = ready.send(Err(why));
            return Ok(());
        }
    };
    let _ = ready.send(Ok(()));
    served.serve(|request| answer(device, request))
}

fn answer(device: &dyn BlockDevice, request: Request<'_>) -> Result<(), Errno> {
    let Request { offset, operation, is_forced } = request;
    let durability = if is_forced { Durability::AtOnce } else { Durability::AtFlush };
    let bytes = match &operation {
        Operation::Read(data) => data.len() as u64,
        Operation::Write(data) => data.len() as u64,
        Operation::Flush => 0,
        Operation::Discard(bytes) | Operation::WriteZeroes { bytes, .. } => *bytes,
    };
    let size = device.size_bytes();
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        return Err(Errno::IO);
    }
    let answered = match operation {
        Operation::Read(data) => device.read(offset, data),
        Operation::Write(data) => device.write(offset, data, durability),
        Operation::Flush => device.flush(),
        Operation::Discard(bytes) => device.trim(offset, bytes, durability),
        Operation::WriteZeroes { bytes, may_unmap } => {
            let zeroing = Zeroing { may_trim: may_unmap, fast: false };
            device.zero(offset, bytes, zeroing, durability)
        }
    };
    answered.map_err(|error| match error {
        DeviceError::NoRoom => Errno::NOSPC,
        DeviceError::NotFast => Errno::OPNOTSUPP,
        DeviceError::ReadOnly => Errno::ROFS,
        DeviceError::Failed(_) => Errno::IO,
    })
}

/// A device of ours whose server is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Orphan {
    pub(super) number: u32,
    pub(super) mark: u64,
    pub(super) after_kill: AfterKill,
}

impl Orphan {
    /// A device that is no other program's, and that neither its server nor its maker has now.
    pub(super) fn of(info: &DeviceInfo, is_alive: impl Fn(u32) -> bool) -> Option<Orphan> {
        let maker = info.mark as u32 & !(MARK_FAIL as u32);
        let server = u32::try_from(info.server).ok().filter(|&server| server != 0);
        let is_ours = info.mark >> 32 == MARK;
        // The kernel knows best; processes' numbers are used again.
        let has_server = info.state() != State::Waiting && is_alive(server.unwrap_or(maker));
        let is_orphan = is_ours && !has_server;
        let after_kill = match info.mark & MARK_FAIL {
            // It was not started yet, or is stopped.
            _ if !info.is_recoverable() || info.state() == State::Dead => AfterKill::Remove,
            0 => AfterKill::Wait,
            _ => AfterKill::Fail,
        };
        is_orphan.then_some(Orphan { number: info.device, mark: info.mark, after_kill })
    }

    /// Whether this is the same device, and still nobody's.
    pub(super) fn is_still(&self, info: &DeviceInfo, is_alive: impl Fn(u32) -> bool) -> bool {
        Orphan::of(info, is_alive).is_some_and(|now| now.mark == self.mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(mark: u64, server: i32) -> DeviceInfo {
        let mut info = DeviceInfo::default();
        (info.device, info.mark, info.server) = (3, mark, server);
        info
    }

    fn orphan(mark: u64, server: i32, alive: &[u32]) -> Option<Orphan> {
        Orphan::of(&info(mark, server), |process| alive.contains(&process))
    }

    #[test]
    fn a_device_is_an_orphan_when_it_is_ours_and_has_no_process() {
        let ours = MARK << 32 | 77;
        let removed = |mark| Some(Orphan { number: 3, mark, after_kill: AfterKill::Remove });
        assert_eq!(orphan(ours, 77, &[]), removed(ours));
        let fails = ours | MARK_FAIL;
        assert_eq!(orphan(fails, 77, &[]), removed(fails), "it was never started");
        assert_eq!(orphan(ours, -1, &[]), removed(ours));
        // It is just being made.
        assert_eq!(orphan(ours, -1, &[77]), None);
        // Another process has taken it over.
        assert_eq!(orphan(ours, 78, &[78]), None);
        // Another program's.
        assert_eq!(orphan(77, 77, &[]), None);
    }

    #[test]
    fn an_orphan_is_no_longer_one_when_somebody_has_its_number() {
        let ours = MARK << 32 | 77;
        let found = orphan(ours, 77, &[]).unwrap();
        let is_still = |mark, server, alive: &[u32]| {
            found.is_still(&info(mark, server), |process| alive.contains(&process))
        };
        assert!(is_still(ours, 77, &[78]));
        // Another server has taken it over.
        assert!(!is_still(ours, 78, &[78]));
        // It was ended, and this is another server's; that one was killed too, or is another
        // program's.
        assert!(!is_still(MARK << 32 | 78, 78, &[78]));
        assert!(!is_still(MARK << 32 | 78, 78, &[]));
        assert!(!is_still(77, 77, &[]));
    }
}
