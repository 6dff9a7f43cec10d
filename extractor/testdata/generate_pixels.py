"""Writes the witnesses of `extract --model pixels` and a small idx data set.

    python3 extractor/testdata/generate_pixels.py extractor/testdata/pixels scripts/mnist/testdata

Needs Pillow 13 and numpy. The first folder gets source.png and
CHANNELS_SIZE.npy, the features that Pillow and numpy make of it; the second made-up
digits, clothes and characters, ten each, in the layout of MNIST and its kin.
"""
import gzip
import os
import struct
import sys

import numpy as np
from PIL import Image

GOLDEN, DIGITS = sys.argv[1:]
rng = np.random.default_rng(20261121)

# --- golden: what a person with Pillow does, x/255, (x − mean)/std, channels first
MEAN, STD = np.float32([0.4, 0.5, 0.3]), np.float32([0.2, 0.3, 0.25])
os.makedirs(GOLDEN, exist_ok=True)
y, x = np.mgrid[:9, :12]
p = np.stack([255 * x / 11, 255 * y / 8, 127 + 120 * np.sin(x + y / 2)], -1) + rng.integers(-30, 31, (9, 12, 3))
source = Image.fromarray(np.clip(p, 0, 255).astype(np.uint8))
source.save(f"{GOLDEN}/source.png", optimize=True)
for channels, mode in (("rgb", "RGB"), ("grey", "L")):
    for size in (None, (6, 6), (7, 4), (13, 15)):
        im = source.convert(mode)
        im = im.resize(size) if size else im  # Pillow's default filter
        a = np.atleast_3d(np.asarray(im)).astype(np.float32) / 255
        mean, std = (MEAN, STD) if mode == "RGB" else (MEAN[:1], STD[:1])
        name = "%dx%d" % size if size else "keep"
        np.save(f"{GOLDEN}/{channels}_{name}.npy", ((a - mean) / std).transpose(2, 0, 1).reshape(1, -1))


# --- a data set: ten coarse patterns each, with noise, at few levels so that it is small
def idx(path, a):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    data = struct.pack(">BBBB", 0, 0, 8, a.ndim) + struct.pack(">%dI" % a.ndim, *a.shape) + a.astype(np.uint8).tobytes()
    with open(path, "wb") as f:
        f.write(gzip.compress(data, mtime=0))


def write(name, split, patterns, n):
    labels = np.arange(n) % 10
    images = patterns[labels] ^ (rng.random((n, 8, 8)) < 0.05)
    idx(f"{DIGITS}/{name}/{split}-images-idx3-ubyte.gz", images * 255)
    idx(f"{DIGITS}/{name}/{split}-labels-idx1-ubyte.gz", labels)


for name in ("mnist", "fashion_mnist", "kmnist"):
    patterns = rng.random((10, 8, 8)) < 0.5
    if name == "mnist":
        write(name, "train", patterns, 400)
    write(name, "t10k", patterns, 100)
