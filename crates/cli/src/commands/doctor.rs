//! `ramfold doctor`: what works on this machine, and what to do about the rest.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use nix::unistd::{Group, User, geteuid};
use ramfold_codec::Backend;
use ramfold_launch::UserfaultfdProblem;
use ramfold_sys::pagemap::Pagemap;
use ramfold_sys::uffd::{OpenedBy, Uffd, feature};
use ramfold_sys::{Errno, cgroup};
use serde_json::json;

const GROUP: &str = "ramfold";
const RULE_FILE: &str = "/etc/udev/rules.d/60-ramfold.rules";
const RULE: &str = "# Lets the group ramfold use userfaultfd (written by `ramfold doctor --fix`).\n\
    KERNEL==\"userfaultfd\", SUBSYSTEM==\"misc\", GROUP=\"ramfold\", MODE=\"0660\"\n";

/// Say what works on this machine and how to mend the rest.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ramfold doctor
  sudo ramfold doctor --fix")]
pub(crate) struct Arguments {
    /// Let a group use userfaultfd through a udev rule, and add the user who called sudo to it
    /// (root only)
    #[arg(long)]
    fix: bool,
    /// Print for machines
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Works,
    Limited,
    Missing,
}

struct Check {
    name: &'static str,
    state: State,
    found: String,
    /// What to do, when there is something.
    remedy: Option<String>,
}

/// Prints the checks; 0 when `ramfold run` works for this user, 1 when not.
///
/// # Errors
/// When `--fix` fails.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    if arguments.fix {
        fix()?;
    }
    let checks = checks();
    if arguments.json {
        let rows: Vec<_> = checks
            .iter()
            .map(|check| {
                json!({
                    "check": check.name,
                    "state": word(check.state),
                    "found": check.found,
                    "remedy": check.remedy,
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        let mut table = Table::new();
        table.load_preset(NOTHING);
        for check in &checks {
            table.add_row([word(check.state), check.name, &check.found]);
        }
        println!("{table}");
        for check in &checks {
            if let Some(remedy) = &check.remedy {
                println!("\n{}: {remedy}", check.name);
            }
        }
    }
    Ok(i32::from(checks.iter().any(|check| check.state == State::Missing)))
}

fn word(state: State) -> &'static str {
    match state {
        State::Works => "ok",
        State::Limited => "limited",
        State::Missing => "MISSING",
    }
}

/// What is wrong, and what to do.
pub(crate) fn explained(problem: UserfaultfdProblem) -> String {
    let Check { found, remedy, .. } = check_of(problem);
    match remedy {
        Some(remedy) => format!("{found}; {remedy}"),
        None => found,
    }
}

/// The check that fails.
fn check_of(problem: UserfaultfdProblem) -> Check {
    let (name, remedy) = match &problem {
        UserfaultfdProblem::NotPermitted(error) => {
            ("userfaultfd", Some(ways_to_permit(error.system_call)))
        }
        UserfaultfdProblem::Lacks(_) => {
            ("its features", Some("Linux 6.8 has it on x86-64, 6.10 on arm64".to_owned()))
        }
        UserfaultfdProblem::Unknown(_) => ("its features", None),
    };
    Check { name, state: State::Missing, found: problem.to_string(), remedy }
}

fn checks() -> Vec<Check> {
    let mut checks = vec![kernel()];
    checks.extend(checks_of_userfaultfd());
    checks.push(page_scan());
    checks.push(priority());
    checks.push(memory());
    checks.push(codecs());
    checks
}

fn kernel() -> Check {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let found = format!("Linux {} on {}", release.trim(), std::env::consts::ARCH);
    Check { name: "kernel", state: State::Works, found, remedy: None }
}

fn checks_of_userfaultfd() -> Vec<Check> {
    let opened = match Uffd::open() {
        Ok((_, OpenedBy::Device)) => "by /dev/userfaultfd",
        Ok((_, OpenedBy::SystemCall)) => "by the system call",
        Err(error) => return vec![check_of(UserfaultfdProblem::NotPermitted(error))],
    };
    let permitted = Check {
        name: "userfaultfd",
        state: State::Works,
        found: format!("permitted, {opened}"),
        remedy: None,
    };
    match ramfold_launch::features_problem() {
        Some(problem) => vec![permitted, check_of(problem)],
        None => {
            let moves = Check {
                name: "its features",
                state: State::Works,
                found: "all that is needed, MOVE among them".to_owned(),
                remedy: None,
            };
            vec![permitted, moves, forks()]
        }
    }
}

fn forks() -> Check {
    let told = Uffd::open().ok().map(|(uffd, _)| uffd.enable(feature::EVENT_FORK));
    let (state, found) = match told {
        Some(Ok(_)) => (State::Works, "also those that bypass the C library".to_owned()),
        _ => (
            State::Limited,
            "those of the C library; a program that clones itself without it needs CAP_SYS_PTRACE"
                .to_owned(),
        ),
    };
    Check { name: "forks", state, found, remedy: None }
}

fn ways_to_permit(system_call: Errno) -> String {
    if system_call == Errno::NOSYS {
        return "this kernel is built without userfaultfd (CONFIG_USERFAULTFD)".to_owned();
    }
    format!(
        "any one of these permits it: `sudo {} doctor --fix` (a group may use /dev/userfaultfd, \
         Linux 6.1); running with sudo; `sudo sysctl vm.unprivileged_userfaultfd=1`. In a \
         container, give it /dev/userfaultfd (docker run --device /dev/userfaultfd)",
        name_for_sudo()
    )
}

/// What sudo finds this program by: sudo looks in its own folders, not in the caller's PATH.
fn name_for_sudo() -> String {
    let folders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    match std::env::current_exe() {
        Ok(path) if !folders.iter().any(|folder| path.parent() == Some(Path::new(folder))) => {
            path.display().to_string()
        }
        _ => "ramfold".to_owned(),
    }
}

fn page_scan() -> Check {
    let (state, found, remedy) = match Pagemap::open() {
        Ok(pagemap) if pagemap.has_scan() => (State::Works, "PAGEMAP_SCAN".to_owned(), None),
        Ok(_) => (State::Limited, "by /proc/self/pagemap, which is slower".to_owned(), None),
        Err(error) => {
            (State::Missing, format!("/proc/self/pagemap: {error}"), Some("mount /proc".to_owned()))
        }
    };
    Check { name: "finding pages", state, found, remedy }
}

/// Whether the agent's threads come before all that runs on the machine.
fn priority() -> Check {
    let first = std::thread::spawn(ramfold_launch::run_soon).join();
    let (state, found, remedy) = match first {
        Ok(Ok(true)) => (State::Works, "the agent comes before other work", None),
        _ => (
            State::Limited,
            "the agent waits for its turn: on a busy machine a program that grows fast passes a \
             small cap for milliseconds",
            Some("`ulimit -e 30` (nice in /etc/security/limits.conf) or CAP_SYS_NICE".to_owned()),
        ),
    };
    Check { name: "priority", state, found: found.to_owned(), remedy }
}

/// Which instructions compress, and with which codec that is worth it.
fn codecs() -> Check {
    let best = Backend::best();
    let (state, found) = if best == Backend::SCALAR {
        (
            State::Limited,
            "no vector instructions: lz4 instead of wkv, which shrinks less".to_owned(),
        )
    } else {
        (State::Works, format!("wkv, lz4 and page-lz with {}", best.name()))
    };
    Check { name: "codecs", state, found, remedy: None }
}

fn memory() -> Check {
    let machine = cgroup::machine_memory_bytes().unwrap_or(0);
    let found = match cgroup::memory_limit_bytes() {
        Some(limit) if limit < machine => {
            format!("{} MiB, limited to {} MiB by the control group", machine >> 20, limit >> 20)
        }
        _ => format!("{} MiB, no limit by a control group", machine >> 20),
    };
    Check { name: "memory", state: State::Works, found, remedy: None }
}

/// Lets the group use `/dev/userfaultfd` from now on and after every start of the machine.
fn fix() -> anyhow::Result<()> {
    anyhow::ensure!(
        geteuid().is_root(),
        "--fix changes the system: run `sudo {} doctor --fix`",
        name_for_sudo()
    );
    let device = Path::new("/dev/userfaultfd");
    anyhow::ensure!(
        device.exists(),
        "there is no /dev/userfaultfd (Linux 6.1 has it; a container must be given it); \
         `sysctl vm.unprivileged_userfaultfd=1` is another way"
    );
    if Group::from_name(GROUP)?.is_none() {
        run_tool("groupadd", &["--system", GROUP])?;
    }
    let group = Group::from_name(GROUP)?.context("the group that groupadd made is not there")?;
    let rules = Path::new(RULE_FILE);
    if let Some(folder) = rules.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    fs::write(rules, RULE).with_context(|| format!("writing {RULE_FILE}"))?;
    // The rule applies when the device appears; this once by hand.
    std::os::unix::fs::chown(device, None, Some(group.gid.as_raw()))
        .context("giving /dev/userfaultfd to the group")?;
    fs::set_permissions(device, fs::Permissions::from_mode(0o660))
        .context("letting the group use /dev/userfaultfd")?;
    println!(
        "{RULE_FILE} written; {} is now {:o}, group {GROUP}",
        device.display(),
        fs::metadata(device)?.mode() & 0o777
    );
    match std::env::var("SUDO_USER").ok().and_then(|name| User::from_name(&name).ok().flatten()) {
        Some(user) if !user.uid.is_root() => {
            run_tool("usermod", &["--append", "--groups", GROUP, &user.name])?;
            println!("{} is now in the group; it counts from the next login on", user.name);
        }
        _ => println!("add users with: usermod --append --groups {GROUP} NAME"),
    }
    Ok(())
}

fn run_tool(tool: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let status =
        Command::new(tool).args(arguments).status().with_context(|| format!("running {tool}"))?;
    anyhow::ensure!(status.success(), "{tool} {} failed: {status}", arguments.join(" "));
    Ok(())
}
