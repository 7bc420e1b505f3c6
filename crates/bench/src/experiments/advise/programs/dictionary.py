# Looks words up in a dictionary, most of them in a tenth of it: SEED COUNT LOOKUPS.
import random
import sys

seed, count, lookups = map(int, sys.argv[1:])
random.seed(seed)
words = {
    "word-%d" % number: [number, "meaning of %d, and more of it" % (number * 7), number * 0.5]
    for number in range(count)
}
found = 0
for nth in range(lookups):
    below = count if nth % 20 == 0 else max(count // 10, 1)
    found += words["word-%d" % random.randrange(below)][0] & 255
    if nth % 50 == 0:
        words["word-%d" % random.randrange(count)][2] += 1.0
print(len(words), found)
