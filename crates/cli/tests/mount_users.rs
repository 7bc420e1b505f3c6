//! Real mounts used by several users: what one may do to another's files, and who waits for whom.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::mounted::{Mounted, python};

/// Also right after it has become another through SOURCE.
#[test]
fn users_may_do_to_each_others_files_what_they_may_in_source() {
    let Some(mounted) = Mounted::new() else { return };
    let plain = mounted.folder.path().join("plain");
    fs::create_dir(&plain).unwrap();
    let done_in = |behind: &Path, through: &Path| {
        let output = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/several_users.py"))
            .args([behind, through])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let expected = done_in(&plain, &plain);
    assert!(expected.lines().count() > 80, "{expected}");
    let done = done_in(&mounted.source(""), &mounted.mount(""));
    for (expected, done) in expected.lines().zip(done.lines()) {
        assert_eq!(done, expected);
    }
    assert_eq!(done.lines().count(), expected.lines().count());
}

/// Who has a lease on a file (fcntl, F_SETLEASE) has 45 s to give it up.
#[test]
fn who_waits_for_a_lease_keeps_nobody_else_waiting() {
    let Some(mounted) = Mounted::new() else { return };
    let program = r#"
import fcntl, os, signal, subprocess, sys, time
behind, through = sys.argv[1:]
signal.signal(signal.SIGIO, signal.SIG_IGN)
held, cats = [], []
for number in range(40):
    name = '/file%d' % number
    open(behind + name, 'w').close()
    held.append(os.open(behind + name, os.O_RDWR))
    fcntl.fcntl(held[-1], fcntl.F_SETLEASE, fcntl.F_WRLCK)
try:
    os.open(through + name, os.O_RDONLY | os.O_NONBLOCK)
    sys.exit('a file with a lease was opened')
except BlockingIOError:
    pass
for number in range(40):
    what = ['cat "$0"', 'printf 12345 > "$0"'][number % 2]
    name = through + '/file%d' % number
    cats.append(subprocess.Popen(['sh', '-c', what, name]))
begin = time.monotonic()
while time.monotonic() - begin < 2:
    before = time.monotonic()
    assert len(os.listdir(through)) == 40
    assert os.stat(through + '/file1').st_size == 0
    assert time.monotonic() - before < 20, 'others wait'
assert all(cat.poll() is None for cat in cats), 'a lease was not waited for'
for file in held:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
assert [cat.wait() for cat in cats] == [0] * 40
assert os.stat(behind + '/file1').st_size == 5
"#;
    python(program, [mounted.source(""), mounted.mount("")]);
}

/// What overlayfs opens it opens as who has mounted it, in the thread of who asks.
#[test]
fn files_below_an_overlay_are_opened_for_their_owners() {
    let Some(mounted) = Mounted::new() else { return };
    let program = r#"
import os, subprocess, sys
folder, source = sys.argv[1:]
os.mkdir(source + '/own')
with open(source + '/own/file', 'w') as file:
    file.write('private')
for name, mode in ('/own/file', 0o600), ('/own', 0o700):
    os.chmod(source + name, mode)
    os.chown(source + name, 1001, 1001)
for name in 'upper', 'work', 'merged':
    os.mkdir(folder + '/' + name)
options = 'lowerdir={0}/mount,upperdir={0}/upper,workdir={0}/work'.format(folder)
mount = ['mount', '-t', 'overlay', '-o', options, 'overlay', folder + '/merged']
if subprocess.run(mount).returncode:
    print('SKIPPED: no overlayfs here')
    sys.exit()

def as_user(user):
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        try:
            assert os.listdir(folder + '/merged/own') == ['file']
            assert open(folder + '/merged/own/file').read() == 'private'
            os._exit(0)
        except PermissionError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

try:
    assert as_user(1001) == 0
    assert as_user(1002) == 1
finally:
    subprocess.run(['umount', folder + '/merged'], check=True)
"#;
    python(program, [mounted.folder.path().to_owned(), mounted.source("")]);
}
