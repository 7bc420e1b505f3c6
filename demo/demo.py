"""A job of the ordinary kind: numpy arrays and a large dictionary, about 400 MB.

Builds a table of made-up sensor readings and an index over them, then answers questions that walk
through all of it. Prints a digest of every answer, so that two runs can be compared.
"""

import hashlib
import sys
import time

import numpy

READINGS = 12_000_000
KEYS = 600_000
ROUNDS = 3


def build():
    random = numpy.random.default_rng(2010)
    # Readings as instruments give them: small steps, few digits, long quiet stretches.
    steps = random.integers(-3, 4, READINGS).astype(numpy.int64)
    steps[random.random(READINGS) < 0.9] = 0
    value = numpy.cumsum(steps)
    sensor = (numpy.arange(READINGS) // 1000 % 4096).astype(numpy.int64)
    index = {}
    for key in range(KEYS):
        index["sensor/%04d/batch/%06d" % (key % 4096, key)] = [key, key * 7 % 1000, "nominal"]
    return value, sensor, index


def ask(value, sensor, index, round_number):
    digest = hashlib.sha256()
    totals = numpy.bincount(sensor, weights=value, minlength=4096)
    digest.update(totals.astype(numpy.int64).tobytes())
    digest.update(str(int((value[::round_number + 1] ** 2).sum())).encode())
    for key in range(round_number, KEYS, 3):
        name = "sensor/%04d/batch/%06d" % (key % 4096, key)
        row = index[name]
        row[1] += 1
        digest.update(b"%d %d" % (row[0], row[1]))
    value += round_number
    return digest.hexdigest()


def main():
    started = time.monotonic()
    table = build()
    for round_number in range(ROUNDS):
        print("round", round_number, ask(*table, round_number), flush=True)
    print("built and asked in %.1f s" % (time.monotonic() - started), file=sys.stderr)


main()
