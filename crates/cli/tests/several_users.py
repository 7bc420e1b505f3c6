"""What several users may do to each other's files: printed, a line for each operation.

  several_users.py BEHIND THROUGH    as root

What changes behind a mount is done in BEHIND, everything else in THROUGH: with the same directory
for both, and with a directory and a mount over it, the lines must be the same. Each change behind
comes just after the kernel was told how it was before, which it believes for half a second.
"""

import ctypes
import os
import stat
import struct
import subprocess
import sys

BEHIND, THROUGH = sys.argv[1:]
A, B, GROUP, OTHER_GROUP = 1001, 1002, 2000, 2001
ALICE, BOB, MEMBER, ROOT = (A, A, []), (B, B, []), (A, A, [GROUP]), (0, 0, [])
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER = 0x10000000
# cap_net_bind_service, as setcap(8) writes it.
CAPABILITY = struct.pack('<5I', 0x02000001, 1 << 10, 0, 0, 0)
RENAME_EXCHANGE = 2


def behind(name):
    return os.path.join(BEHIND, name)


def through(name):
    return os.path.join(THROUGH, name)


def as_user(who, what):
    """Has this done by somebody else, and returns what came of it."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            user, group, groups = who
            os.setgroups(groups)
            os.setgid(group)
            os.setuid(user)
            os.umask(0o022)
            result = 'right, %s' % (what(),)
        except OSError as error:
            result = error.strerror
        except BaseException as error:
            result = repr(error)
        os.write(writer, result.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        result = said.read()
    os.waitpid(child, 0)
    return result


def show(name, who, what):
    print(name + ':', as_user(who, what), flush=True)


def write(path, text, who=ROOT, mode=0o644):
    def make():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        os.write(fd, text.encode())
        os.fchmod(fd, mode)
    result = as_user(who, make)
    assert result == 'right, None', result


def read(path):
    with open(path) as file:
        return file.read()


def exchange(one, other):
    if LIBC.renameat2(-100, one.encode(), -100, other.encode(), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sticky_directory():
    """Alice's file becomes Bob's private one; the kernel knows it as Alice's."""
    os.mkdir(through('sticky'))
    os.chmod(through('sticky'), 0o1777)
    os.mkdir(through('own'))
    os.chown(through('own'), A, A)
    acts = {
        'unlink': lambda: os.unlink(through('sticky/x')),
        'rename': lambda: os.rename(through('sticky/x'), through('sticky/y')),
        'rename elsewhere': lambda: os.rename(through('sticky/x'), through('own/y')),
        'rename over it': lambda: os.rename(through('own/z'), through('sticky/x')),
        'exchange': lambda: exchange(through('own/z'), through('sticky/x')),
        'read': lambda: read(through('sticky/x')),
        'write': lambda: os.open(through('sticky/x'), os.O_WRONLY),
        'truncate': lambda: os.truncate(through('sticky/x'), 0),
        'chmod': lambda: os.chmod(through('sticky/x'), 0o666),
        'touch': lambda: os.utime(through('sticky/x')),
        'set times': lambda: os.utime(through('sticky/x'), (1, 1)),
        'set attribute': lambda: os.setxattr(through('sticky/x'), 'user.a', b'a'),
        'read attribute': lambda: os.getxattr(through('sticky/x'), 'user.b'),
        'remove attribute': lambda: os.removexattr(through('sticky/x'), 'user.b'),
        'link': lambda: os.link(through('sticky/x'), through('own/link')),
    }
    for name, act in acts.items():
        write(through('sticky/x'), 'alice', ALICE)
        write(through('own/z'), 'alice', ALICE)
        show('sticky, before', ALICE, lambda: os.stat(through('sticky/x')).st_uid)
        os.unlink(behind('sticky/x'))
        write(behind('sticky/x'), 'secret', BOB, 0o600)
        os.setxattr(behind('sticky/x'), 'user.b', b'secret')
        show('sticky, ' + name, ALICE, act)
        print(sorted(os.listdir(behind('sticky'))), sorted(os.listdir(behind('own'))),
              read(behind('sticky/x')))
        for directory in 'sticky', 'own':
            for left in os.listdir(behind(directory)):
                os.unlink(behind(os.path.join(directory, left)))

    os.mkdir(through('sticky/d'))
    os.chown(through('sticky/d'), A, A)
    show('sticky, before', ALICE, lambda: os.stat(through('sticky/d')).st_uid)
    os.chown(behind('sticky/d'), B, B)
    show('sticky, rmdir', ALICE, lambda: os.rmdir(through('sticky/d')))


def taken_rights():
    """What everybody could read and write is made private, and a secret comes in."""
    os.mkdir(through('open'))
    os.chmod(through('open'), 0o777)
    write(through('open/f'), 'for all', BOB, 0o666)
    show('taken, before', ALICE, lambda: read(through('open/f')))
    os.chmod(behind('open/f'), 0o600)
    write(behind('open/f'), 'secret', BOB, 0o600)
    show('taken, read', ALICE, lambda: read(through('open/f')))
    show('taken, append', ALICE, lambda: os.open(through('open/f'), os.O_WRONLY | os.O_APPEND))
    show('taken, owner', BOB, lambda: read(through('open/f')))
    # The kernel opens these without a request to the server.
    special = {'fifo': lambda: os.mkfifo(through('open/fifo')),
               'socket': lambda: os.mknod(through('open/socket'), stat.S_IFSOCK),
               'device': lambda: os.mknod(through('open/device'), stat.S_IFCHR, os.makedev(1, 3))}
    for name, make in special.items():
        make()
        os.chmod(through('open/' + name), 0o666)
        can_write = lambda: os.access(through('open/' + name), os.W_OK)
        can_open = lambda: os.open(through('open/' + name), os.O_RDWR | os.O_NONBLOCK)
        show('taken, %s before' % name, ALICE, can_write)
        os.chmod(behind('open/' + name), 0o600)
        show('taken, %s' % name, ALICE, can_open)
        os.unlink(behind('open/' + name))
    show('taken, before', ALICE, lambda: os.listdir(through('open')))
    os.chown(behind('open'), B, B)
    os.chmod(behind('open'), 0o711)
    acts = {
        'list': lambda: os.listdir(through('open')),
        'create': lambda: os.open(through('open/new'), os.O_CREAT | os.O_WRONLY),
        'mkdir': lambda: os.mkdir(through('open/new')),
        'fifo': lambda: os.mkfifo(through('open/new')),
        'symlink': lambda: os.symlink('f', through('open/new')),
        'link': lambda: os.link(through('own/mine'), through('open/new')),
        'unlink': lambda: os.unlink(through('open/f')),
        'rename': lambda: os.rename(through('open/f'), through('open/new')),
        'rename into it': lambda: os.rename(through('own/mine'), through('open/new')),
    }
    write(through('own/mine'), 'alice', ALICE)
    for name, act in acts.items():
        os.chmod(behind('open'), 0o777)
        show('taken, before', ALICE, lambda: stat.S_IMODE(os.stat(through('open')).st_mode))
        os.chmod(behind('open'), 0o711)
        show('taken, ' + name, ALICE, act)
        print(sorted(os.listdir(behind('open'))), sorted(os.listdir(behind('own'))))


def groups():
    write(through('of_group'), 'group', mode=0o640)
    os.chown(through('of_group'), 0, GROUP)
    show('group, read', MEMBER, lambda: read(through('of_group')))
    show('group, others', ALICE, lambda: read(through('of_group')))
    os.chmod(through('of_group'), 0o604)
    show('less than others, read', MEMBER, lambda: read(through('of_group')))
    show('less than others, others', ALICE, lambda: read(through('of_group')))
    write(through('own/given'), '', ALICE)
    show('give to group', MEMBER, lambda: os.chown(through('own/given'), -1, GROUP))
    show('give to other group', MEMBER, lambda: os.chown(through('own/given'), -1, OTHER_GROUP))
    show('give away', MEMBER, lambda: os.chown(through('own/given'), B, -1))
    print(os.stat(behind('own/given')).st_uid, os.stat(behind('own/given')).st_gid)
    os.mkdir(through('of_members'))
    os.chown(through('of_members'), 0, GROUP)
    os.chmod(through('of_members'), 0o3770)
    show('member makes', MEMBER, lambda: write_and_stat('of_members/f'))
    show('no member makes', ALICE, lambda: write_and_stat('of_members/g'))


def write_and_stat(name):
    os.close(os.open(through(name), os.O_CREAT | os.O_WRONLY, 0o666))
    of = os.stat(through(name))
    return of.st_uid, of.st_gid, oct(of.st_mode)


def execution():
    """Who may execute a program need not be able to read it."""
    subprocess.run(['cp', '/bin/true', through('program')], check=True)
    os.chmod(through('program'), 0o711)
    run = lambda: subprocess.run([through('program')]).returncode
    show('execute', ALICE, run)
    show('read what may be executed', ALICE, lambda: len(read(through('program'))))
    os.chmod(behind('program'), 0o700)
    show('execute no more', ALICE, run)


def descriptors():
    """Who has a file open may go on, whoever owns it now."""
    write(through('own/kept'), 'kept', ALICE, 0o600)

    def keep():
        fd = os.open(through('own/kept'), os.O_RDWR)
        subprocess.run(['true'])
        return fd

    def act():
        fd = keep()
        os.write(ready, b'x')
        os.read(go, 1)
        results = [os.pread(fd, 9, 0), os.pwrite(fd, b'K', 0)]
        for change in (lambda: os.fchmod(fd, 0o666), lambda: os.ftruncate(fd, 2),
                       lambda: os.utime(fd), lambda: os.fsync(fd)):
            try:
                results.append(change())
            except OSError as error:
                results.append(error.strerror)
        return results

    is_ready, ready = os.pipe()
    go, let_go = os.pipe()
    other = os.fork()
    if not other:
        os.read(is_ready, 1)
        os.chown(behind('own/kept'), B, B)
        os.write(let_go, b'x')
        os._exit(0)
    show('open', ALICE, act)
    os.waitpid(other, 0)


def written(name):
    with open(through(name), 'r+') as file:
        file.write('more')
    return oct(os.stat(through(name)).st_mode)


def truncated(name):
    os.truncate(through(name), 3)
    return oct(os.stat(through(name)).st_mode)


def user_namespace():
    """Root of a rootless container: Alice, who has a range of ids there."""
    os.mkdir(through('container'))
    write(through('container/f'), 'of a sub-id')
    write(through('container/given'), '')
    for name in 'container/f', 'container/given', 'container':
        os.chown(through(name), 100005, 100005)
    write(through('foreign'), '')
    # Of an owner who is not in the container, which keeps nobody from removing them; but in a
    # sticky directory it does.
    # Whether the bit stays when it is written depends on whose it is, and who may execute it.
    of_groups = {'group': (100005, 0o2646), 'both': (100005, 0o6646), 'run': (100005, 0o2656),
                 'written': (B, 0o2646), 'cut': (B, 0o2646)}
    for name, (owner, mode) in of_groups.items():
        write(through('container/' + name), 'of a group')
        os.chown(through('container/' + name), owner, owner)
        os.chmod(through('container/' + name), mode)
    # That it may write and not search is enough to move it.
    os.mkdir(through('container/moved'))
    os.chown(through('container/moved'), B, B)
    os.chmod(through('container/moved'), 0o706)
    os.mkdir(through('container/sticky'))
    for name in 'container/foreign', 'container/replaced', 'container/sticky/foreign':
        write(through(name), '')
        os.chown(through(name), B, B)
    write(through('container/sticky/own'), '')
    os.mkdir(through('container/into'))
    for name in 'container/sticky/own', 'container/sticky', 'container/into':
        os.chown(through(name), 100005, 100005)
    os.chmod(through('container/sticky'), 0o1777)
    is_ready, ready = os.pipe()
    go, let_go = os.pipe()
    inside = os.fork()
    if not inside:
        os.setgroups([])
        os.setgid(A)
        os.setuid(A)
        if LIBC.unshare(CLONE_NEWUSER):
            print('no user namespaces')
            os._exit(0)
        os.write(ready, b'x')
        os.read(go, 1)
        os.setgid(0)
        os.setuid(0)
        file = through('container/f')
        new = through('container/new')
        acts = {
            'chmod': lambda: os.chmod(file, 0o640),
            'set times': lambda: os.utime(file, (1, 1)),
            'chown': lambda: os.chown(file, 6, 6),
            'chown back': lambda: os.chown(file, 5, 5),
            'read': lambda: read(file),
            'attribute': lambda: os.setxattr(file, 'user.a', b'a'),
            'capability': lambda: os.setxattr(file, 'security.capability', CAPABILITY),
            'no capability': lambda: os.removexattr(file, 'security.capability'),
            'create': lambda: os.close(os.open(new, os.O_CREAT | os.O_WRONLY)),
            'rename': lambda: os.rename(new, new + '2'),
            'replace a foreign file': lambda: os.rename(new + '2', through('container/foreign')),
            'unlink': lambda: os.unlink(through('container/foreign')),
            'replace a foreign file in a sticky directory':
                lambda: os.rename(through('container/sticky/own'),
                                  through('container/sticky/foreign')),
            'unlink of a foreign file in a sticky directory':
                lambda: os.unlink(through('container/sticky/foreign')),
            'move out of a sticky directory':
                lambda: os.rename(through('container/sticky/own'),
                                  through('container/replaced')),
            'move a foreign directory':
                lambda: os.rename(through('container/moved'), through('container/into/moved')),
            'write a set-group-id file': lambda: written('container/group'),
            'write a set-id file': lambda: written('container/both'),
            'write a set-group-id program': lambda: written('container/run'),
            'write a foreign set-group-id file': lambda: written('container/written'),
            'truncate a set-group-id file': lambda: truncated('container/group'),
            'truncate a foreign set-group-id file': lambda: truncated('container/cut'),
            'chmod of a foreign file': lambda: os.chmod(through('foreign'), 0o666),
            'unlink of a foreign file': lambda: os.unlink(through('foreign')),
        }
        def try_all(acts):
            for name, act in acts.items():
                try:
                    result = 'right, %s' % act()
                except OSError as error:
                    result = error.strerror
                print('container, %s: %s' % (name, result), flush=True)

        try_all(acts)
        given = through('container/given')
        os.stat(given)
        os.write(ready, b'x')
        os.read(go, 1)
        try_all({
            'capability of a file given away':
                lambda: os.setxattr(given, 'security.capability', CAPABILITY),
        })
        os._exit(0)
    os.close(ready)
    if os.read(is_ready, 1):
        for name in 'uid_map', 'gid_map':
            with open('/proc/%d/%s' % (inside, name), 'w') as ids:
                ids.write('0 %d 1\n1 100001 65535\n' % A)
        os.write(let_go, b'x')
        os.read(is_ready, 1)
        os.chown(behind('container/given'), B, B)
        os.write(let_go, b'x')
    os.waitpid(inside, 0)
    of = os.stat(behind('container/f'))
    print(oct(of.st_mode), of.st_uid, of.st_gid, of.st_mtime)


os.umask(0o022)
for check in (sticky_directory, taken_rights, groups, execution, descriptors, user_namespace):
    check()
