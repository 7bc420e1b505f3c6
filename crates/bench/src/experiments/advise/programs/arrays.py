# Sorts numbers and goes over a matrix by rows and by columns, with numpy: SEED SIDE ROUNDS.
import sys

import numpy

seed, side, rounds = map(int, sys.argv[1:])
random = numpy.random.default_rng(seed)
numbers = numpy.round(random.normal(1000, 200, side * side)).astype(numpy.int64)
matrix = numpy.round(random.random((side, side)), 3)
total = 0.0
for nth in range(rounds):
    order = numpy.sort(numbers)
    total += float(order[:: side // 8 + 1].sum())
    total += float(matrix.sum(axis=nth % 2)[nth % side])
    for row in range(0, side, 4):
        total += float(matrix[row] @ matrix[:, (row * 7 + nth) % side])
    numbers[nth % side :: side] += nth
print("%.3f" % total)
