"""Clients of TLS that libnbd is not: one reads late, others say things too early."""

import socket
import ssl
import struct
import sys

HOST, PORT, FOLDER = sys.argv[1], int(sys.argv[2]), sys.argv[3]
IHAVEOPT = 0x49484156454F5054
STARTTLS, LIST, GO, EXPORT_NAME = 5, 3, 7, 1
ACK, TLS_REQD = 1, 1 << 31 | 5
REQUEST = 1 << 20


def receive(stream, count):
    """All of `count` bytes, or what came before the end."""
    parts = []
    while count:
        part = stream.recv(min(count, 1 << 16))
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def option(number, data=b""):
    return struct.pack(">QII", IHAVEOPT, number, len(data)) + data


def reply(stream):
    magic, number, kind, length = struct.unpack(">QIII", receive(stream, 20))
    assert magic == 0x3E889045565A9, hex(magic)
    return number, kind, receive(stream, length)


def connect():
    stream = socket.create_connection((HOST, PORT))
    stream.settimeout(120)
    assert receive(stream, 18)[:8] == b"NBDMAGIC"
    stream.sendall(struct.pack(">I", 3))
    return stream


def start_tls(stream):
    stream.sendall(option(STARTTLS))
    assert reply(stream) == (STARTTLS, ACK, b"")
    context = ssl.create_default_context(cafile=f"{FOLDER}/ca-cert.pem")
    context.check_hostname = False
    context.load_cert_chain(f"{FOLDER}/client-cert.pem", f"{FOLDER}/client-key.pem")
    return context


def encrypt(stream):
    return start_tls(stream).wrap_socket(stream, suppress_ragged_eofs=False)


def begin(stream):
    stream.sendall(option(GO, struct.pack(">IH", 0, 0)))
    while reply(stream)[1] != ACK:
        pass


# Nothing is told, and nothing begins, without TLS.
plain = connect()
for number in LIST, GO:
    plain.sendall(option(number, struct.pack(">IH", 0, 0) if number == GO else b""))
    assert reply(plain)[:2] == (number, TLS_REQD)
plain.sendall(option(EXPORT_NAME))
assert receive(plain, 1) == b""

# What comes before TLS is not taken for what comes after it.
early = connect()
# Less than a handshake may take.
early.settimeout(10)
early.sendall(option(STARTTLS) + option(LIST))
assert reply(early) == (STARTTLS, ACK, b"")
assert receive(early, 1) == b""

# Clients that say nothing keep no others out.
silent = [connect() for _ in range(40)]
certified = encrypt(connect())
certified.sendall(option(LIST))
assert reply(certified)[1] == 2
assert silent[0].recv(1) == b""
silent[39].settimeout(0)
try:
    silent[39].recv(1)
    raise AssertionError("the last that came has not lost its place")
except BlockingIOError:
    pass
for stream in silent:
    stream.close()

# Once it is there it is there.
twice = encrypt(connect())
twice.sendall(option(STARTTLS))
assert reply(twice)[1] == 1 << 31 | 3
twice.sendall(option(LIST))
assert reply(twice)[1] == 2

# What comes behind the last word of TLS is thrown away, and the server goes on.
gone = connect()
received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
session = start_tls(gone).wrap_bio(received, sent)
while True:
    try:
        session.do_handshake()
        break
    except ssl.SSLWantReadError:
        gone.sendall(sent.read())
        received.write(gone.recv(1 << 16))
session.write(option(LIST))
gone.sendall(sent.read())
# It is answered: TLS has begun.
assert gone.recv(1 << 16)
try:
    session.unwrap()
except ssl.SSLWantReadError:
    pass
gone.settimeout(10)
try:
    gone.sendall(sent.read() + b"x" * (1 << 18))
    while gone.recv(1 << 16):
        pass
except (BrokenPipeError, ConnectionResetError):
    pass

# 48 MiB of replies wait for a client that reads late, and each byte is right. Replies come in any
# order.
late = encrypt(connect())
begin(late)
data = bytes(range(251)) * (REQUEST // 251 + 1)
for nth in range(8):
    head = struct.pack(">IHHQQI", 0x25609513, 0, 1, nth, nth * REQUEST, REQUEST)
    late.sendall(head + data[nth : nth + REQUEST])
    assert receive(late, 16) == struct.pack(">IIQ", 0x67446698, 0, nth)
for nth in range(48):
    late.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, nth, nth % 8 * REQUEST, REQUEST))
# Meanwhile the server sends what it can, and others are served.
other = encrypt(connect())
begin(other)
other.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, 1, 0, 4096))
assert receive(other, 16 + 4096)[16:] == data[:4096]
seen = set()
for _ in range(48):
    magic, error, nth = struct.unpack(">IIQ", receive(late, 16))
    assert (magic, error) == (0x67446698, 0), (hex(magic), error)
    assert receive(late, REQUEST) == data[nth % 8 : nth % 8 + REQUEST], nth
    seen.add(nth)
assert seen == set(range(48))

# Small requests, 64 of them under way.
for nth in range(2000 + 64):
    if nth < 2000:
        late.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, nth, nth % 64 * 4096, 4096))
    if nth >= 64:
        page = struct.unpack(">IIQ", receive(late, 16))[2] % 64 * 4096
        assert receive(late, 4096) == data[page : page + 4096], nth
# The end is told: without it this raises.
late.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 2, 0, 0, 0))
assert receive(late, 1) == b""
