# A database in memory, filled, indexed, changed and asked, with sqlite3: SEED ROWS QUERIES.
import random
import sqlite3
import sys

seed, rows, queries = map(int, sys.argv[1:])
random.seed(seed)
database = sqlite3.connect(":memory:")
database.execute("create table item (id integer primary key, owner int, name text, price real)")
values = (
    (number, random.randrange(rows // 10 + 1), "item %d of the stock" % number, random.random())
    for number in range(rows)
)
database.executemany("insert into item values (?, ?, ?, ?)", values)
database.execute("create index item_owner on item (owner)")
total = 0.0
for nth in range(queries):
    owner = (random.randrange(rows // 10 + 1),)
    total += database.execute("select sum(price) from item where owner = ?", owner).fetchone()[0] or 0
    if nth % 10 == 0:
        database.execute("update item set price = price + 1 where owner = ?", owner)
most = database.execute("select count(*), max(price) from item where name like '%7 of%'").fetchone()
print("%.6f" % total, most[0])
