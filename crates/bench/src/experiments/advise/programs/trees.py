# Builds trees and drops them again, beside one that stays: SEED DEPTH ROUNDS.
import random
import sys


def build(depth):
    if depth == 0:
        return [random.randrange(1000)]
    return [build(depth - 1), build(depth - 1), depth]


def weigh(tree):
    return tree[0] if len(tree) == 1 else weigh(tree[0]) + weigh(tree[1]) - tree[2]


seed, depth, rounds = map(int, sys.argv[1:])
random.seed(seed)
stays = build(depth)
total = 0
for _ in range(rounds):
    total += weigh(build(depth - 1)) + weigh(build(depth - 2))
print(total, weigh(stays))
