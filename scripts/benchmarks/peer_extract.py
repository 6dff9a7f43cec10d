"""What scripts/bench extract measures Python by: onnxruntime, Pillow and numpy.

    python3 scripts/benchmarks/peer_extract.py extract MODEL PHOTOGRAPHS PROCESSES BATCH
    python3 scripts/benchmarks/peer_extract.py alone MODEL PHOTOGRAPHS PROCESSES BATCH SECONDS
    python3 scripts/benchmarks/peer_extract.py preprocess MODEL PHOTOGRAPHS

extract prints images per second from files to features.npy, alone those of
onnxruntime on tensors that are ready; both with one thread a process, and the
time begins when all processes have loaded the model and run it once. A second
number is the milliseconds that an image takes of the processors. preprocess
prints these alone, of one core.
"""
import glob
import json
import multiprocessing
import os
import sys
import tempfile
import time

import numpy as np
from PIL import Image

mode, folder, photographs = sys.argv[1:4]
config = json.load(open(os.path.join(folder, "preprocessor_config.json"), encoding="utf-8"))
EDGE, CROP = config["size"]["shortest_edge"], config["crop_size"]["height"]
SCALE = config["rescale_factor"]
# (x·scale − mean)/std in two steps instead of three.
MEAN = np.array(config["image_mean"], np.float32) / np.float32(SCALE)
STD = np.array(config["image_std"], np.float32) / np.float32(SCALE)
session = None


def preprocess(file):
    image = Image.open(file).convert("RGB")
    w, h = image.size
    short = min(w, h)
    image = image.resize((EDGE * w // short, EDGE * h // short), Image.BICUBIC)
    left, top = (image.width - CROP) // 2, (image.height - CROP) // 2
    x = np.asarray(image.crop((left, top, left + CROP, top + CROP)), np.float32)
    x -= MEAN
    x /= STD
    return x.transpose(2, 0, 1)


def run(x):
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def load(barrier):
    global session
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), options, ["CPUExecutionProvider"])
    run(np.zeros((1, 3, CROP, CROP), np.float32))
    barrier.wait()


def extract(files):
    start = time.process_time()
    features = run(np.stack([preprocess(f) for f in files]))
    return features, time.process_time() - start


def alone(task):
    files, seconds = task
    x = np.stack([preprocess(f) for f in files])
    run(x)
    done, start, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        run(x)
        done += len(x)
    return done / (time.perf_counter() - start), (time.process_time() - used) / done


if __name__ == "__main__":
    files = sorted(glob.glob(os.path.join(photographs, "**", "*.jpg"), recursive=True))
    if mode == "preprocess":
        for f in files:
            preprocess(f)
        start = time.process_time()
        for _ in range(5):
            for f in files:
                np.ascontiguousarray(preprocess(f))
        print(0, (time.process_time() - start) / 5 / len(files) * 1e3)
        sys.exit()
    processes, batch = map(int, sys.argv[4:6])
    barrier = multiprocessing.Barrier(processes + 1)
    with multiprocessing.Pool(processes, load, (barrier,)) as pool:
        barrier.wait()
        if mode == "alone":
            tasks = [(files[:batch], float(sys.argv[6]))] * processes
            rates, used = zip(*pool.map(alone, tasks, 1))
            print(sum(rates), np.mean(used) * 1e3)
            sys.exit()
        start, own = time.perf_counter(), time.process_time()
        batches = [files[i : i + batch] for i in range(0, len(files), batch)]
        features, used = zip(*pool.imap(extract, batches))
        with tempfile.TemporaryDirectory() as out:
            np.save(os.path.join(out, "features.npy"), np.concatenate(features))
        used = sum(used) + time.process_time() - own
        print(len(files) / (time.perf_counter() - start), used / len(files) * 1e3)
