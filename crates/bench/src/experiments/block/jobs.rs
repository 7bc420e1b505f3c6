//! How a device is read and written.

/// A way to use a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// 4 KiB anywhere.
    RandomRead,
    /// The same, written.
    RandomWrite,
    /// 1 MiB after 1 MiB, by one connection.
    SequentialRead,
    /// The same, written.
    SequentialWrite,
}

impl Job {
    /// Reads first: what is written is not the content that compresses like files.
    pub(super) const ALL: [Job; 4] =
        [Job::RandomRead, Job::SequentialRead, Job::RandomWrite, Job::SequentialWrite];

    pub(super) fn name(self) -> &'static str {
        match self {
            Job::RandomRead => "random-read",
            Job::RandomWrite => "random-write",
            Job::SequentialRead => "sequential-read",
            Job::SequentialWrite => "sequential-write",
        }
    }

    pub(super) fn is_random(self) -> bool {
        matches!(self, Job::RandomRead | Job::RandomWrite)
    }

    pub(super) fn is_write(self) -> bool {
        matches!(self, Job::RandomWrite | Job::SequentialWrite)
    }

    /// fio's name of the access.
    fn access(self) -> &'static str {
        match self {
            Job::RandomRead => "randread",
            Job::RandomWrite => "randwrite",
            Job::SequentialRead => "read",
            Job::SequentialWrite => "write",
        }
    }

    /// The arguments of fio, without those that say which device.
    pub(super) fn arguments(self, connections: u32, depth: u32, seconds: u32) -> Vec<String> {
        let (block, depth) = if self.is_random() { ("4k", depth) } else { ("1m", 4) };
        let mut arguments = vec![
            format!("--name={}", self.name()),
            format!("--rw={}", self.access()),
            format!("--bs={block}"),
            format!("--iodepth={depth}"),
            format!("--numjobs={connections}"),
            "--time_based".to_owned(),
            format!("--runtime={seconds}"),
            "--norandommap".to_owned(),
            "--group_reporting".to_owned(),
        ];
        if self.is_write() {
            // Half of each page is random.
            arguments.extend(
                [
                    "--refill_buffers",
                    "--buffer_compress_percentage=50",
                    "--buffer_compress_chunk=4096",
                ]
                .map(str::to_owned),
            );
        }
        arguments
    }
}
