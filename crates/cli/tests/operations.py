"""Performs a list of operations in a directory and prints what became of each: results, errors, trees.

Run in a directory itself and in a mount over one, both must print the same.
"""
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
import struct
import sys
import time

os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
USER, GROUP, OTHER_GROUP = 65534, 65534, 12345
IS_ROOT = os.getuid() == 0


def show(value):
    if isinstance(value, bytes) and len(value) > 64:
        return f"{len(value)} bytes, {hash_of(value)}"
    return repr(value)


def hash_of(data):
    import zlib
    return zlib.crc32(data)


def do(what, *arguments, **keywords):
    """One operation: its result or its error."""
    name = getattr(what, "__name__", str(what))
    try:
        result = show(what(*arguments, **keywords))
    except OSError as error:
        result = errno.errorcode.get(error.errno, error.errno)
    shown = [getattr(argument, "__name__", repr(argument)) for argument in arguments]
    print(f"{name}({', '.join(shown)}) {keywords or ''} -> {result}")


def renameat2(one, other, flags):
    if libc.renameat2(-100, one.encode(), -100, other.encode(), flags) != 0:
        raise OSError(ctypes.get_errno(), "")


def utimensat(path, seconds, nanoseconds):
    """Times that no clock shows: the file system has to live with them."""
    times = (ctypes.c_long * 4)(seconds, nanoseconds, seconds, nanoseconds)
    if libc.utimensat(-100, path.encode(), times, 0) != 0:
        raise OSError(ctypes.get_errno(), "")
    return os.stat(path).st_mtime_ns


def flags(path, add=0):
    """FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, as of lsattr and chattr."""
    def change(fd):
        now = struct.unpack("i", fcntl.ioctl(fd, 0x80086601, b"1234"))[0]
        if add:
            fcntl.ioctl(fd, 0x40086602, struct.pack("i", now ^ add))
        return now
    return with_fd(path, os.O_RDONLY, change)


def flags_32(path, command):
    """As 32-bit programs ask for them: not this one's to use."""
    return with_fd(path, os.O_RDONLY, lambda fd: fcntl.ioctl(fd, command, struct.pack("i", 0x40)))


def fallocate(path, mode, offset, length):
    fd = os.open(path, os.O_RDWR)
    try:
        if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
            raise OSError(ctypes.get_errno(), "")
    finally:
        os.close(fd)


def with_fd(path, flags, f, mode=0o666):
    fd = os.open(path, flags, mode)
    try:
        return f(fd)
    finally:
        os.close(fd)


def make(path, flags=0, mode=0o666, data=b""):
    return with_fd(path, os.O_CREAT | os.O_WRONLY | flags, lambda fd: os.write(fd, data), mode)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, data, offset=0):
    return with_fd(path, os.O_WRONLY, lambda fd: os.pwrite(fd, data, offset))


def facts(path):
    """What a stat says that does not differ by when or where it was made."""
    s = os.lstat(path)
    size = None if stat.S_ISDIR(s.st_mode) else s.st_size
    links = s.st_nlink
    return (oct(s.st_mode), links, s.st_uid, s.st_gid, size, s.st_rdev)


def times(path):
    s = os.lstat(path)
    return (s.st_atime_ns, s.st_mtime_ns)


def acl(*entries):
    tags = {"user_obj": 1, "user": 2, "group_obj": 4, "group": 8, "mask": 16, "other": 32}
    data = struct.pack("<I", 2)
    for tag, permissions, who in entries:
        data += struct.pack("<HHI", tags[tag], permissions, who)
    return data


def as_user(f, *arguments, groups=(), user=USER, group=GROUP, umask=0o022, **keywords):
    """Does it as an ordinary user, in a process of its own."""
    if not IS_ROOT:
        print("as_user: skipped")
        return
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setgroups(list(groups))
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        os.umask(umask)
        print("as user: ", end="")
        do(f, *arguments, **keywords)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)


def map_shared(path, offset, data):
    def change(fd):
        with mmap.mmap(fd, 0) as memory:
            memory[offset:offset + len(data)] = data
            memory.flush()
            return memory[:8]
    return with_fd(path, os.O_RDWR, change)


def map_private(path, data):
    def change(fd):
        with mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) as memory:
            memory[:len(data)] = data
            return memory[:8]
    return with_fd(path, os.O_RDONLY, change)


def nameless(path):
    """A file that has lost its name while it is open."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"before")
    os.unlink(path)
    os.write(fd, b"after")
    os.ftruncate(fd, 8)
    os.fchmod(fd, 0o640)
    os.utime(fd, (1, 2))
    s = os.fstat(fd)
    result = (os.pread(fd, 100, 0), s.st_nlink, s.st_size, oct(s.st_mode), s.st_mtime)
    os.close(fd)
    return result


def gone_directory(path):
    """A working directory that is removed."""
    os.mkdir(path)
    before = os.getcwd()
    os.chdir(path)
    os.rmdir("../" + path)
    try:
        s = os.stat(".")
        listed = os.listdir(".")
        try:
            make("x")
            made = "made"
        except OSError as error:
            made = errno.errorcode[error.errno]
        return (listed, made, stat.S_ISDIR(s.st_mode))
    finally:
        os.chdir(before)


def holes(path):
    def find(fd):
        found, at, end = [], 0, os.fstat(fd).st_size
        while at < end:
            try:
                data = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(fd, data, os.SEEK_HOLE)
            found.append((data, at))
        return found
    return with_fd(path, os.O_RDONLY, find)


def copy_range(source, target, length, from_offset, to_offset):
    one, other = os.open(source, os.O_RDONLY), os.open(target, os.O_RDWR | os.O_CREAT)
    try:
        return os.copy_file_range(one, other, length, from_offset, to_offset)
    finally:
        os.close(one)
        os.close(other)


def locks(path):
    """Locks of two descriptors, and of two processes."""
    one, other = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    fcntl.flock(one, fcntl.LOCK_EX)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        flocked = "twice"
    except OSError as error:
        flocked = errno.errorcode[error.errno]
    fcntl.lockf(one, fcntl.LOCK_EX, 10, 0)
    child = os.fork()
    if child == 0:
        try:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 5)
            os._exit(0)
        except OSError:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    os.close(one)
    os.close(other)
    return flocked, status


def direct(path, length, offset):
    def io(fd):
        memory = mmap.mmap(-1, 8192)
        memory[:] = b"D" * 8192
        written = os.pwritev(fd, [memoryview(memory)[:length]], offset)
        back = mmap.mmap(-1, 8192)
        count = os.preadv(fd, [memoryview(back)[:length]], offset)
        return written, count, back[:4]
    return with_fd(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, io)


def open_in(path):
    """The descriptor of a directory is a directory, whatever becomes of its name."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return sorted(os.listdir(fd))
    finally:
        os.close(fd)


def whole_tree():
    for folder, folders, files in os.walk("."):
        folders.sort()
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            more = ""
            if os.path.islink(path):
                more = os.readlink(path)
            elif os.path.isfile(path) and os.path.getsize(path) < 1 << 24:
                more = show(read(path))
            elif os.path.isdir(path):
                more = sorted(os.listdir(path)) == sorted(set(os.listdir(path)))
            names = [] if os.path.islink(path) else sorted(os.listxattr(path))
            print(path, facts(path), more, [(n, os.getxattr(path, n)) for n in names])


def main():
    os.umask(0o022)
    os.chmod(".", 0o777)
    # Files, and how they are opened.
    do(make, "a", data=b"text")
    do(make, "a", os.O_EXCL)
    do(make, "a", os.O_TRUNC, data=b"other text")
    do(make, "a", os.O_APPEND, data=b", appended")
    do(make, "read-only", os.O_EXCL, 0o444, b"x")
    do(make, "none/a")
    do(make, "a/b")
    do(make, "n" * 255, data=b"longest")
    do(make, "n" * 256)
    do(make, "exclusive", os.O_EXCL, 0o4755)
    do(facts, "exclusive")
    do(read, "a")
    do(os.open, "a", os.O_DIRECTORY)
    do(os.open, ".", os.O_WRONLY)
    do(os.open, "nothing", os.O_RDONLY)
    do(with_fd, "a", os.O_RDONLY, lambda fd: os.write(fd, b"x"))
    do(with_fd, "synced", os.O_CREAT | os.O_WRONLY | os.O_SYNC, lambda fd: (os.write(fd, b"x"), os.fsync(fd), os.fdatasync(fd)))
    do(write, "a", b"OTHER", 3)
    do(read, "a")
    do(os.truncate, "a", 7)
    do(os.truncate, "a", 5000)
    do(read, "a")
    do(os.truncate, "a", -1)
    do(os.truncate, ".", 0)
    do(facts, "a")
    # Directories.
    do(os.mkdir, "d")
    do(os.mkdir, "d")
    do(os.mkdir, "d/e", 0o2775)
    do(os.mkdir, "none/d")
    do(os.rmdir, "d")
    do(os.rmdir, "a")
    do(os.rmdir, ".")
    do(os.unlink, "d")
    do(make, "d/f", data=b"f")
    do(open_in, "d")
    do(facts, "d/e")
    do(with_fd, "d", os.O_RDONLY, os.fsync)
    do(gone_directory, "gone")
    # Links.
    do(os.link, "a", "d/a2")
    do(os.link, "a", "d/a2")
    do(os.link, "d", "d2")
    do(os.link, "nothing", "d2")
    do(os.symlink, "a", "s")
    do(os.symlink, "/outside/" + "x" * 200, "s-long")
    do(os.symlink, "s-loop", "s-loop")
    do(os.symlink, "../../../../../../etc/passwd", "s-out")
    do(os.readlink, "s")
    do(os.readlink, "s-long")
    do(os.readlink, "a")
    do(read, "s")
    do(read, "s-loop")
    do(os.open, "s", os.O_NOFOLLOW)
    do(os.link, "s", "s2", follow_symlinks=False)
    do(facts, "s2")
    do(facts, "d/a2")
    # Special files.
    do(os.mkfifo, "fifo", 0o640)
    do(os.mknod, "char", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    do(os.mknod, "block", 0o600 | stat.S_IFBLK, os.makedev(259, 70000))
    do(os.mknod, "node", 0o644 | stat.S_IFREG)
    do(lambda: socket.socket(socket.AF_UNIX).bind("socket"))
    do(os.open, "socket", os.O_RDONLY)
    do(with_fd, "fifo", os.O_RDWR, lambda fd: (os.write(fd, b"through"), os.read(fd, 100)))
    for name in ["fifo", "char", "block", "node", "socket"]:
        do(facts, name)
    # Renaming.
    make("r1", data=b"1")
    make("r2", data=b"2")
    do(renameat2, "r1", "r2", 1)
    do(renameat2, "r1", "r2", 2)
    do(read, "r1")
    do(renameat2, "r1", "r3", 4)
    do(facts, "r1")
    do(renameat2, "r3", "r2", 3)
    do(renameat2, "r3", "nothing", 2)
    do(os.rename, "r3", "r2")
    do(read, "r2")
    do(os.rename, "nothing", "r2")
    do(os.rename, "d", "a")
    do(os.rename, "a", "d")
    do(os.rename, "d", "d/e/d")
    do(os.rename, "a", "a")
    do(os.rename, "a", "d/a2")
    do(os.rename, "r2", "n" * 256)
    do(os.mkdir, "empty")
    do(os.rename, "empty", "d")
    do(os.rename, "d/e", "empty")
    do(open_in, "empty")
    # Owners, modes, times.
    do(os.chmod, "a", 0o6755)
    do(facts, "a")
    do(os.chown, "a", USER, OTHER_GROUP)
    do(facts, "a")
    do(os.lchown, "s", USER, GROUP)
    do(facts, "s")
    do(os.utime, "a", ns=(1_000_000_001, 2_000_000_002))
    do(times, "a")
    do(os.utime, "a", ns=(-1_200_000_000, -1))
    do(times, "a")
    do(os.utime, "s", ns=(3_000_000_003, 4), follow_symlinks=False)
    do(times, "s")
    do(os.utime, "d", ns=(5, 1 << 33))
    do(times, "d")
    for seconds in [-(1 << 63), (1 << 63) - 1, -(1 << 62), 1 << 40, -1]:
        do(utimensat, "a", seconds, 999_999_999)
    do(flags, "a")
    for flag in [0x40, 0x10, 0x10]:
        do(flags, "a", flag)
        do(flags, "a")
        do(write, "a", b"x")
    do(flags, "d", 0x40)
    do(flags, "d")
    as_user(flags, "a", 0x40)
    # Append-only: opened for nothing but appending.
    do(flags, "a", 0x20)
    for how in [os.O_WRONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_APPEND]:
        do(with_fd, "a", how, lambda fd: os.write(fd, b"end"))
    do(read, "a")
    do(with_fd, "a", os.O_RDWR | os.O_APPEND, lambda fd: os.ftruncate(fd, 3))
    do(flags, "a", 0x20)
    for path in ["a", "d"]:
        for command in [0x80046601, 0x40046602]:
            do(flags_32, path, command)
            as_user(flags_32, path, command)
        do(flags, path)
    before = time.time_ns() - 1_000_000_000
    do(os.utime, "a")
    do(lambda: before < os.stat("a").st_mtime_ns < time.time_ns())
    do(os.chmod, "d", 0o1777)
    do(os.chmod, "nothing", 0o1777)
    # Set-id bits under those who are not root.
    for mode in [0o4777, 0o2777, 0o6777, 0o6767, 0o6766]:
        for name, how in [("written", lambda p: write(p, b"x")), ("cut", lambda p: os.truncate(p, 0)),
                          ("allocated", lambda p: fallocate(p, 0, 0, 10)),
                          ("appended", lambda p: make(p, os.O_APPEND, data=b"x")),
                          ("opened", lambda p: make(p, os.O_TRUNC)),
                          ("mapped", lambda p: map_shared(p, 0, b"y"))]:
            path = f"{name}-{mode:o}"
            make(path, data=b"data")
            os.chmod(path, mode)
            as_user(how, path)
            do(facts, path)
            os.chmod(path, mode)
            as_user(how, path, groups=[0])
            do(facts, path)
            os.chmod(path, mode)
            do(how, path)
            do(facts, path)
    # Neither owner nor group: only the set-id bits change.
    for mode in [0o6755, 0o2767, 0o755]:
        path = f"given-{mode:o}"
        make(path, data=b"data")
        os.chown(path, USER if IS_ROOT else -1, GROUP if IS_ROOT else -1)
        os.chmod(path, mode)
        as_user(os.chown, path, -1, -1)
        do(facts, path)
        os.chmod(path, mode)
        do(os.chown, path, -1, -1)
        do(facts, path)
    # Permissions.
    os.mkdir("closed", 0o700)
    make("closed/x", data=b"x")
    make("private", mode=0o600, data=b"secret")
    make("group", mode=0o640, data=b"group")
    os.chown("group", 0 if IS_ROOT else -1, OTHER_GROUP if IS_ROOT else -1)
    as_user(read, "private")
    as_user(read, "closed/x")
    as_user(read, "group")
    as_user(read, "group", groups=[OTHER_GROUP])
    as_user(write, "group", b"x", groups=[OTHER_GROUP])
    as_user(os.unlink, "private")
    as_user(os.chmod, "private", 0o666)
    as_user(os.chown, "private", USER, GROUP)
    as_user(os.listdir, "closed")
    as_user(os.access, "private", os.R_OK)
    as_user(os.utime, "private")
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)
    make("sticky/roots")
    as_user(os.unlink, "sticky/roots")
    as_user(os.rename, "sticky/roots", "sticky/mine")
    as_user(os.link, "private", "sticky/private")
    as_user(os.mknod, "sticky/device", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    as_user(make, "mine", umask=0o077)
    as_user(os.mkdir, "mine-d", umask=0o007)
    as_user(os.mkfifo, "mine-f", umask=0)
    as_user(os.symlink, "x", "mine-s")
    as_user(os.chown, "mine", -1, OTHER_GROUP)
    as_user(os.chown, "mine", -1, OTHER_GROUP, groups=[OTHER_GROUP])
    as_user(os.chmod, "mine", 0o6755)
    for name in ["mine", "mine-d", "mine-f", "mine-s"] if IS_ROOT else []:
        do(facts, name)
    # Set-group-id directories and default access lists.
    os.mkdir("shared")
    if IS_ROOT:
        os.chown("shared", 0, OTHER_GROUP)
    os.chmod("shared", 0o2777)
    as_user(make, "shared/file", mode=0o2775)
    as_user(make, "shared/member", mode=0o2775, groups=[OTHER_GROUP])
    as_user(os.mkdir, "shared/folder")
    for name in ["file", "member", "folder"] if IS_ROOT else []:
        do(facts, "shared/" + name)
    listed = acl(("user_obj", 7, 0xffffffff), ("user", 5, USER), ("group_obj", 5, 0xffffffff),
                 ("mask", 7, 0xffffffff), ("other", 0, 0xffffffff))
    os.mkdir("acl")
    do(os.setxattr, "acl", "system.posix_acl_default", listed)
    do(os.setxattr, "acl", "system.posix_acl_access", listed)
    do(os.setxattr, "private", "system.posix_acl_access", listed)
    do(os.setxattr, "private", "system.posix_acl_access", b"wrong")
    do(os.setxattr, "private", "system.posix_acl_default", listed)
    do(make, "acl/file", mode=0o666)
    do(os.mkdir, "acl/folder", 0o777)
    os.umask(0o077)
    do(make, "acl/masked", mode=0o666)
    os.umask(0o022)
    for name in ["acl", "acl/file", "acl/folder", "acl/masked", "private"]:
        do(facts, name)
        do(os.getxattr, name, "system.posix_acl_access")
    as_user(read, "private")
    as_user(write, "private", b"x")
    as_user(os.listdir, "acl")
    do(os.removexattr, "private", "system.posix_acl_access")
    do(facts, "private")
    if IS_ROOT:
        make("acl-sgid", mode=0o777)
        os.chown("acl-sgid", USER, OTHER_GROUP)
        os.chmod("acl-sgid", 0o2775)
        as_user(os.setxattr, "acl-sgid", "system.posix_acl_access", listed, groups=[OTHER_GROUP])
        do(facts, "acl-sgid")
        as_user(os.setxattr, "acl-sgid", "system.posix_acl_access", listed)
        do(facts, "acl-sgid")
    # Extended attributes.
    do(os.setxattr, "a", "user.one", b"1")
    do(os.setxattr, "a", "user.one", b"2", os.XATTR_CREATE)
    do(os.setxattr, "a", "user.one", b"3", os.XATTR_REPLACE)
    do(os.setxattr, "a", "user.two", b"", os.XATTR_REPLACE)
    do(os.setxattr, "a", "user.big", b"x" * 3000)
    do(os.setxattr, "a", "user.too-big", b"x" * 65537)
    do(os.setxattr, "a", "unknown.name", b"x")
    do(os.setxattr, "s", "user.x", b"x", follow_symlinks=False)
    do(os.setxattr, "fifo", "user.x", b"x")
    do(os.getxattr, "a", "user.one")
    do(os.getxattr, "a", "user.none")
    do(lambda: sorted(os.listxattr("a")))
    do(os.removexattr, "a", "user.one")
    do(os.removexattr, "a", "user.one")
    as_user(os.setxattr, "private", "user.x", b"x")
    if IS_ROOT:
        do(os.setxattr, "a", "trusted.x", b"x")
        as_user(os.setxattr, "mine", "trusted.x", b"x")
        as_user(lambda: sorted(os.listxattr("a")))
    # Content.
    do(make, "content", data=bytes(range(256)) * 1000)
    do(map_shared, "content", 5000, b"changed through a mapping")
    do(read, "content")
    do(map_private, "content", b"not written")
    do(read, "content")
    do(os.truncate, "content", 5003)
    do(read, "content")
    do(make, "holes")
    do(os.truncate, "holes", 1 << 20)
    do(write, "holes", b"x" * 4096, 65536)
    do(write, "holes", b"y" * 4096, 5 << 30)
    do(holes, "holes")
    do(lambda: os.stat("holes").st_blocks)
    do(facts, "holes")
    # Not COLLAPSE_RANGE and INSERT_RANGE (8 and 32): the kernel does not pass them on to file systems in user
    # space.
    for mode in [0, 1, 2, 3, 16, 17, 64, 255]:
        do(fallocate, "content", mode, 4096, 4096)
        do(read, "content")
    do(copy_range, "content", "copied", 5000, 100, 10)
    do(read, "copied")
    do(copy_range, "content", "content", 100, 0, 4000)
    do(read, "content")
    do(nameless, "nameless")
    do(locks, "content")
    for length, offset in [(4096, 0), (4096, 4096), (100, 0), (4096, 100), (512, 512)]:
        do(direct, "direct", length, offset)
    do(read, "direct")
    # The file system itself.
    do(lambda: os.statvfs(".").f_namemax)
    do(lambda: os.statvfs(".").f_bsize)
    do(lambda: os.stat("d/..").st_ino == os.stat(".").st_ino)
    # Removing.
    for name in sorted(os.listdir(".")):
        if name.startswith(("written", "cut", "allocated", "appended", "opened", "mapped")):
            os.unlink(name)
    do(os.unlink, "nothing")
    do(os.unlink, "d/a2")
    do(facts, "a")
    whole_tree()


main()
