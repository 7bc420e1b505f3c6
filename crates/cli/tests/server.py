"""A server with a large table that forks for each connection, and two clients at once."""

import hashlib
import os
import socket
import socketserver
import sys
import threading

ROWS = int(sys.argv[1])
CONNECTIONS = 24
REQUESTS = 10
ROWS_PER_REQUEST = ROWS // 20


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        # Grows with each request.
        own = {}
        for line in self.rfile:
            for row in range(int(line), int(line) + ROWS_PER_REQUEST):
                own[row] = table[row % ROWS][::-1]
            digest = hashlib.sha256("".join(own.values()).encode()).hexdigest()
            self.wfile.write(digest.encode() + b"\n")


class Server(socketserver.ForkingMixIn, socketserver.TCPServer):
    allow_reuse_address = True


def connect(address, seed, answers):
    with socket.create_connection(address) as connection, connection.makefile("rw") as stream:
        for request in range(REQUESTS):
            stream.write("%d\n" % (seed * 7919 + request * 1543))
            stream.flush()
            answers.append((seed, request, stream.readline().strip()))


def be_the_clients(address):
    answers = []

    def one(half):
        for seed in range(half, CONNECTIONS, 2):
            connect(address, seed, answers)

    threads = [threading.Thread(target=one, args=(half,)) for half in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in sorted(answers):
        print(*answer)
    sys.stdout.flush()
    os._exit(0)


with Server(("127.0.0.1", 0), Handler) as server:
    clients = os.fork()
    if clients == 0:
        be_the_clients(server.server_address)
    table = {row: "row %d " % row * 8 for row in range(ROWS)}
    for _ in range(CONNECTIONS):
        server.handle_request()
_, status = os.waitpid(clients, 0)
assert status == 0, status
