"""Prints how much memory calls of the Python package take, call after call.

    make python && PYTHONPATH=python:.setup/python python3 scripts/python_memory.py [CALLS [MODEL]]

Each kind of call is made CALLS times (5,000), on small images of noise and with a model
(EfficientNet-Lite0). A kind whose last half of calls made the process grow by more than 16 MB
is a failure: what grows with each call grows by more.
"""

from __future__ import annotations

import gc
import io
import itertools
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mlrbfn

MOST = 16.0  # MB


def resident() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def png(image: np.ndarray) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    height, width, _ = image.shape
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    lines = b"".join(b"\0" + line.tobytes() for line in image)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def main() -> int:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    model = sys.argv[2] if len(sys.argv) > 2 else "models/efficientnet-lite0"
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 32, 32, 3), np.uint8)
    features = mlrbfn.embed(images, np.arange(40) % 2, model=model)
    X = np.asarray(features)
    detector = mlrbfn.train(features, no_assess=True, calibration=0.5, epochs=2)
    workers = itertools.cycle([1, 2])
    with tempfile.TemporaryDirectory() as room:
        path = Path(room, "image.png")
        path.write_bytes(png(images[0]))
        data = path.read_bytes()
        kinds: dict[str, Callable[[], Any]] = {
            "judge": lambda: detector.judge(X[:1]),
            "detect a path": lambda: detector.detect(path),
            "detect bytes": lambda: detector.detect(data),
            "detect an open file": lambda: detector.detect(io.BytesIO(data)),
            "detect an array": lambda: detector.detect(images[0]),
            "detect, settings that alternate": lambda: detector.detect(images[0], workers=next(workers)),
            "embed an array": lambda: mlrbfn.embed(images[0], model=model),
            "embed, settings that alternate": lambda: mlrbfn.embed(images[0], model=model, workers=next(workers)),
        }
        failed = 0
        print(f"{'':32}{'calls':>7}{'ms each':>9}{'MB first half':>15}{'MB second half':>16}")
        for name, do in kinds.items():
            do()
            memory, began = [resident()], time.perf_counter()
            for _ in range(2):
                for _ in range(calls // 2):
                    do()
                memory.append(resident())
            took = (time.perf_counter() - began) / (calls // 2 * 2)
            grown = np.diff(memory)
            print(f"{name:32}{calls:7}{1e3 * took:9.1f}{grown[0]:15.1f}{grown[1]:16.1f}", flush=True)
            failed += grown[1] > MOST
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
