"""Feature sets on disk, and the tasks (in-distribution set, near and far sets) made of them."""
import gzip
import pathlib

import numpy as np

# train, test, near, far
CIFAR = ("cifar10_train", "cifar10_test", ["cifar100", "tin"], ["texture", "scenes", "streetchars"])
NETTE = ("imagenette_train", "imagenette_val", ["imagewoof"], ["texture", "scenes"])
IMAGENET = ["vit-tiny-p16", "efficientnet-lite0", "mobilenetv2"]
TASKS = {f"{m}/cifar10": (m, *CIFAR) for m in IMAGENET + ["resnet56-cifar10", "densenet100-cifar10"]}
TASKS |= {f"{m}/imagenette": (m, *NETTE) for m in IMAGENET}
TASKS |= {"pixels/mnist": ("pixels", "mnist_train", "mnist_test", ["fashion_mnist"], ["kmnist"])}
# The tasks on which docs/research.md chose the recipe, and on which all variants are run.
TUNED = ["vit-tiny-p16/cifar10", "resnet56-cifar10/cifar10", "mobilenetv2/imagenette"]


class Task:
    """One in-distribution set with its out-of-distribution sets, as float64 rows."""

    def __init__(self, root, name, idx=None):
        self.name = name
        model, train, test, self.near, self.far = TASKS[name]
        read = (lambda s: read_idx(idx, s)) if model == "pixels" else (lambda s: read_set(pathlib.Path(root) / model / s))
        self.x, self.y = read(train)
        self.test = {"id": read(test)[0]} | {s: read(s)[0] for s in self.near + self.far}
        self.test_y = read(test)[1]
        self.classes = int(self.y.max()) + 1

    def split(self, seed, val=0.1, calibration=0.1):
        """Rows of the training and the validation part; the calibration part is left out, as `train` leaves it out."""
        rng = np.random.default_rng(seed)
        fit, held = [], []
        for c in range(self.classes):
            rows = rng.permutation(np.flatnonzero(self.y == c))
            v, k = round(val * len(rows)), round((val + calibration) * len(rows))
            held.append(rows[:v])
            fit.append(rows[k:])
        return rng.permutation(np.concatenate(fit)), np.concatenate(held)


def read_set(folder):
    x, y = np.load(folder / "features.npy").astype(np.float64), np.load(folder / "labels.npy")
    keep = np.isfinite(x).all(1)
    return x[keep], y[keep]


def read_idx(root, name):
    folder, part = {"mnist_train": ("mnist", "train"), "mnist_test": ("mnist", "t10k")}.get(name, (name, "t10k"))
    base = pathlib.Path(root) / folder
    x = gzip.decompress((base / f"{part}-images-idx3-ubyte.gz").read_bytes())
    y = gzip.decompress((base / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    x = np.frombuffer(x, np.uint8, offset=16).reshape(-1, 784) / 255.0
    return x, np.frombuffer(y, np.uint8, offset=8).astype(np.int64)
