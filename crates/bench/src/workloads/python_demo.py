"""Builds arrays and a large dict, works on them, and prints what it found.

Uses numpy where it is installed and plain objects otherwise. The output depends
on nothing but RAMFOLD_DEMO_BYTES and the presence of numpy.
"""

import hashlib
import os

try:
    import numpy
except ImportError:
    numpy = None

BYTES = int(os.environ.get("RAMFOLD_DEMO_BYTES", 256 << 20))


def arrays(size):
    """Smooths a table of measurements and sums it by column."""
    columns = 64
    rows = max(size // 8 // columns, 2)
    if numpy is not None:
        table = numpy.empty((rows, columns))
        for row in range(rows):
            table[row] = (row % 977) / 8 + numpy.arange(columns) * (row % 13)
        for _ in range(3):
            table[1:] = numpy.rint((table[1:] + table[:-1]) * 4) / 8
        return [float(total) for total in table.sum(axis=0)[:8]]
    from array import array

    table = [
        array("d", [(row % 977) / 8 + column * (row % 13) for column in range(columns)])
        for row in range(rows)
    ]
    totals = [0.0] * columns
    for row in table:
        for column, value in enumerate(row):
            totals[column] += value
    return totals[:8]


def mapping(size):
    """Fills a dict of records, updates it in a scattered order and digests it."""
    # A record with its key, dict slot and strings takes about 420 bytes.
    count = max(size // 420, 10)
    records = {
        f"user-{number:08d}": {"name": f"name {number % 5003}", "visits": number % 97, "tags": [number, number + 1]}
        for number in range(count)
    }
    place = 1
    for _ in range(count):
        place = (place * 1103515245 + 12345) % count
        record = records[f"user-{place:08d}"]
        record["visits"] += 1
        record["tags"].append(place & 255)
    digest = hashlib.sha256()
    for key, record in records.items():
        digest.update(f"{key} {record['name']} {record['visits']} {sum(record['tags'])}".encode())
    return count, digest.hexdigest()


def main():
    print("columns", *arrays(BYTES // 2))
    count, digest = mapping(BYTES // 2)
    print("records", count, digest)


main()
