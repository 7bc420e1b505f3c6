"""Threads, forks, a pool of processes and a subprocess, over one large heap."""

import hashlib
import multiprocessing
import os
import subprocess
import threading

ROWS = 200_000

names = {i: "value %d" % i for i in range(ROWS * 2)}
blocks = [bytearray(b"%08d" % i * 32) for i in range(ROWS)]


def digest(part):
    hasher = hashlib.sha256()
    for i in range(part, ROWS, 4):
        hasher.update(blocks[i])
    return hasher.hexdigest()


def in_threads():
    results = {}
    threads = [
        threading.Thread(target=lambda part=part: results.update({part: digest(part)}))
        for part in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results.items())


def in_forks():
    for i in range(60):
        pid = os.fork()
        if pid == 0:
            right = all(names[j] == "value %d" % j for j in range(i * 100, i * 100 + 2000))
            right = right and bytes(blocks[i * 3000]) == b"%08d" % (i * 3000) * 32
            names[i] = "written by a child"
            os._exit(0 if right else 1)
        _, status = os.waitpid(pid, 0)
        assert status == 0, (i, status)


def work(seed):
    """Data of a worker's own, and some of what it inherited."""
    own = {i: "%d of worker %d" % (i * i, seed) for i in range(60_000)}
    hasher = hashlib.sha256()
    for text in own.values():
        hasher.update(text.encode())
    for i in range(seed * 1000, seed * 1000 + 1000):
        hasher.update(blocks[i])
    return hasher.hexdigest()


def main():
    print(in_threads())
    in_forks()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, range(6), chunksize=1))
    print(subprocess.run(["echo", "from a subprocess"], capture_output=True).stdout)
    print(all(names[j] == "value %d" % j for j in range(ROWS * 2)))


main()
