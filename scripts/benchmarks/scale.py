"""Extracts many tiny images, as tars in an object store, by workers that are killed at
random, and compares the result with one run over the same tars on the disk. Run it by
scripts/bench scale.

It prints whether all bytes are the same, the memory of the workers as they go on, the
time for an image, the time of a restart of the finished job, and, where toxiproxy is
there, the time with 50 ms of latency for every request. The model is `pixels`, so that
what is timed is all but the model, unless --model names another.
"""

import argparse, hashlib, json, multiprocessing, os, random, shutil, signal, struct, subprocess, sys, tempfile, threading, time, urllib.request, zlib

parser = argparse.ArgumentParser(prog="scripts/bench scale")
parser.add_argument("--images", type=int, default=20_000)
parser.add_argument("--per-tar", type=int, default=1_000)
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--threads", type=int, default=1, help="images that a worker has in work at once")
parser.add_argument("--kills", type=int, default=12)
parser.add_argument("--program", help="the program mlrbfn (default: build it)")
parser.add_argument("--disk-only", action="store_true", help="neither the store nor kills: one run from the disk, and again")
parser.add_argument("--store", default=".setup/store/bin/versitygw", help="the program versitygw (scripts/store installs it)")
parser.add_argument("--proxy", default=".setup/store/bin/toxiproxy", help="the program toxiproxy")
parser.add_argument("--model", default="pixels", help="the folder of a model, for what the latency costs where a model computes (default: pixels)")
parser.add_argument("--latency", type=int, default=50, help="ms for a request")
parser.add_argument("--folder", help="where the images and features are made (default: a temporary folder)")
args = parser.parse_args()


def say(*what):
    print(*what, flush=True)


def png(i):
    """A picture of 16 by 16 pixels."""
    pixels = hashlib.shake_128(b"%d" % i).digest(16 * 48)
    rows = b"".join(b"\0" + pixels[y : y + 48] for y in range(0, len(pixels), 48))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")


def member(name, data):
    """A file in a tar: tarfile itself would take ten times as long."""
    head = struct.pack("100s8s8s8s12s12s8s1s100s8s247s", name.encode(), b"0000644", b"0000000", b"0000000", b"%011o" % len(data), b"%011o" % 1_700_000_000, b" " * 8, b"0", b"", b"ustar\x0000", b"")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:] + data + b"\0" * (-len(data) % 512)


def make(job):
    path, first, n = job
    with open(path, "wb") as tar:
        for i in range(first, first + n):
            # Some images are none, and one tar in fifty lacks its end.
            tar.write(member(f"{i:09d}.png", png(i) if i % 5003 else b"no picture") + member(f"{i:09d}.cls", b"%d" % (i % 100)))
        tar.write(bytes(1024))
    if (first // n) % 50 == 7:
        os.truncate(path, os.path.getsize(path) * 9 // 10)


folder = args.folder or tempfile.mkdtemp(prefix="scale")
os.makedirs(folder, exist_ok=True)
data = os.path.join(folder, "objects", "data", "shards")
os.makedirs(data, exist_ok=True)
running = []


def program():
    if args.program:
        return os.path.abspath(args.program)
    file = os.path.join(folder, "mlrbfn")
    subprocess.run(["go", "build", "-o", file, "./cmd/mlrbfn"], check=True)
    return file


def extract(images, out, *more):
    size = ["--size", "8"] if args.model == "pixels" else []
    return [mlrbfn, "extract", "--model", args.model, *size, "--images", images, "--out", os.path.join(folder, out), "--workers", str(args.threads), "--quiet", "--json", *more]


def run(command, env=None, watch=None):
    """Runs a command and returns its wall time, processor time and greatest memory."""
    began = time.time()
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    running.append(child)
    ended = threading.Event()
    if watch:
        watcher = threading.Thread(target=lambda: [watch.look(child.pid) for _ in iter(lambda: ended.wait(0.02), True)])
        watcher.start()
    out, err = child.stdout.read(), child.stderr.read()
    ended.set()
    _, status, usage = os.wait4(child.pid, 0)
    running.remove(child)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: {child.returncode}\n{err.decode()}")
    return json.loads(out) if out.strip().startswith(b"{") else {}, time.time() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024


def serve(command, env, port):
    log = open(os.path.join(folder, os.path.basename(command[0]) + ".log"), "wb")
    child = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    running.append(child)
    import socket

    for _ in range(200):
        if socket.socket().connect_ex(("127.0.0.1", port)) == 0:
            return child
        time.sleep(0.05)
    sys.exit(f"{command[0]} does not listen")


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Memory:
    """The memory of a process that extracts, as it goes on. Pages of mapped files do not count."""

    def __init__(self, out):
        self.rows, self.most = os.path.join(folder, out + ".partial", "rows.f32"), {}

    def look(self, pid):
        try:
            n = os.path.getsize(self.rows) // 10_000
            with open(f"/proc/{pid}/status") as f:
                mib = next(int(line.split()[1]) / 1024 for line in f if line.startswith("RssAnon"))
        except (OSError, StopIteration):
            return
        self.most[n] = max(self.most.get(n, 0), mib)

    def __str__(self):
        """What it was at most in each quarter of the rows, and how it grows."""
        parts = [[] for _ in range(20)]
        for n, mib in self.most.items():
            parts[min(20 * n // max(*self.most, 1), 19)].append(mib)
        if not all(parts):
            return "too short to tell"
        y = [max(p) for p in parts]
        quarters = [max(y[q : q + 5]) for q in range(0, 20, 5)]
        # At the beginning what is read ahead is not there yet, and in the end no longer. Each
        # twentieth counts by its most, as workers that are killed begin again with little.
        x, y = [n * max(self.most) / 20 for n in range(2, 15)], y[2:15]
        mx, my = sum(x) / len(x), sum(y) / len(y)
        slope = sum((a - mx) * (b - my) for a, b in zip(x, y)) / sum((a - mx) ** 2 for a in x)
        return f"{' '.join('%.0f' % q for q in quarters)} MiB at most in the quarters of its images, {slope * row_bytes / 10_000 * 100_000:+.1f} MiB for 100,000 images"


def compare(a, b):
    """Tells which of the files of two sets differ."""
    same = []
    for name in ("features.npy", "labels.npy", "images.jsonl", "errors.jsonl"):
        with open(os.path.join(folder, a, name), "rb") as x, open(os.path.join(folder, b, name), "rb") as y:
            while True:
                p, q = x.read(1 << 20), y.read(1 << 20)
                if p != q:
                    sys.exit(f"{name} of {a} and {b} differ")
                if not p:
                    break
        same.append(name)
    return ", ".join(same)


try:
    mlrbfn = program()
    began = time.time()
    jobs = [(f"{data}/{first // args.per_tar:05d}.tar", first, min(args.per_tar, args.images - first)) for first in range(0, args.images, args.per_tar)]
    with multiprocessing.Pool(min(args.workers, os.cpu_count())) as pool:
        pool.map(make, jobs, 1)
    size = sum(os.path.getsize(job[0]) for job in jobs)
    say(f"{args.images} images in {len(jobs)} tars, {size >> 20} MiB, made in {time.time() - began:.0f} s")

    watch = Memory("local")
    found, wall, cpu, most = run(extract(data, "local"), watch=watch)
    n, row_bytes = found["n"] + found["failed"], 4 * found["d"]
    say(f"one run from the disk, {args.threads} at once: {wall:.1f} s, {1e3 * cpu / n:.3f} ms of processor time an image with decoding, {most} MiB; {found['n']} rows, {found['failed']} failures")
    say(f"its memory: {watch}")
    found, wall, cpu, most = run(extract(data, "local"))
    say(f"the same again, finished: {wall:.2f} s, {cpu:.2f} s of processor time, {most} MiB, {found['new']} new")
    if args.disk_only:
        sys.exit()

    port = free_port()
    env = dict(os.environ, ROOT_ACCESS_KEY="scale", ROOT_SECRET_KEY="scalescale")
    serve([args.store, "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "posix", "--nometa", os.path.join(folder, "objects")], env, port)
    env = dict(os.environ, AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{port}", AWS_ACCESS_KEY_ID="scale", AWS_SECRET_ACCESS_KEY="scalescale", AWS_REGION="us-east-1")
    env.pop("AWS_PROFILE", None)
    _, whole, _, _ = run(extract("s3://data/shards", "store"), env)
    say(f"one run from the store: {whole:.1f} s; the same bytes as from the disk: {compare('local', 'store')}")

    began, kills, chance = time.time(), 0, random.Random(1)
    # About as many kills as were asked for, in the time that the run takes.
    pause = max(0.05, whole / args.workers / max(args.kills, 1))
    command = [extract("s3://data/shards", f"part{i}", "--shard", f"{i + 1}/{args.workers}") for i in range(args.workers)]
    workers, watches = {}, [Memory(f"part{i}") for i in range(args.workers)]
    for i in range(args.workers):
        workers[i] = subprocess.Popen(command[i], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    strike = time.time() + pause
    while workers:
        time.sleep(0.02)
        for i, w in list(workers.items()):
            watches[i].look(w.pid)
            code = w.poll()
            if code in (0, 3):
                del workers[i]
            elif code is not None:
                if code != -signal.SIGKILL:
                    sys.exit(f"worker {i} ended with {code}")
                workers[i] = subprocess.Popen(command[i], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if workers and kills < args.kills and time.time() > strike:
            workers[chance.choice(list(workers))].kill()
            kills, strike = kills + 1, time.time() + pause * chance.uniform(0.5, 1.5)
    say(f"{args.workers} workers, {kills} of them killed: {time.time() - began:.1f} s")
    for i, watch in enumerate(watches):
        say(f"worker {i + 1}: {watch}")
    _, wall, _, most = run([mlrbfn, "merge", "--out", os.path.join(folder, "merged"), *(os.path.join(folder, f"part{i}") for i in range(args.workers))])
    say(f"merged in {wall:.1f} s, {most} MiB; the same bytes as one run: {compare('local', 'merged')}")
    began = time.time()
    again = [run(c, env) for c in command]
    say(f"the finished job again, its {args.workers} parts one after another: {time.time() - began:.2f} s, {sum(cpu for _, _, cpu, _ in again):.2f} s of processor time")

    if os.path.exists(args.proxy):
        api, slow = free_port(), free_port()
        serve([args.proxy, "-host", "127.0.0.1", "-port", str(api)], None, api)

        def post(path, what):
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{api}{path}", json.dumps(what).encode(), {"Content-Type": "application/json"})).read()

        post("/proxies", {"name": "store", "listen": f"127.0.0.1:{slow}", "upstream": f"127.0.0.1:{port}", "enabled": True})
        post("/proxies/store/toxics", {"type": "latency", "stream": "downstream", "attributes": {"latency": args.latency, "jitter": 0}})
        far = dict(env, AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{slow}")
        times = {"disk": [], "store": []}
        for round in range(3):
            times["disk"].append(run(extract(data, "again", "--force"))[1])
            shutil.rmtree(os.path.join(folder, "again"))
            times["store"].append(run(extract("s3://data/shards", "far"), far)[1])
            shutil.rmtree(os.path.join(folder, "far"))
        a, b = sorted(times["disk"])[1], sorted(times["store"])[1]
        say(f"with {args.latency} ms a request: {b:.1f} s, from the disk {a:.1f} s: {b / a:.2f} × (medians of 3)")
finally:
    for child in running:
        child.kill()
    if not args.folder:
        shutil.rmtree(folder, ignore_errors=True)
