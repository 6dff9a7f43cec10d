"""Compares extractions from an object store and from a web server that take long to answer
each request with extractions from the disk, by turns. Run it by scripts/bench far.

It prints the time of each, the processor time of the program for an image, and for which share of
the time the worker that asks for the next image waited, while others may compute: these two hardly
depend on what else the machine does. The store, the web server and the proxy run on the same
machine, and take processor time from the program that a store elsewhere would not: they have one
core, and the program has the others.
"""

import argparse, functools, hashlib, http.server, json, os, random, resource, shutil, socket, struct, subprocess, sys, tempfile, threading, time, urllib.request, zlib

parser = argparse.ArgumentParser(prog="scripts/bench far")
parser.add_argument("--images", type=int, default=1_000)
parser.add_argument("--bytes", type=int, default=100_000, help="of an image, about; one in ten has twenty times as many")
parser.add_argument("--per-tar", type=int, default=100)
parser.add_argument("--workers", type=int, default=0, help="images in work at once (default: as many as the program has cores)")
parser.add_argument("--latency", type=int, default=50, help="ms for a request")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--model", default="models/efficientnet-lite0")
parser.add_argument("--program", help="the program mlrbfn (default: build it)")
args = parser.parse_args()

*cores, last = sorted(os.sched_getaffinity(0))
if not cores:
    sys.exit("scripts/bench far: needs two cores")
os.sched_setaffinity(0, {last})
args.workers = args.workers or len(cores)
folder = tempfile.mkdtemp(prefix="far")
running = []


def png(i):
    """A picture of 224 by 224 pixels, with noise that no reader looks at."""
    rows = b"".join(b"\0" + hashlib.shake_128(b"%d %d" % (i, y)).digest(21) * 32 for y in range(224))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rest = random.Random(i).randbytes(args.bytes * (20 if i % 10 == 9 else 1))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 224, 224, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"noIs", rest) + chunk(b"IEND", b"")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def serve(command, env, port):
    child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running.append(child)
    for _ in range(400):
        if socket.socket().connect_ex(("127.0.0.1", port)) == 0:
            return
        time.sleep(0.05)
    sys.exit(f"{command[0]} does not listen")


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256

    def handle_error(self, *_):
        pass  # a connection that the program no longer needs


class Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass


def used(usage):
    return usage.ru_utime + usage.ru_stime


def of_servers():
    """Returns the processor time of the store, the proxy and the web server."""
    total = used(resource.getrusage(resource.RUSAGE_SELF))
    for child in running:
        with open(f"/proc/{child.pid}/stat") as f:
            total += sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")
    return total


def extract(images, env):
    began, ours, theirs = time.time(), used(resource.getrusage(resource.RUSAGE_CHILDREN)), of_servers()
    out = os.path.join(folder, "out")
    done = subprocess.run([mlrbfn, "extract", "--model", args.model, "--images", images, "--out", out, "--workers", str(args.workers), "--threads", "1", "--batch", "1", "--quiet", "--json"],
                          env=env, preexec_fn=lambda: os.sched_setaffinity(0, cores), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wall, theirs = time.time() - began, of_servers() - theirs
    ours = used(resource.getrusage(resource.RUSAGE_CHILDREN)) - ours  # of the program alone: no server has ended
    if done.returncode:
        sys.exit(done.stderr)
    with open(os.path.join(out, "features.npy"), "rb") as f:
        rows = hashlib.sha256(f.read()).hexdigest()
    shutil.rmtree(out)
    said = json.loads(done.stdout)
    assert said["n"] == args.images, said
    waited = 0 if images == os.path.join(folder, "objects", "data", "images") else said["waited"]  # nobody reads these ahead
    return {"wall": wall, "ours": 1000 * ours / args.images, "theirs": 1000 * theirs / args.images, "waited": waited / wall, "rows": rows}


try:
    mlrbfn = args.program or os.path.join(folder, "mlrbfn")
    if not args.program:
        subprocess.run(["go", "build", "-o", mlrbfn, "./cmd/mlrbfn"], check=True)
    data = os.path.join(folder, "objects", "data")
    for name in ("tars", "images"):
        os.makedirs(os.path.join(data, name))
    for first in range(0, args.images, args.per_tar):
        with open(f"{data}/tars/{first // args.per_tar:05d}.tar", "wb") as tar:
            for i in range(first, min(first + args.per_tar, args.images)):
                picture = png(i)
                with open(f"{data}/images/{i:09d}.png", "wb") as f:
                    f.write(picture)
                head = struct.pack("100s8s8s8s12s12s8s1s100s8s247s", b"%09d.png" % i, b"0000644", b"0000000", b"0000000", b"%011o" % len(picture), b"%011o" % 1_700_000_000, b" " * 8, b"0", b"", b"ustar\x0000", b"")
                tar.write(head[:148] + b"%06o\0 " % sum(head) + head[156:] + picture + bytes(-len(picture) % 512))
            tar.write(bytes(1024))
    store, web, api, slow_store, slow_web = (free_port() for _ in range(5))
    with open(f"{data}/list.txt", "w") as f:
        for i in range(args.images):
            f.write(f"http://127.0.0.1:{slow_web}/images/{i:09d}.png\n")
    env = dict(os.environ, ROOT_ACCESS_KEY="far", ROOT_SECRET_KEY="farfarfar")
    serve([".setup/store/bin/versitygw", "--port", f"127.0.0.1:{store}", "--quiet", "--keep-alive", "posix", "--nometa", os.path.join(folder, "objects")], env, store)
    server = Server(("127.0.0.1", web), functools.partial(Quiet, directory=data))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    serve([".setup/store/bin/toxiproxy", "-host", "127.0.0.1", "-port", str(api)], None, api)

    def post(path, what):
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{api}{path}", json.dumps(what).encode(), {"Content-Type": "application/json"})).read()

    for name, port, upstream in (("store", slow_store, store), ("web", slow_web, web)):
        post("/proxies", {"name": name, "listen": f"127.0.0.1:{port}", "upstream": f"127.0.0.1:{upstream}", "enabled": True})
        post(f"/proxies/{name}/toxics", {"type": "latency", "stream": "downstream", "attributes": {"latency": args.latency, "jitter": 0}})
    env = dict(os.environ, AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{slow_store}", AWS_ACCESS_KEY_ID="far", AWS_SECRET_ACCESS_KEY="farfarfar", AWS_REGION="us-east-1")
    env.pop("AWS_PROFILE", None)
    kinds = {
        "tars on the disk": os.path.join(data, "tars"),
        "images on the disk": os.path.join(data, "images"),
        "s3:// tars": "s3://data/tars",
        "s3:// images": "s3://data/images",
        "a list of http:// images": os.path.join(data, "list.txt"),
    }
    found = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind, images in kinds.items():
            found[kind].append(extract(images, env))
    middle = lambda runs, what: sorted(run[what] for run in runs)[len(runs) // 2]
    for kind, runs in found.items():
        near = found["images on the disk" if "images" in kind else "tars on the disk"]
        same = len({run["rows"] for run in runs + near}) == 1
        wall, ours = middle(runs, "wall"), middle(runs, "ours")
        waited = "" if kind == "images on the disk" else f"the worker that asks for images waited {middle(runs, 'waited'):.1%} of the time; "
        print(f"{kind}: {wall:.1f} s, {wall / middle(near, 'wall'):.2f} × the disk; processor time for an image {ours:.2f} ms, {ours / middle(near, 'ours'):.2f} × the disk, and of the servers {middle(runs, 'theirs'):.2f} ms; "
              f"{waited}{'the same' if same else 'OTHER'} features", flush=True)
finally:
    for child in running:
        child.kill()
    shutil.rmtree(folder, ignore_errors=True)
