# Writes records as JSON and reads them back several times: SEED COUNT PASSES.
import json
import random
import sys

seed, count, passes = map(int, sys.argv[1:])
random.seed(seed)
records = [
    {
        "id": number,
        "name": "record %d" % random.randrange(10**6),
        "tags": ["red", "blue", str(number % 100)],
        "value": random.random() * 1000,
        "parent": random.randrange(number + 1),
    }
    for number in range(count)
]
text = json.dumps(records)
total = 0.0
for _ in range(passes):
    read = json.loads(text)
    total += sum(record["value"] for record in read)
print(len(text), "%.6f" % total)
