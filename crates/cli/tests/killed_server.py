"""Kills a mount's server while one of its threads waits in the kernel for an answer of the server
itself: for a page that is to be dropped, and that is being read. Readers must get an error, and
umount must work.

    killed_server.py RAMFOLD FOLDER root|user SIGNAL

In a mount namespace of its own, in which user 65534 may mount.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000
# Far longer than it takes, and not for ever, which it took.
PATIENCE = 60
USER = 65534

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long

ramfold, folder, who, number = sys.argv[1:]
number = int(number)
if number != signal.SIGKILL:
    # Shells start what runs in the background with SIGQUIT ignored, and that is inherited.
    signal.signal(number, signal.SIG_DFL)
source, mount = folder + '/source', folder + '/mount'
as_who = ['setpriv', '--reuid', str(USER), '--regid', str(USER), '--clear-groups']
as_who = as_who if who == 'user' else []


def is_so(what, look):
    begin = time.monotonic()
    while not look():
        if time.monotonic() - begin > PATIENCE:
            for thread in threads():
                print(thread, state(thread), file=sys.stderr)
            subprocess.run(['umount', '--force', '--no-canonicalize', mount])
            server.kill()
            sys.exit(what + ': in vain')
        time.sleep(0.01)
    print(what, 'after', round(time.monotonic() - begin, 2), 's', file=sys.stderr)


def threads():
    return [int(name) for name in os.listdir('/proc/%d/task' % server.pid)]


def name_of(thread):
    with open('/proc/%d/comm' % thread) as file:
        return file.read().strip()


def state(thread):
    with open('/proc/%d/stat' % thread) as file:
        return file.read().rpartition(')')[2].split()[0]


def stop(thread):
    """Stops one thread of the server."""
    for request in PTRACE_SEIZE, PTRACE_INTERRUPT:
        if libc.ptrace(request, thread, None, None):
            raise OSError(ctypes.get_errno(), 'ptrace')
    os.waitpid(thread, WALL)


for name in source, mount:
    os.mkdir(name)
    os.chown(name, *[USER if who == 'user' else 0] * 2)
with open(source + '/file', 'wb') as file:
    file.write(os.urandom(16 << 20))
# As a codec is chosen, the file is not passed through.
command = [ramfold, 'mount', '--memory', '64M', '--codec', 'lz4', source, mount]
server = subprocess.Popen(as_who + command, stderr=subprocess.PIPE)
said = server.stderr.readline()
assert b'is mounted on' in said, said

read = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
os.pread(file, 4096, 0)
print('ready', flush=True)
sys.stdin.readline()
try:
    print(len(os.pread(file, 4096, 8 << 20)))
except OSError as error:
    print(error)
"""
reader = [sys.executable, '-c', read, mount + '/file']
reader = subprocess.Popen(as_who + reader, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert reader.stdout.readline() == b'ready\n'
# From here on, the server answers nothing.
for thread in [thread for thread in threads() if name_of(thread).startswith('fuser-')]:
    stop(thread)
reader.stdin.write(b'\n')
reader.stdin.flush()
is_so('a page is being read', lambda: state(reader.pid) == 'D')
with open(source + '/file', 'r+b') as file:
    file.write(b'changed')
watch, = [thread for thread in threads() if name_of(thread) == 'watch']
is_so('it is to be dropped', lambda: state(watch) == 'D')
os.kill(server.pid, number)
is_so('the reader has ended', lambda: reader.poll() is not None)
print('the reader got', reader.stdout.read().decode(), file=sys.stderr)
umount = lambda: subprocess.run(as_who + [ramfold, 'umount', mount]).returncode == 0
is_so('it is unmounted', umount)
