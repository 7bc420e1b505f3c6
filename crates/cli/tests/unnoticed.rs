//! What a program sees under `ramfold run` is what it sees without.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{RAMFOLD, Watched, is_root, needs_userfaultfd, ramfold, run, text, tree, wait_until};

/// Compiles a program of `tests/unnoticed`.
fn compile(source: &str, options: &[&str], folder: &Path) -> PathBuf {
    compile_by("cc", source, options, folder)
}

fn compile_by(compiler: &str, source: &str, options: &[&str], folder: &Path) -> PathBuf {
    let program = folder.join(Path::new(source).file_stem().unwrap());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unnoticed").join(source);
    let compiled = Command::new(compiler)
        .args(["-O1", "-g", "-rdynamic", "-Wall", "-pthread"])
        .args(options)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(compiled.unwrap().success(), "{}", source.display());
    program
}

/// What a program prints, and its exit status, without ramfold and with it at each cap.
fn observe(program: &Path, argument: &str, caps: &[&str]) {
    let shown = |command: &mut Command| {
        let ended = run(command);
        let output = ended.output;
        // What forked processes share cannot be taken out: that may be said.
        let said: Vec<String> = text(&output.stderr)
            .lines()
            .filter(|line| !line.contains("MiB cannot be held"))
            .map(str::to_owned)
            .collect();
        (output.status.code(), text(&output.stdout), said)
    };
    let without = shown(Command::new(program).arg(argument));
    assert!(without.0.is_some(), "{argument}: {without:?}");
    for cap in caps {
        let with = shown(ramfold(["--memory", cap, "--"]).arg(program).arg(argument));
        assert_eq!(with, without, "{argument} at {cap}");
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_program_prints_the_same() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let program = compile("observe.c", &[], folder.path());
    let listed = run(&mut Command::new(&program)).output;
    let sections: Vec<String> = text(&listed.stdout).lines().skip(1).map(str::to_owned).collect();
    assert!(sections.len() > 5, "{sections:?}");
    for section in &sections {
        // A child that has evicted pages sleeps until its agent knows of them.
        let caps = if section == "awake_in_fork" { &["8G"][..] } else { &["40M", "8G"] };
        observe(&program, section, caps);
    }
}

/// Missing pages would read as zeros where nobody answers faults.
#[test]
fn a_program_whose_agent_is_killed_ends() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
import sys
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
print('begun', flush=True)
while True:
    for i, page in enumerate(pages):
        if page != bytes([i % 7]) * 4000:
            print('wrong', flush=True)
            sys.exit(1)
";
    let mut command = ramfold(["--memory", "30M", "--", "/usr/bin/python3", "-c", SCRIPT]);
    let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(launcher.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let find = || tree(launcher.id()).into_iter().find(|pid| name(pid) == "ramfold-agent\n");
    wait_until("it has an agent", || find().is_some());
    let agent = find().unwrap();
    let killed = Command::new("kill").args(["-9", &agent.to_string()]).status();
    assert!(killed.unwrap().success());
    let ended = launcher.wait_with_output().unwrap();
    line.clear();
    output.read_to_string(&mut line).unwrap();
    let said = text(&ended.stderr);
    assert_eq!((ended.status.code(), line.as_str()), (Some(137), ""), "{said}");
    assert!(said.contains("its agent"), "{said}");
}

/// Its agent ends with the memory, and the kernel waits for that agent to read what became of it.
#[test]
fn a_program_that_unmaps_everything_ends() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
import ctypes, os
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
munmap = ctypes.CDLL(None).munmap
for round in range(3):
    child = os.fork()
    if child == 0:
        munmap(None, ctypes.c_size_t((1 << 47) - 4096))
    print(os.WIFSIGNALED(os.waitpid(child, 0)[1]))
print(all(page == bytes([i % 7]) * 4000 for i, page in enumerate(pages)))
";
    let mut command = ramfold(["--memory", "30M", "--", "/usr/bin/python3", "-c", SCRIPT]);
    let output = run(&mut command).output;
    let said = text(&output.stderr);
    assert_eq!((text(&output.stdout), said.as_str()), ("True\n".repeat(4), ""));
}

/// Neither the memory of a program that has ended nor the process that looked after it is left.
#[test]
fn nothing_is_left_of_a_program() {
    needs_userfaultfd!();
    // Processes that end, execute others, and outlive their parents.
    const SCRIPT: &str = "
import os, sys
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
for round in range(20):
    if os.fork() == 0:
        if round % 4 == 0: os.execv('/bin/true', ['true'])
        if round % 4 == 1: os.kill(os.getpid(), 9)
        if round % 4 == 2 and os.fork() == 0:
            assert len(pages[-1]) == 4000
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
os.execv('/bin/echo', ['echo', 'right'])
";
    let mut command = ramfold(["--memory", "30M", "--", "/usr/bin/python3", "-c", SCRIPT]);
    let launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let session = launcher.id();
    let ended = launcher.wait_with_output().unwrap();
    assert_eq!(text(&ended.stdout), "right\n", "{}", text(&ended.stderr));
    // What outlived the program may take a moment; what is dead and not waited for stays.
    wait_until("no process is left", || {
        !fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("environ")).ok())
            .any(|environment| environment.contains(&format!("RAMFOLD_SESSION={session}:")))
    });
}

/// Prints whether it is held at 30 MiB, and its environment.
const WHAT_IT_IS_GIVEN: &str = "
import os, time
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
def is_held():
    [line] = [line for line in open('/proc/self/status') if line.startswith('RssAnon')]
    return int(line.split()[1]) < 45 << 10
end = time.monotonic() + 120
while not is_held() and time.monotonic() < end:
    time.sleep(0.01)
# Python itself sets a variable where no locale is given.
environment = sorted(item for item in os.environ.items() if item[0] != 'LC_CTYPE')
print(is_held(), environment)
";

#[test]
fn the_agent_comes_along_whatever_the_environment_and_leaves_it_as_it_is() {
    needs_userfaultfd!();
    let libraries = format!("LD_PRELOAD={}", "libm.so.6:".repeat(150));
    let given = format!("[('LD_PRELOAD', '{}')]", "libm.so.6:".repeat(150));
    for (command, environment) in [
        (&["env", "-i"][..], "[]"),
        (&["env", "-i", "A=b", "C=d"], "[('A', 'b'), ('C', 'd')]"),
        (&["env", "-i", "LD_PRELOAD=libm.so.6"], "[('LD_PRELOAD', 'libm.so.6')]"),
        (&["env", "-i", &libraries], &given),
        (&["env", "-i", "sh", "-c", "unset PWD; exec \"$@\"", "sh"], "[]"),
        (&["env", "-i", "sh", "-c", "unset PWD; \"$@\"; exit 0", "sh"], "[]"),
    ] {
        let mut ramfold = ramfold(["--memory", "30M", "--"]);
        ramfold.args(command).args(["/usr/bin/python3", "-S", "-E", "-c", WHAT_IT_IS_GIVEN]);
        let ended = run(&mut ramfold);
        let (printed, said) = (text(&ended.output.stdout), text(&ended.output.stderr));
        assert_eq!(printed, format!("True {environment}\n"), "{command:?}: {said}");
        assert_eq!(said, "", "{command:?}");
    }
}

#[test]
fn a_program_that_ramfold_cannot_come_along_to_is_named() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let program = compile("hello.c", &["-static"], folder.path());
    let ended = run(ramfold(["--", "sh", "-c", "\"$0\"; \"$0\""]).arg(&program));
    assert_eq!(text(&ended.output.stdout), "hello\nhello\n");
    let said = text(&ended.output.stderr);
    let expected = format!("ramfold: {} runs without ramfold: it is statically", program.display());
    assert!(said.starts_with(&expected) && said.lines().count() == 1, "{said}");
}

/// bwrap with these options and what most programs need; `None` where it cannot make a sandbox
/// here.
fn bwrap(options: &[&str]) -> Option<Vec<String>> {
    let mut command = vec!["bwrap".to_owned()];
    command.extend(options.iter().map(|&option| option.to_owned()));
    let tried = Command::new("bwrap").args(options).arg("/bin/true").output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED, bwrap is not installed, or makes no sandbox here: {tried:?}");
        return None;
    }
    Some(command)
}

/// What is needed of the machine's files to run programs, and no other.
const FILES: &[&str] = &[
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
];

#[test]
fn a_sandbox_without_the_library_is_named_and_its_loader_does_not_complain() {
    needs_userfaultfd!();
    let Some(sandbox) = bwrap(FILES) else { return };
    const SCRIPT: &str =
        "/bin/true; echo \"$LD_PRELOAD|$RAMFOLD_SESSION\"; env | grep -c RAMFOLD_SESSION";
    for (preload, left) in [(None, "|"), (Some("libm.so.6"), "libm.so.6|")] {
        let mut command = ramfold(["--"]);
        command.args(&sandbox).args(["/bin/sh", "-c", SCRIPT]).env_remove("LD_PRELOAD");
        if let Some(preload) = preload {
            command.env("LD_PRELOAD", preload);
        }
        let output = run(&mut command).output;
        assert_eq!(text(&output.stdout), format!("{left}\n0\n"), "{}", text(&output.stderr));
        let said = text(&output.stderr);
        let expected = "ramfold: /bin/sh runs without ramfold: ramfold's library cannot be seen";
        assert!(said.starts_with(expected) && said.lines().count() == 1, "{said}");
    }
}

/// bwrap puts other files in the place of /proc at once, when the agent of its process has just
/// begun.
#[test]
fn a_sandbox_with_processes_of_its_own_is_looked_after() {
    needs_userfaultfd!();
    if !is_root() {
        return eprintln!("SKIPPED, in a user namespace no agent comes along");
    }
    let options = ["--bind", "/", "/", "--unshare-pid", "--proc", "/proc"];
    let Some(sandbox) = bwrap(&options) else { return };
    // Nor does it take long from fork to execve, and from there to the next.
    for _ in 0..20 {
        let mut command = ramfold(["--"]);
        let output = run(command.args(&sandbox).args(["env", "-i", "/bin/true"])).output;
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    }
    let mut command = ramfold(["--memory", "30M", "--"]);
    command.args(&sandbox).args([
        "env",
        "-i",
        "/usr/bin/python3",
        "-S",
        "-E",
        "-c",
        WHAT_IT_IS_GIVEN,
    ]);
    let output = run(&mut command).output;
    assert_eq!(text(&output.stdout), "True []\n", "{}", text(&output.stderr));
}

#[test]
fn who_runs_as_another_user_is_held_or_named() {
    needs_userfaultfd!();
    const NAMESPACE: &str = "it is in another user namespace";
    const USER: &str = "it is another user's";
    const EFFECTIVE: &str = "its effective user or group is not its real one";
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&["unshare", "-U"], NAMESPACE),
        (&["unshare", "-Ur"], NAMESPACE),
        (&["unshare", "-Urpf", "--mount-proc"], NAMESPACE),
        (&["su", "nobody", "-s", "/bin/sh", "-c", "\"$0\" \"$@\"", "--"], USER),
        (&["chroot", "--userspec=65534:65534", "/"], USER),
        (&["setpriv", "--euid=65534"], EFFECTIVE),
        (&["setpriv", "--ruid=65534"], EFFECTIVE),
        (&["setpriv", "--regid=65534", "--clear-groups"], ""),
        (&["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"], ""),
    ];
    for (command, reason) in cases {
        let works = Command::new(command[0]).args(&command[1..]).arg("/bin/true").output();
        if !is_root() && command[0] != "unshare" || !works.is_ok_and(|o| o.status.success()) {
            eprintln!("SKIPPED, not possible here: {command:?}");
            continue;
        }
        let held = WHAT_IT_IS_GIVEN.replace("120", if reason.is_empty() { "120" } else { "0" });
        let python = ["/usr/bin/python3", "-S", "-E", "-c", &held];
        let mut ramfold = ramfold(["--memory", "30M", "--"]);
        let output = run(ramfold.args(command).args(python).current_dir(folder.path())).output;
        let (printed, said) = (text(&output.stdout), text(&output.stderr));
        assert!(printed.starts_with(if reason.is_empty() { "True " } else { "False " }), "{said}");
        // Where a second passes before it executes python3, as on a busy machine, the agent of what
        // went to the namespace says so, which is true.
        let of_python = said.lines().filter(|line| !line.contains("its agent's process could not"));
        assert_eq!(of_python.count(), usize::from(!reason.is_empty()), "{command:?}: {said}");
        let expected = format!(" runs without ramfold: {reason}");
        assert!(reason.is_empty() || said.contains(&expected), "{command:?}: {said}");
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn sanitizers_find_what_they_find_without() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    // Where clang has its runtimes, which no loader looks for.
    let folder_of_clang = Command::new("clang").arg("-print-runtime-dir").output().ok();
    let path = folder_of_clang.map(|output| format!("-Wl,-rpath,{}", text(&output.stdout).trim()));
    let by_clang = path.as_ref().map(|path| {
        let options = [path, "-fsanitize=address", "-shared-libasan"];
        ("clang", options.to_vec(), "byte(s) leaked")
    });
    let by_gcc = [
        ("cc", vec!["-fsanitize=address"], "byte(s) leaked"),
        ("cc", vec!["-fsanitize=address", "-static-libasan"], "byte(s) leaked"),
        ("cc", vec!["-fsanitize=leak"], "byte(s) leaked"),
        ("cc", vec!["-fsanitize=thread"], "data race"),
    ];
    for (compiler, mut options, expected) in by_gcc.into_iter().chain(by_clang) {
        options.push("-O0");
        let program = compile_by(compiler, "faulty.c", &options, folder.path());
        for by_shell in [false, true] {
            let mut ramfold = ramfold(["--memory", "60M", "--"]);
            if by_shell {
                ramfold.args(["sh", "-c", "exec \"$0\""]);
            }
            let ended = run(ramfold.arg(&program));
            let said = text(&ended.output.stderr);
            assert!(said.contains(expected), "{options:?}: {said}");
            assert!(!said.contains("ramfold:"), "{options:?}: {said}");
        }
    }
}

#[test]
fn what_is_ignored_stays_ignored_and_nothing_else_is() {
    for script in ["exec \"$@\"", "trap '' INT HUP USR1; exec \"$@\""] {
        let shown = |command: &[&str]| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script, "sh"]).args(command);
            let ended = run(shell.args(["grep", "Sig[BIC]", "/proc/self/status"]));
            text(&ended.output.stdout)
        };
        assert_eq!(shown(&[RAMFOLD, "run", "--"]), shown(&["env"]), "{script}");
    }
}

#[test]
fn the_environment_keeps_its_order_and_its_oddities() {
    // A shell does not pass on what is no variable: python does.
    const SCRIPT: &str = "
import ctypes, sys
words = [word.encode() for word in sys.argv[2:]]
arguments = (ctypes.c_char_p * (len(words) + 1))(*words, None)
odd = [b'Z=1', b'A=2', b'no assignment', b'Z=3', b'=', b'M=']
environment = (ctypes.c_char_p * (len(odd) + 1))(*odd, None)
ctypes.CDLL(None).execve(words[0], arguments, environment)
";
    let shown = |command: &[&str]| {
        let mut python = Command::new("/usr/bin/python3");
        let ended = run(python.args(["-c", SCRIPT, "--"]).args(command));
        let environment = ended.output.stdout;
        environment
            .split(|&byte| byte == 0)
            .map(text)
            .filter(|entry| !entry.starts_with("LD_PRELOAD=") && !entry.starts_with("RAMFOLD_"))
            .collect::<Vec<_>>()
    };
    let printer = ["/bin/cat", "/proc/self/environ"];
    let with = shown(&[&[RAMFOLD, "run", "--"][..], &printer].concat());
    assert_eq!(with, shown(&printer));
    assert!(with.len() > 5, "{with:?}");
}

/// A shell starts its background jobs with some signals ignored; what such a job handles
/// nevertheless reaches it.
#[test]
fn a_signal_that_was_ignored_is_passed_on() {
    const SCRIPT: &str = "
import signal
signal.signal(signal.SIGINT, lambda *_: exit(9))
print('ready', flush=True)
while True:
    signal.pause()
";
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT; exec \"$@\"", "sh", RAMFOLD, "run", "--"]);
    shell.args(["/usr/bin/python3", "-c", SCRIPT]).stdout(Stdio::piped());
    let mut launcher = shell.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let sent = Command::new("kill").args(["-INT", &launcher.id().to_string()]).status();
    assert!(sent.unwrap().success());
    assert_eq!(launcher.wait().unwrap().code(), Some(9));
}

/// Who reads a program's memory from outside finds all of it after SIGUSR1.
#[test]
fn all_memory_comes_back_on_request() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
import ctypes, mmap, os, time
memory = mmap.mmap(-1, 80 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(len(memory) // 4096):
    memory[page * 4096:page * 4096 + 8] = page.to_bytes(8, 'little')
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
while not os.path.exists(os.environ['ENOUGH']):
    time.sleep(0.05)
";
    let watched = Watched::start(&["--memory", "30M"], &["/usr/bin/python3", "-c", SCRIPT]);
    wait_until("the memory is filled", || watched.printed().ends_with('\n'));
    let start: u64 = watched.printed().trim().parse().unwrap();
    let file = fs::File::open(format!("/proc/{}/mem", watched.program())).unwrap();
    let missing = || {
        (0..(80 << 20) / 4096_u64)
            .filter(|page| {
                let mut bytes = [0; 8];
                let read = file.read_exact_at(&mut bytes, start + page * 4096);
                read.is_err() || u64::from_le_bytes(bytes) != *page
            })
            .count()
    };
    assert!(missing() > 5000, "nothing is compressed");
    watched.signal("-USR1");
    wait_until("all is back", || missing() == 0);
    watched.signal("-USR1");
    wait_until("the cap holds again", || missing() > 5000);
    let (output, _) = watched.end();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("SIGUSR1").count(), 2, "{said}");
}
