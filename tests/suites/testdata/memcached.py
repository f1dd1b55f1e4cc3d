"""Sets, reads, changes and deletes seeded values of a memcached by many connections. A line for each case: name, tab, result."""
import random, socket, sys, threading


class Conn:
    def __init__(self, port):
        self.s = socket.create_connection(("127.0.0.1", port), timeout=600)
        self.r = self.s.makefile("rb")

    def ask(self, line, body=None):
        self.s.sendall(line + b"\r\n" + (b"" if body is None else body + b"\r\n"))
        return self.r.readline().strip()

    def get(self, *keys):
        self.s.sendall(b"get " + b" ".join(keys) + b"\r\n")
        got = {}
        while (line := self.r.readline()) != b"END\r\n":
            _, key, flags, n = line.split()
            got[key] = self.r.read(int(n))
            assert self.r.read(2) == b"\r\n", line
        return got


def work(port, seed, failed):
    rnd, c, have = random.Random(seed), Conn(port), {}
    try:
        for i in range(1500):
            key, what = b"%d:%d" % (seed, rnd.randrange(60)), rnd.random()
            if what < 0.4:
                value = rnd.randbytes(rnd.choice([0, 1, 100, 4000, 70_000, 900_000 if rnd.random() < 0.1 else 10]))
                assert c.ask(b"set %s 0 0 %d" % (key, len(value)), value) == b"STORED"
                have[key] = value
            elif what < 0.5:
                said = c.ask(b"append %s 0 0 3" % key, b"abc")
                assert said == (b"STORED" if key in have else b"NOT_STORED"), said
                if key in have:
                    have[key] += b"abc"
            elif what < 0.6:
                said = c.ask(b"delete " + key)
                assert said == (b"DELETED" if have.pop(key, None) is not None else b"NOT_FOUND"), said
            else:
                keys = [b"%d:%d" % (seed, rnd.randrange(60)) for _ in range(rnd.choice([1, 1, 8]))]
                assert c.get(*keys) == {k: have[k] for k in keys if k in have}
            if i % 300 == 299:
                c = Conn(port)
        n = c.ask(b"set %d:n 0 0 1" % seed, b"0")
        lines = 5000  # a pipeline
        t = threading.Thread(target=c.s.sendall, args=(b"incr %d:n 1\r\n" % seed * lines,))
        t.start()
        for i in range(lines):
            assert c.r.readline() == b"%d\r\n" % (i + 1)
        t.join()
    except Exception as e:
        failed.append(f"seed {seed}: {e!r}")


failed = []
threads = [threading.Thread(target=work, args=(int(sys.argv[1]), seed, failed)) for seed in range(16)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print("values\t" + ("; ".join(failed) or "16 seeds"))
