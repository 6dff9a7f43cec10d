"""Measures what Spark and Ray add to judging images, and what memory they take, beside
`mlrbfn detect` on the same folder, each on all cores. Run it by scripts/bench engines.

Each is run over so many images and over three times as many, by turns, and the medians of
--rounds are printed. The difference is what images cost once workers run: the processor time of
the processes that judge, and of all processes of the engine, most of which are its own.

"usual" is what people write: pixels by Pillow and torchvision, in a column of the engine, and
onnxruntime on them. It is left out where Python lacks torchvision or onnxruntime. --flat judges so
many images in one run instead, the same over and over, and prints how the memory of the
processes that judge grows.
"""

import argparse, glob, importlib.util, itertools, json, os, shutil, statistics, subprocess, sys, tempfile, threading, time

CORES = os.cpu_count()
HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
parser = argparse.ArgumentParser(prog="scripts/bench engines")
parser.add_argument("folder", help="photographs")
parser.add_argument("--detector", required=True)
parser.add_argument("--images", type=int, default=200)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--engines", default="spark,ray")
parser.add_argument("--flat", type=int, help="judge so many images and print memory alone")
parser.add_argument("--model", default=os.path.join(HERE, "models", "efficientnet-lite0"), help="folder of the detector's backbone, for the usual way")
parser.add_argument("--run", help=argparse.SUPPRESS)
args = parser.parse_args()


def spark_session():
    from pyspark.sql import SparkSession

    return SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").config("spark.sql.files.openCostInBytes", "0").getOrCreate()


def spark(folder):
    import mlrbfn.spark

    session = spark_session()
    if args.flat:
        files, image = session.createDataFrame([(p,) for p in repeated(folder)], "path string").repartition(max(1, args.flat // 5000)), "path"
    else:
        files, image = session.read.format("binaryFile").load(folder), "content"
    return mlrbfn.spark.detect(files, args.detector, image).selectExpr("count(verdict.score)").collect()[0][0]


def ray_init():
    import ray

    ray.init(num_cpus=CORES + 1, include_dashboard=False, log_to_driver=False, object_store_memory=512 << 20)


def ray(folder):
    import pyarrow
    import ray

    import mlrbfn.ray

    ray_init()
    if args.flat:
        paths = repeated(folder)
        files, image = ray.data.from_arrow([pyarrow.table({"path": paths[i : i + 1000]}) for i in range(0, len(paths), 1000)]), "path"
    else:
        files, image = ray.data.read_binary_files(folder, include_paths=True), "bytes"
    pool = ray.data.ActorPoolStrategy(size=CORES)
    judged = files.map_batches(mlrbfn.ray.Detect, fn_constructor_args=[args.detector, image], batch_format="pyarrow", batch_size=128, compute=pool)
    return judged.select_columns(["verdict"]).count()


class Usual:
    """The features of pixels, as people write it."""

    def __init__(self):
        import onnxruntime
        from torchvision import transforms

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.model = onnxruntime.InferenceSession(os.path.join(args.model, "model.onnx"), options)
        self.prepare = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)])

    def __call__(self, pictures):
        import torch

        x = torch.stack([self.prepare(picture) for picture in pictures]).numpy()
        return self.model.run(None, {self.model.get_inputs()[0].name: x})[0].reshape(len(x), -1)


def spark_usual(folder):
    from collections.abc import Iterator

    import pandas
    from pyspark.sql.functions import pandas_udf

    session = spark_session()

    @pandas_udf("array<float>")
    def features(batches: Iterator[pandas.Series]) -> Iterator[pandas.Series]:
        import io

        from PIL import Image

        usual = Usual()
        for files in batches:
            yield pandas.Series(list(usual([Image.open(io.BytesIO(f)).convert("RGB") for f in files])))

    return session.read.format("binaryFile").load(folder).select(features("content").alias("x")).selectExpr("count(x)").collect()[0][0]


def ray_usual(folder):
    import ray

    ray_init()

    class Model:
        def __init__(self):
            self.usual = Usual()

        def __call__(self, batch):
            from PIL import Image

            return {"x": self.usual([Image.fromarray(pixels) for pixels in batch["image"]])}

    pictures = ray.data.read_images(folder, mode="RGB")
    return pictures.map_batches(Model, batch_size=64, compute=ray.data.ActorPoolStrategy(size=CORES)).count()


def photographs(folder):
    return sorted(f for f in glob.glob(os.path.join(folder, "**", "*"), recursive=True) if os.path.isfile(f))


def repeated(folder):
    return list(itertools.islice(itertools.cycle(photographs(folder)), args.flat))


def below(pid):
    """Returns the processes below one, with processor seconds and resident MiB."""
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


def shared(pid):
    """Returns the MiB of a process, of what it shares its part."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("Pss:")) / 2**10
    except (OSError, StopIteration):
        return 0


def measure(command, env):
    """Runs a command, and returns the processor seconds of all its processes and of those that
    judge images, the MiB of one of these over time, the most of all processes together, and the
    seconds of each program."""
    seconds, names, memory, judging, most = {}, {}, [], set(), 0
    run = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = []
    reader = threading.Thread(target=lambda: said.append(run.stderr.read()))
    reader.start()
    for tick in itertools.count():
        if run.poll() is not None:
            break
        processes = below(run.pid)
        for pid, (used, _) in processes.items():
            seconds[pid] = max(seconds.get(pid, 0), used)
            if pid not in judging:
                try:
                    with open(f"/proc/{pid}/cmdline") as f:
                        names[pid] = " ".join(map(os.path.basename, f.read().split("\0")))[:40].strip()
                    with open(f"/proc/{pid}/maps") as f:
                        maps = f.read()
                    if "bin/mlrbfn" in maps or pid != run.pid and ("onnxruntime" in maps or "libmlrbfn" in maps):
                        judging.add(pid)
                except OSError:
                    pass
        memory.append(max((mib for pid, (_, mib) in processes.items() if pid in judging), default=0))
        if tick % 10 == 0:
            most = max(most, sum(map(shared, processes)))
        time.sleep(0.05 if not args.flat else 1)
    reader.join()
    if run.returncode not in (0, 3):
        sys.exit(said[0].decode()[-3000:])
    of = {}
    for pid, used in seconds.items():
        name = "judging" if pid in judging else names.get(pid, "")
        of[name] = of.get(name, 0) + used
    return sum(seconds.values()), of.get("judging", 0), memory, most, of


def told(name, found):
    """Prints the medians of an engine's runs so far, few and many images each."""
    each = lambda name, of: statistics.median(1000 * (more[of] - few[of]) / (2 * args.images) for few, more in found[name])
    few, more = ({k: round(v) for k, v in sorted(run[4].items(), key=lambda item: -item[1])[:5]} for run in found[name][-1])
    peaks = lambda of: [round(statistics.median(of(run[at]) for run in found[name])) for at in (0, 1)]
    print(json.dumps({
        "engine": name, "rounds": len(found[name]), "images": [args.images, 3 * args.images], "processor ms an image": round(each(name, 0), 2),
        "beside detect": round(each(name, 0) / each("detect", 0), 3), "of workers": round(each(name, 1) / each("detect", 1), 3),
        "worker MiB": peaks(lambda run: max(run[2])), "all MiB": peaks(lambda run: run[3]), "seconds of": [few, more],
    }), flush=True)


def main():
    python = os.path.join(HERE, ".setup", "engines", "bin", "python")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.path.join(HERE, "python"), os.environ.get("PYTHONPATH")])), "PYSPARK_PYTHON": python}
    command = lambda name, folder: [python, os.path.abspath(__file__), folder, *sys.argv[2:], "--run", name]
    engines = args.engines.split(",")
    if args.flat:
        for name in engines:
            _, _, memory, *_ = measure(command(name, args.folder), env)
            memory = [mib for mib in memory if mib > 0]
            memory = memory[len(memory) // 10 :]
            slope = statistics.linear_regression(range(len(memory)), memory).slope * len(memory) * 10000 / (0.9 * args.flat)
            quarters = [max(memory[i * len(memory) // 4 : (i + 1) * len(memory) // 4]) for i in range(4)]
            print(json.dumps({"engine": name, "images": args.flat, "worker MiB by quarter, after the first tenth": [round(m) for m in quarters], "MiB for 10,000 more": round(slope, 2)}), flush=True)
        return
    names = ["detect", *engines]
    if all(importlib.util.find_spec(package) for package in ("torchvision", "onnxruntime")):
        names += [name + "_usual" for name in engines]
    else:
        print(json.dumps({"left out": "the usual way: no torchvision or no onnxruntime"}), flush=True)
    photos, found = photographs(args.folder), {name: [] for name in names}
    with tempfile.TemporaryDirectory() as work:
        folders = []
        for n in (args.images, 3 * args.images):
            folders.append(os.path.join(work, str(n)))
            os.mkdir(folders[-1])
            for i in range(n):
                shutil.copy(photos[i % len(photos)], os.path.join(folders[-1], f"{i:06d}{os.path.splitext(photos[i % len(photos)])[1]}"))
        for _ in range(args.rounds):
            for name in names:
                how = lambda folder: command(name, folder)
                if name == "detect":
                    how = lambda folder: [os.path.join(HERE, "bin", "mlrbfn"), "detect", "--detector", args.detector, "--quiet", "--format", "jsonl", folder]
                found[name].append([measure(how(folder), env) for folder in folders])
                told(name, found)


if args.run:
    run = {"spark": spark, "ray": ray, "spark_usual": spark_usual, "ray_usual": ray_usual}[args.run]
    judged = run(args.folder)
    assert judged == (args.flat or len(photographs(args.folder))), judged
else:
    main()
