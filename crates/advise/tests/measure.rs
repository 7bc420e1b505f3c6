//! Real processes, whose use of memory is known, measured from outside.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ramfold_advise::measure::{self, Error, Options};
use ramfold_advise::observation::{Observation, Subject, Window};
use ramfold_advise::progress::Progress;
use ramfold_model::footprint::Footprint;

/// Has 64 MiB, of which half is random, a quarter is one byte all over, and a quarter is text. Then
/// it goes over the first 16 MiB once a second, until `SECONDS` are over.
const PROGRAM: &str = r#"
import mmap, os, sys, time
MIB = 1 << 20
m = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, 32 * MIB, MIB):
    m[at:at + MIB] = os.urandom(MIB)
m[32 * MIB:48 * MIB] = b"\x07" * (16 * MIB)
text = "".join("line %d of a text that is long\n" % n for n in range(40000)).encode()[:MIB]
for at in range(48 * MIB, 64 * MIB, MIB):
    m[at:at + MIB] = text
print("ready", flush=True)
began, chunks = time.monotonic(), 0
while time.monotonic() - began < float(sys.argv[1]):
    for page in range(chunks % 64 * 64, chunks % 64 * 64 + 64):
        m[page * 4096] = 5
    chunks += 1
    time.sleep(max(0, began + chunks / 64 - time.monotonic()))
"#;
/// Pages that it goes over in a second.
const LOOP_PAGES: f64 = 4096.0;
/// What the interpreter itself touches at most, in pages.
const OTHER_PAGES: f64 = 700.0;

struct Program(Child);

impl Program {
    fn start(seconds: f64) -> Program {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM, &seconds.to_string()]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Program(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn lasting(seconds: f64) -> Options {
    Options { duration: Duration::from_secs_f64(seconds), ..Options::default() }
}

fn says(observation: &Observation, what: &str) -> bool {
    observation.not_seen.iter().any(|sentence| sentence.contains(what))
}

/// What is known of the program's memory.
fn check_memory(observation: &Observation, pages_least: usize) {
    assert_eq!(observation.check(), Ok(()));
    let need = observation.need_bytes >> 20;
    assert!((64..84).contains(&need), "{need} MiB");
    let contents = &observation.contents;
    let auto: Vec<u16> =
        contents.blocks.iter().flat_map(|block| &block.charged_bytes).map(|page| page[0]).collect();
    assert!(auto.len() > pages_least, "{}", auto.len());
    let part = |is_so: &dyn Fn(u16) -> bool| {
        auto.iter().filter(|&&bytes| is_so(bytes)).count() as f64 / auto.len() as f64
    };
    // Three standard deviations of 83 blocks and more. Python has some memory of its own.
    let [stay, none, some] = [part(&|b| b == 4096), part(&|b| b == 0), part(&|b| b < 1500)];
    assert!((0.29..0.64).contains(&stay), "random: {stay}");
    assert!((0.08..0.40).contains(&none), "filled: {none}");
    assert!((0.34..0.71).contains(&some), "all but random: {some}");
}

/// The footprint of its loop, which other programs may hold up for a moment.
fn check_windows(observation: &Observation) {
    let windows = observation.windows.iter().map(|window| (window.seconds, window.pages));
    let (mut short, mut long, mut ratios) = (0, 0, 0.0);
    for (seconds, pages) in windows.clone() {
        let most = LOOP_PAGES * 1.02 + OTHER_PAGES;
        assert!(pages < most, "{seconds} s: {pages} pages");
        if seconds > 1.5 {
            assert!(pages > LOOP_PAGES * 0.98, "{seconds} s: {pages} pages");
            long += 1;
        } else if (0.15..0.7).contains(&seconds) {
            ratios += pages / (LOOP_PAGES * seconds + OTHER_PAGES / 2.0);
            short += 1;
        }
    }
    assert!(short >= 1 && long >= 1, "{short} short windows, {long} long ones");
    let ratio = ratios / f64::from(short);
    assert!((0.75..1.3).contains(&ratio), "{ratio}: {:?}", observation.windows);
    let curve = Footprint::from_windows(windows).curve();
    // Half of the loop resident: under LRU each of its accesses is a fault.
    let half = curve.faults(LOOP_PAGES / 2.0) / LOOP_PAGES;
    assert!((0.6..1.4).contains(&half), "{half}");
    let all = curve.faults(LOOP_PAGES + 2.0 * OTHER_PAGES) / LOOP_PAGES;
    assert!(all < 0.08, "{all}");
}

/// Each test has the machine for itself: the others' programs would hold up its own.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_process_has_the_footprint_of_what_it_does() {
    let _alone = alone();
    let program = Program::start(1000.0);
    let observation = (0..4)
        .find_map(|_| {
            let progress = Progress::default();
            let observation = measure::process(program.pid(), &lasting(5.0), &progress).unwrap();
            assert_eq!(progress.part(), 1.0);
            // A look that comes late has no window, and leaves a gap in the curve.
            let has_middle = |window: &Window| (0.8..2.0).contains(&window.seconds);
            observation.windows.iter().any(has_middle).then_some(observation)
        })
        .expect("a window of the length of the loop");
    assert!(matches!(&observation.subject, Subject::Process { pid, name, arguments }
        if *pid == program.pid() && name.starts_with("python3") && arguments[1] == "-c"));
    assert!((5.0..12.0).contains(&observation.seconds), "{}", observation.seconds);
    check_memory(&observation, 1800);
    check_windows(&observation);
    assert!(says(&observation, "the longest window of time"));
    assert!(says(&observation, "clear_refs"));
}

#[test]
fn a_process_that_ends_leaves_what_was_seen() {
    let _alone = alone();
    let program = Program::start(1.5);
    let began = Instant::now();
    let progress = Progress::default();
    let observation = measure::process(program.pid(), &lasting(600.0), &progress).unwrap();
    assert!(began.elapsed() < Duration::from_secs(100));
    assert!(says(&observation, "ended after"), "{:?}", observation.not_seen);
    assert!(!observation.contents.blocks.is_empty() && !observation.windows.is_empty());
    assert_eq!(observation.check(), Ok(()));
}

#[test]
fn an_interruption_leaves_what_was_seen() {
    let _alone = alone();
    let program = Program::start(1000.0);
    let options = lasting(600.0);
    let progress = Arc::new(Progress::default());
    let watcher = std::thread::spawn({
        let (progress, interrupt) = (Arc::clone(&progress), Arc::clone(&options.interrupt));
        move || {
            while progress.part() < 1.0 / 600.0 {
                std::thread::sleep(Duration::from_millis(10));
            }
            interrupt.store(true, Ordering::Relaxed);
        }
    });
    let observation = measure::process(program.pid(), &options, &progress).unwrap();
    watcher.join().unwrap();
    assert!(observation.seconds < 100.0);
    assert!(says(&observation, "interrupted after"), "{:?}", observation.not_seen);
    assert!(observation.windows.iter().any(|window| window.seconds > 0.9), "{observation:?}");
    // A third of the time was to be the first round's.
    check_memory(&observation, 600);
}

/// Has 24 MiB, of which a child has the same since a fork, and 8 MiB of its own in huge pages where
/// the kernel has some.
const FORKED: &str = r#"
import mmap, os, sys
def memory(mib):
    return mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
shared, own = memory(24), memory(8)
shared.madvise(mmap.MADV_NOHUGEPAGE)
own.madvise(mmap.MADV_HUGEPAGE)
for page in range(0, 24 << 20, 4096):
    shared[page] = 1
ready = os.pipe()
if os.fork() == 0:
    os.close(ready[0])
    os.close(1)
    sys.stdin.read()
    os._exit(0)
for page in range(0, 8 << 20, 4096):
    own[page] = 1
print("ready", flush=True)
sys.stdin.read()
"#;

#[test]
fn what_is_shared_since_a_fork_is_not_counted() {
    let _alone = alone();
    let mut command = Command::new("python3");
    command.args(["-c", FORKED]).stdin(Stdio::piped()).stdout(Stdio::piped());
    // Dropped after its input, whose end ends the child.
    let mut program = Program(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let observation = measure::process(program.pid(), &lasting(0.5), &Progress::default()).unwrap();
    drop(program.0.stdin.take());
    let need = observation.need_bytes >> 20;
    assert!((8..24).contains(&need), "{need} MiB");
    assert!(says(&observation, "are shared with other processes since a fork"));
    let pages: usize =
        observation.contents.blocks.iter().map(|block| block.charged_bytes.len()).sum();
    assert!(pages > 0 && pages as u64 * 4096 <= observation.need_bytes, "{pages}");
    let huge = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if huge.is_ok_and(|enabled| !enabled.contains("[never]")) {
        // The kernel may have had no huge page to give.
        eprintln!("huge pages: {}", says(&observation, "lie in huge pages"));
    }
}

fn refused(pid: u32) -> String {
    measure::process(pid, &lasting(0.2), &Progress::default()).unwrap_err().to_string()
}

#[test]
fn what_is_no_process_to_measure_is_told() {
    assert!(refused(0).contains("0 is the number of no process"));
    assert!(refused(u32::MAX >> 1).contains("there is no such process"));
    assert!(refused(std::process::id()).contains("that is this ramfold itself"));
    let mut child = Command::new("true").spawn().unwrap();
    let state = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    while !state().contains(") Z") {
        std::thread::yield_now();
    }
    assert!(refused(child.id()).contains("it has ended, and waits for its parent"));
    child.wait().unwrap();
    // The process of this test has several threads.
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let threads = tasks.map(|task| task.file_name().to_str().unwrap().parse::<u32>().unwrap());
    let thread = threads.filter(|&thread| thread != std::process::id()).max().unwrap();
    assert!(refused(thread).contains("that is a thread of process"));
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        assert!(refused(2).contains("it is a thread of the kernel"));
    } else {
        eprintln!("SKIPPED: no threads of the kernel are listed here");
    }
}

#[test]
fn another_users_process_is_refused() {
    match fs::read_to_string("/proc/1/smaps") {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let error = measure::process(1, &lasting(0.2), &Progress::default()).unwrap_err();
            assert!(matches!(error, Error::NotPermitted { pid: 1, .. }), "{error}");
            assert!(error.to_string().contains("must belong to the user that measures it"));
        }
        _ => eprintln!("SKIPPED: every process may be looked at here"),
    }
}

/// A control group below this process's own, where one can be made.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = |line: &str| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let mount = match controllers {
                "memory" => "/sys/fs/cgroup/memory",
                "" => "/sys/fs/cgroup",
                _ => return None,
            };
            Some(Path::new(mount).join(path.trim_start_matches('/')))
        };
        membership.lines().filter_map(path).find_map(|parent| {
            let folder = parent.join(format!("ramfold-measure-{}", std::process::id()));
            fs::create_dir(&folder).ok()?;
            let group = Group(folder);
            group.0.join("cgroup.procs").exists().then_some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was killed leaves the group some time later.
        let deadline = Instant::now() + Duration::from_secs(20);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_group_is_all_its_processes() {
    let _alone = alone();
    let Some(group) = Group::new() else {
        return eprintln!("SKIPPED: no control group can be made here");
    };
    let measured = |path: &Path| measure::group(path, &lasting(2.5), &Progress::default());
    assert!(matches!(measured(&group.0), Err(Error::EmptyGroup { .. })));
    let one = Program::start(1000.0);
    if let Err(error) = fs::write(group.0.join("cgroup.procs"), one.pid().to_string()) {
        return eprintln!("SKIPPED: a process cannot be put into a control group: {error}");
    }
    // A group below belongs to it.
    let inner = Group(group.0.join("inner"));
    fs::create_dir(&inner.0).unwrap();
    let other = Program::start(1000.0);
    let has_inner = fs::write(inner.0.join("cgroup.procs"), other.pid().to_string()).is_ok();
    let limit = ["memory.limit_in_bytes", "memory.max"]
        .iter()
        .any(|file| fs::write(group.0.join(file), (512 << 20).to_string()).is_ok());
    let observation = measured(&group.0).unwrap();
    assert_eq!(observation.check(), Ok(()));
    assert!(matches!(&observation.subject, Subject::Group(path) if Path::new(path) == group.0));
    if limit {
        assert_eq!(observation.machine.memory_bytes, 512 << 20);
    }
    let processes: std::collections::BTreeSet<u64> =
        observation.contents.blocks.iter().map(|block| block.first_page >> 44).collect();
    assert_eq!(processes.len(), if has_inner { 2 } else { 1 });
    // Both loops, over a second and more.
    let longest =
        observation.windows.iter().max_by(|one, other| one.seconds.total_cmp(&other.seconds));
    let pages = longest.unwrap().pages / LOOP_PAGES;
    let loops = processes.len() as f64;
    assert!((loops * 0.95..loops * 1.3).contains(&pages), "{pages}");
    drop((one, other));
}

#[test]
fn what_is_no_group_is_told() {
    let path = Path::new("/nothing.slice");
    let error = measure::group(path, &lasting(0.2), &Progress::default()).unwrap_err();
    assert!(error.to_string().starts_with("/nothing.slice is no control group: name a folder"));
}
