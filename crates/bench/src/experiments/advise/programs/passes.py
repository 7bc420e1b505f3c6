# Goes over all of its objects again and again: SEED COUNT PASSES.
import random
import sys

seed, count, passes = map(int, sys.argv[1:])
random.seed(seed)
objects = [
    b"%d " % number * 200 + random.randbytes(100)
    for number in range(count)
]
total = 0
for _ in range(passes):
    for each in objects:
        total += each[5] + each[-50]
print(total)
