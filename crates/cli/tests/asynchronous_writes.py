"""Writes a file past the page cache, asynchronously (io_submit), and reads it through it."""

import ctypes
import mmap
import os
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
# On x86-64 and on AArch64.
IO_SETUP, IO_SUBMIT, IO_GETEVENTS = {'x86_64': (206, 209, 208), 'aarch64': (0, 2, 4)}[
    os.uname().machine]
SIZE = 16 * 4096
PWRITE = 1


class Request(ctypes.Structure):
    _fields_ = [('data', ctypes.c_uint64), ('key', ctypes.c_uint32), ('rw', ctypes.c_int32),
                ('opcode', ctypes.c_uint16), ('priority', ctypes.c_int16),
                ('fd', ctypes.c_uint32), ('buffer', ctypes.c_uint64), ('bytes', ctypes.c_uint64),
                ('offset', ctypes.c_int64), ('reserved', ctypes.c_uint64),
                ('flags', ctypes.c_uint32), ('result_fd', ctypes.c_uint32)]


class Event(ctypes.Structure):
    _fields_ = [('data', ctypes.c_uint64), ('request', ctypes.c_uint64),
                ('result', ctypes.c_int64), ('result2', ctypes.c_int64)]


context = ctypes.c_ulong(0)
assert LIBC.syscall(IO_SETUP, 8, ctypes.byref(context)) == 0
direct = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
cached = os.open(sys.argv[1], os.O_RDONLY)
memory = mmap.mmap(-1, SIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for number in range(2000):
    byte = b'%c' % (number % 251)
    memory[:] = byte * SIZE
    request = Request(opcode=PWRITE, fd=direct, buffer=address, bytes=SIZE)
    requests = (ctypes.POINTER(Request) * 1)(ctypes.pointer(request))
    assert LIBC.syscall(IO_SUBMIT, context, 1, requests) == 1
    event = Event()
    assert LIBC.syscall(IO_GETEVENTS, context, 1, 1, ctypes.byref(event), None) == 1
    assert event.result == SIZE, event.result
    found = os.pread(cached, SIZE, 0)
    assert found == byte * SIZE, (number, byte, set(found))
