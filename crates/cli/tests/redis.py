# Loads a redis-server with redis-benchmark and with keys of its own, then reads every key back.
import hashlib, json, os, socket, subprocess, sys, tempfile, time

KEYS = int(sys.argv[1])
SAVE = sys.argv[2:] == ["save"]


def value_of(i):
    return json.dumps({
        "id": i, "name": f"user {i * 7919 % 100003}", "visits": [i % 97, i % 31, i * i % 1009],
        "note": hashlib.sha256(str(i).encode()).hexdigest() * 2, "active": i % 3 == 0,
    }).encode()


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            word = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.socket.sendall(b"".join(parts))

    def reply(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self.file.read(length + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        assert kind and kind != b"-", line
        return rest

    def ask(self, *words):
        self.send(*words)
        return self.reply()


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "socket")
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder],
        stdout=subprocess.DEVNULL)
    while not os.path.exists(path):
        assert server.poll() is None, "redis-server has ended"
        time.sleep(0.01)
    subprocess.run(
        ["redis-benchmark", "-s", path, "-t", "set,lpush", "-r", str(KEYS), "-n", str(KEYS),
         "-d", "400", "-P", "16", "-q"], check=True, stdout=subprocess.DEVNULL)
    client = Client(path)
    loaded = client.ask("DBSIZE")
    assert int(loaded) > KEYS // 3, loaded
    for start in range(0, KEYS, 100):
        batch = range(start, min(start + 100, KEYS))
        for i in batch:
            client.send("SET", f"own:{i}", value_of(i))
        for i in batch:
            assert client.reply() == b"OK"
    appended = b""
    while SAVE:
        # The server writes all of its memory out from a fork while it goes on changing; again,
        # where a test waits for something.
        client.ask("BGSAVE")
        for i in range(0, KEYS, 7):
            length = len(value_of(i) + appended) + 1
            assert client.ask("APPEND", f"own:{i}", "!") == str(length).encode()
        appended += b"!"
        while b"rdb_bgsave_in_progress:1" in client.ask("INFO", "persistence"):
            time.sleep(0.05)
        assert b"rdb_last_bgsave_status:ok" in client.ask("INFO", "persistence")
        if "ENOUGH" not in os.environ or os.path.exists(os.environ["ENOUGH"]):
            break
    for i in range(KEYS):
        expected = value_of(i) + (appended if i % 7 == 0 else b"")
        found = client.ask("GET", f"own:{i}")
        assert found == expected, (i, found, expected)
    # What redis-benchmark wrote is the same value under every key and in every place of its list.
    values, cursor = set(), b"0"
    while True:
        cursor, names = client.ask("SCAN", cursor, "MATCH", "key:*", "COUNT", 1000)
        for name in names:
            values.add(client.ask("GET", name))
        if cursor == b"0":
            break
    assert len(values) == 1 and len(values.pop()) == 400
    items = client.ask("LRANGE", "mylist", 0, -1)
    assert len(items) == KEYS and len(set(items)) == 1
    client.send("SHUTDOWN", "NOSAVE")
    assert server.wait() == 0
print(KEYS, "keys are right")
