"""Measures what Spark and Ray add to judging images: processor time for an image and the memory
of a worker, beside `mlrbfn detect` on the same folder and beside what is usual, torchvision in a
pandas_udf, where that is installed. Run it by scripts/bench engines.

Each is run over so many images and over three times as many. The difference is what images cost
once workers run: the processor time of all processes of the engine, and how much the memory of
a worker grew.
"""

import argparse, glob, json, os, shutil, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
parser = argparse.ArgumentParser(prog="scripts/bench engines")
parser.add_argument("folder", help="photographs")
parser.add_argument("--detector", required=True)
parser.add_argument("--images", type=int, default=200)
parser.add_argument("--engines", default="spark,ray")
parser.add_argument("--run", help=argparse.SUPPRESS)
args = parser.parse_args()


def spark(folder):
    from pyspark.sql import SparkSession

    import mlrbfn.spark

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").config("spark.sql.files.openCostInBytes", "0").getOrCreate()
    files = session.read.format("binaryFile").load(folder)
    return len(mlrbfn.spark.detect(files, args.detector).select("path", "verdict").collect())


def ray(folder):
    import ray

    import mlrbfn.ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=512 << 20)
    files = ray.data.read_binary_files(folder, include_paths=True)
    pool = ray.data.ActorPoolStrategy(size=1)
    judged = files.map_batches(mlrbfn.ray.Detect, fn_constructor_args=[args.detector], batch_format="pyarrow", batch_size=64, compute=pool)
    return len(judged.select_columns(["path", "verdict"]).take_all())


def below(pid):
    """Yields the processes below one, with processor seconds and resident MiB."""
    tree, found = {}, [pid]
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as f:
                fields = f.read().rpartition(")")[2].split()
        except OSError:
            continue
        tree.setdefault(int(fields[1]), []).append(int(name))
        tree[-int(name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    for pid in found:
        found += tree.get(pid, [])
    return {pid: tree[-pid] for pid in found if -pid in tree}


def measure(command, env):
    """Runs a command, and returns the processor seconds of all its processes, those of the
    processes that judge images, and the most memory of one of these."""
    seconds, memory, judging = {}, 0, set()
    run = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = []
    reader = threading.Thread(target=lambda: said.append(run.stderr.read()))
    reader.start()
    while run.poll() is None:
        for pid, (used, mib) in below(run.pid).items():
            seconds[pid] = max(seconds.get(pid, 0), used)
            if pid not in judging:
                try:
                    with open(f"/proc/{pid}/maps") as f:
                        if "libonnxruntime" in f.read():
                            judging.add(pid)
                except OSError:
                    pass
            memory = max(memory, mib if pid in judging else 0)
        time.sleep(0.05)
    reader.join()
    if run.returncode not in (0, 3):
        sys.exit(said[0].decode()[-3000:])
    return sum(seconds.values()), sum(seconds[pid] for pid in judging), memory


def main():
    python = os.path.join(HERE, ".setup", "engines", "bin", "python")
    env = {**os.environ, "PYTHONPATH": os.path.join(HERE, "python"), "PYSPARK_PYTHON": python}
    photos = sorted(f for f in glob.glob(os.path.join(args.folder, "**", "*"), recursive=True) if os.path.isfile(f))
    with tempfile.TemporaryDirectory() as work:
        folders = []
        for n in (args.images, 3 * args.images):
            folders.append(os.path.join(work, str(n)))
            os.mkdir(folders[-1])
            for i in range(n):
                shutil.copy(photos[i % len(photos)], os.path.join(folders[-1], f"{i:06d}{os.path.splitext(photos[i % len(photos)])[1]}"))
        alone = None
        for name in ["detect", *args.engines.split(",")]:
            used, own, held = [], [], []
            for folder in folders:
                command = [python, os.path.abspath(__file__), folder, "--detector", os.path.abspath(args.detector), "--run", name]
                if name == "detect":
                    command = [os.path.join(HERE, "bin", "mlrbfn"), "detect", "--detector", args.detector, "--workers", "1", "--quiet", "--format", "jsonl", folder]
                seconds, judging, memory = measure(command, env)
                used.append(seconds)
                own.append(judging)
                held.append(memory)
            each, workers = (1000 * (t[1] - t[0]) / (2 * args.images) for t in (used, own))
            alone = alone or each
            print(json.dumps({"engine": name, "images": [args.images, 3 * args.images], "processor ms an image": round(each, 2), "beside detect": round(each / alone, 3), "of workers": round(workers / alone, 3), "worker MiB": [round(m) for m in held]}), flush=True)


if args.run:
    assert {"spark": spark, "ray": ray}[args.run](args.folder) > 0
else:
    main()
