//! How files are read.

use super::measurement::{FILES, PAGE, Plan};

/// A way to go over the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Job {
    /// Each file from its start to its end, for the first time.
    Read,
    /// 4 KiB every 200 KiB, over the files again and again (paper 002).
    Stride,
    /// From the end to the start.
    Reverse,
    /// From the start to the end once more.
    Reread,
    /// 4 KiB anywhere in the files, after a warm-up.
    Random,
    /// The same in a tenth of each file.
    Hot,
    /// As `random`, by one thread.
    RandomOne,
}

impl Job {
    /// In the order in which they are run.
    pub(super) const ALL: [Job; 7] =
        [Job::Read, Job::Stride, Job::Reverse, Job::Reread, Job::Random, Job::RandomOne, Job::Hot];

    pub(super) fn name(self) -> &'static str {
        match self {
            Job::Read => "read",
            Job::Stride => "stride",
            Job::Reverse => "reverse",
            Job::Reread => "reread",
            Job::Random => "random",
            Job::Hot => "hot",
            Job::RandomOne => "random-one",
        }
    }

    /// The arguments of what precedes it and is not counted.
    pub(super) fn warm_up(self, plan: &Plan<'_>, files: &[String]) -> Option<Vec<String>> {
        match self {
            Job::Random | Job::Hot if plan.warm_seconds > 0 => {
                Some(self.for_seconds(plan, plan.warm_seconds, files))
            }
            _ => None,
        }
    }

    /// The arguments of fio.
    pub(super) fn arguments(self, plan: &Plan<'_>, files: &[String]) -> Vec<String> {
        let file_bytes = plan.file_bytes();
        match self {
            Job::Random | Job::Hot | Job::RandomOne => self.for_seconds(plan, plan.seconds, files),
            Job::Read | Job::Reread => in_order("read", "128k", file_bytes, file_bytes, files),
            // Once over the file.
            Job::Stride => in_order("read:196k", "4k", file_bytes / 50, file_bytes, files),
            Job::Reverse => in_order("read:-8k", "4k", file_bytes, file_bytes, files),
        }
    }

    fn for_seconds(self, plan: &Plan<'_>, seconds: u32, files: &[String]) -> Vec<String> {
        let part = if self == Job::Hot { plan.file_bytes() / 10 } else { plan.file_bytes() };
        let threads = if self == Job::RandomOne { 1 } else { FILES };
        let mut arguments: Vec<String> = [
            "--rw=randread",
            "--bs=4k",
            "--norandommap",
            "--time_based",
            "--group_reporting",
            "--ioengine=psync",
            "--file_service_type=random",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!("--name={}", self.name()));
        arguments.push(format!("--runtime={seconds}"));
        arguments.push(format!("--numjobs={threads}"));
        arguments.push(format!("--filesize={}", part / PAGE * PAGE));
        arguments.push(format!("--filename={}", files.join(":")));
        arguments
    }
}

/// Each thread reads a file of its own in this way, `bytes` of it.
fn in_order(how: &str, block: &str, bytes: u64, file_bytes: u64, files: &[String]) -> Vec<String> {
    let mut arguments = vec![
        "--group_reporting".to_owned(),
        "--ioengine=psync".to_owned(),
        format!("--rw={how}"),
        format!("--bs={block}"),
        format!("--size={file_bytes}"),
        format!("--io_size={}", bytes / PAGE * PAGE),
    ];
    for file in files {
        arguments.push(format!("--name={file}"));
        arguments.push(format!("--filename={file}"));
    }
    arguments
}
