"""Asks a web server for the files of a directory and compares every body. Prints a line for each case: name, tab, result."""
import argparse, gzip, hashlib, http.client, os, random, re, signal, socket, ssl, threading, time

args = argparse.ArgumentParser()
args.add_argument("name")
args.add_argument("port", type=int)
args.add_argument("root")
args.add_argument("--tls", action="store_true")
args.add_argument("--reload", type=int, help="process that is told to reload under load")
args.add_argument("--signal", default="HUP")
args.add_argument("--gzip", action="store_true", help="the server compresses .txt")
args = args.parse_args()
files = sorted(os.listdir(args.root), key=lambda f: os.path.getsize(os.path.join(args.root, f)))
bodies = {f: open(os.path.join(args.root, f), "rb").read() for f in files}
big = files[-1]


def connect():
    if not args.tls:
        return http.client.HTTPConnection("127.0.0.1", args.port, timeout=600)
    c = ssl.create_default_context()
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", args.port, timeout=600, context=c)


def digest(b):
    return hashlib.sha256(b).hexdigest()[:16]


def ask(conn, f, method="GET", **headers):
    conn.request(method, "/" + f, headers={k.replace("_", "-"): v for k, v in headers.items()})
    r = conn.getresponse()
    return r, r.read()


def same(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: {len(got)} bytes {digest(got)}, want {len(want)} bytes {digest(want)}")


def whole():
    conn = connect()
    for _ in range(3):
        for f in files:
            r, b = ask(conn, f)
            same(b, bodies[f], f"{f} {r.status}")
    return f"{3 * len(files)} bodies"


def closed():
    for f in files:
        r, b = ask(connect(), f, Connection="close")
        same(b, bodies[f], f)
    return f"{len(files)} bodies"


def head():
    conn = connect()
    for f in files:
        r, b = ask(conn, f, "HEAD")
        same(b, b"", f)
        if args.gzip and f.endswith(".txt"):
            continue
        if int(r.headers.get("Content-Length", 0)) != len(bodies[f]):  # Apache leaves 0 out
            raise AssertionError(f"{f}: {r.headers['Content-Length']}")
    return f"{len(files)} files"


def ranges():
    conn, rnd, n = connect(), random.Random(7), 0
    for f in files:
        body = bodies[f]
        if len(body) < 1000:
            continue
        for _ in range(12):
            a = rnd.randrange(len(body))
            b = min(len(body) - 1, a + rnd.choice([0, 1, 1000, 65536, 1 << 20]))
            r, got = ask(conn, f, Range=f"bytes={a}-{b}")
            same(got, body[a:b + 1], f"{f} {a}-{b} {r.status}")
            if r.status != 206:
                raise AssertionError(f"status {r.status}")
        r, got = ask(conn, f, Range="bytes=-500")
        same(got, body[-500:], f)
        r, got = ask(conn, f, Range="bytes=10-19,500-899,0-0")
        mark = re.search("boundary=(.*)", r.headers["Content-Type"])[1].strip('"').encode()
        parts = [p.split(b"\r\n\r\n", 1)[1][:-2] for p in got.split(b"--" + mark)[1:-1]]
        if parts != [body[10:20], body[500:900], body[0:1]]:
            raise AssertionError(f"{f}: parts {[len(p) for p in parts]}")
        r, got = ask(conn, f, Range=f"bytes={len(body)}-")
        if r.status != 416:
            raise AssertionError(f"status {r.status}")
        n += 15
    return f"{n} ranges"


def conditional():
    conn = connect()
    for f in files:
        r, _ = ask(conn, f)
        r, b = ask(conn, f, If_Modified_Since=r.headers["Last-Modified"])
        if (r.status, b) != (304, b""):
            raise AssertionError(f"{f}: {r.status}")
    r, b = ask(conn, "none")
    return f"304, {r.status} {digest(b)}"


def compressed():
    conn, n = connect(), 0
    for f in files:
        r, b = ask(conn, f, Accept_Encoding="gzip")
        if r.headers["Content-Encoding"] == "gzip":
            b, n = gzip.decompress(b), n + 1
        same(b, bodies[f], f)
    return f"{n} compressed"


def raw():
    s = socket.create_connection(("127.0.0.1", args.port), timeout=600)
    return s


def pipeline():
    s, small = raw(), [f for f in files if len(bodies[f]) <= 1 << 20]
    order = [small[i % len(small)] for i in range(60)]
    asked = b"".join(f"GET /{f} HTTP/1.1\r\nHost: h\r\n\r\n".encode() for f in order)
    thread = threading.Thread(target=s.sendall, args=(asked,))
    thread.start()
    r = s.makefile("rb")
    for f in order:
        status, length = r.readline(), 0
        while (line := r.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        same(r.read(length), bodies[f], f"{f} {status!r}")
    thread.join()
    return "60 bodies"


def pieces():
    """A request comes in single bytes, and its body is read in odd ones, slowly at first."""
    s = raw()
    for c in f"GET /{big} HTTP/1.0\r\n\r\n".encode():
        s.send(bytes([c]))
        time.sleep(0.001)
    got, n = bytearray(), 1
    while b := s.recv(n):
        got += b
        n = min(n * 3 + 1, 777_777)
        if len(got) < 2_000_000:
            time.sleep(0.02)
    same(bytes(got.split(b"\r\n\r\n", 1)[1]), bodies[big], big)
    return "ok"


def aborted():
    for i in range(20):
        s = raw()
        s.sendall(f"GET /{big} HTTP/1.0\r\n\r\n".encode())
        for _ in range(i):
            s.recv(100_000)
        s.close()
    r, b = ask(connect(), big)
    same(b, bodies[big], big)
    return "ok"


def load(threads, requests, during=lambda: None):
    failed, done = [], []

    def one(seed):
        rnd, conn = random.Random(seed), connect()
        try:
            for _ in range(requests):
                f = rnd.choice(files if rnd.random() < 0.05 else files[:-2])
                for last in (False, True):
                    try:
                        r, b = ask(conn, f)
                        break
                    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                        conn.close()  # an idle connection may be closed by the server
                        if last:
                            raise
                same(b, bodies[f], f)
                done.append(1)
        except Exception as e:
            failed.append(repr(e))
    running = [threading.Thread(target=one, args=(seed,)) for seed in range(threads)]
    for t in running:
        t.start()
    during()
    for t in running:
        t.join()
    if failed:
        raise AssertionError("; ".join(failed))
    return f"{len(done)} bodies"


def reload():
    def tell():
        for _ in range(5):
            time.sleep(0.3)
            os.kill(args.reload, getattr(signal, "SIG" + args.signal))
    result = load(8, 150, tell)
    time.sleep(1)  # or a worker that is to end accepts the next client's connection, and closes it
    return result


cases = [whole, closed, head, ranges, conditional, lambda: load(16, 60)]
names = ["whole", "closed", "head", "ranges", "conditional", "load"]
if args.gzip:
    cases, names = cases + [compressed], names + ["compressed"]
if not args.tls:
    cases, names = cases + [pieces, aborted, pipeline], names + ["pieces", "aborted", "pipeline"]
if args.reload:
    cases, names = cases + [reload], names + ["reload"]
for name, case in zip(names, cases):
    try:
        result = case()
    except Exception as e:
        result = f"FAIL {e!r}"
    print(f"{args.name}/{name}\t{result}", flush=True)
