"""Every single score on many tasks, with one strong linear head: which of them are worth joining.

    python3 singles.py --features FEATURES --superclasses FILE.csv --program mlrbfn --out OUT [--tasks NAME...]

FEATURES/MODEL/SET are feature sets of `mlrbfn extract`. The head is scikit-learn's logistic regression on
standardised features, with the penalty that is best on 10% of the training rows. Its logits and its weights
go into feature sets for `mlrbfn evaluate --head backbone`, which fits and measures the scores. A task has at
most 5,000 training rows and 1,000 rows of any other set (each n-th row). Continues where it was stopped.
"""
import argparse
import csv
import json
import pathlib
import shutil
import subprocess

import numpy as np
from sklearn.linear_model import LogisticRegression

FAR = ["texture", "scenes", "streetchars"]
METHODS = """msp mls energy gen klm temperature odin knn cop corp mds mds++ mds++k rmds rmds++ residual vim react vra dice ash-b ash-p ash-s
scale gradnorm she-ip she-e she-cos nnguide relation fdbd nci neco core""".split()


def read(folder):
    x, y = np.load(folder / "features.npy"), np.load(folder / "labels.npy")
    return x, y


def thin(x, most):
    return x[:: max(1, -(-len(x) // most))]


def split_classes(x, y, most, test):
    """Per class, in order: the first rows for training, at most `most` in all, and a fifth for testing if test."""
    train, held = [], []
    classes = np.unique(y)
    for c in classes:
        rows = np.flatnonzero(y == c)
        cut = len(rows) * 4 // 5 if test else len(rows)
        train.append(rows[:cut][: most // len(classes)])
        held.append(rows[cut:])
    train, held = np.sort(np.concatenate(train)), np.concatenate(held)
    return x[train], np.searchsorted(classes, y[train]), x[held], np.searchsorted(classes, y[held])


class Tasks:
    def __init__(self, root, superclasses):
        self.root, self.rows = pathlib.Path(root), list(csv.DictReader(open(superclasses)))
        self.make = {}
        for m in ("vit-tiny-p16", "efficientnet-lite0", "densenet100-cifar10", "resnet56-cifar10"):
            self.add(f"{m}/cifar10", lambda m=m: self.plain(m, "cifar10-train", "cifar10-test", ["cifar100", "tin"], FAR))
        for m in ("vit-tiny-p16", "efficientnet-lite0"):
            self.add(f"{m}/imagenette", lambda m=m: self.plain(m, "imagenette-train", "imagenette-val", ["imagewoof"], FAR))
        for m in ("efficientnet-lite0", "densenet100-cifar100"):
            self.add(f"{m}/cifar100", lambda m=m: self.hundred(m))
        for m in ("vit-tiny-p16", "efficientnet-lite0"):
            for s in dict.fromkeys(r["superclass"] for r in self.rows):
                self.add(f"{m}/{s}", lambda m=m, s=s: self.fine(m, s))

    def add(self, name, make):
        self.make[name] = make

    def get(self, model, name):
        return read(self.root / model / name)

    def others(self, model, near, far):
        return {("near", s): thin(self.get(model, s)[0], 1000) for s in near} | {("far", s): thin(self.get(model, s)[0], 1000) for s in far}

    def plain(self, model, train, test, near, far):
        x, y, _, _ = split_classes(*self.get(model, train), 5000, False)
        tx, ty = self.get(model, test)
        return x, y, thin(tx, 1000), thin(ty, 1000), self.others(model, near, far)

    def hundred(self, model):
        x, y, tx, ty = split_classes(*self.get(model, "cifar100-train"), 5000, True)
        return x, y, thin(tx, 1000), thin(ty, 1000), self.others(model, ["cifar10-test", "tin"], FAR)

    def fine(self, model, superclass):
        """Four classes are known; the last one by name is near-OOD."""
        x, y = self.get(model, "cifar100-train")
        classes = json.loads((self.root / model / "cifar100-train" / "features.json").read_text())["classes"]
        members = sorted(classes.index(r["class"]) for r in self.rows if r["superclass"] == superclass)
        known = np.isin(y, members[:4])
        tr, ty, held, heldy = split_classes(x[known], y[known], 5000, True)
        return tr, ty, held, heldy, {("near", "fifth"): x[y == members[4]]} | self.others(model, [], FAR)


def head(x, y, vx, vy):
    mean, deviation = x.mean(0), x.std(0)
    deviation[deviation < 1e-6 * deviation.max()] = 1
    best = None
    for c in np.array([1e-2, 1e-1, 1, 10]) / 1000:
        lr = LogisticRegression(C=c, max_iter=300, tol=1e-3).fit((x - mean) / deviation, y)
        loss = -lr.predict_log_proba((vx - mean) / deviation)[np.arange(len(vy)), vy].mean()
        if best is None or loss < best[0]:
            best = loss, c, lr
    loss, c, lr = best
    weights = lr.coef_ / deviation
    bias = lr.intercept_ - weights @ mean
    print(f"  penalty C {c:g}, validation loss {loss:.3f}, accuracy {(lr.predict((vx - mean) / deviation) == vy).mean():.3f}", flush=True)
    return np.ascontiguousarray(weights, np.float32), bias.astype(np.float32)


def run(name, task, program, out):
    x, y, tx, ty, others = task
    rng = np.random.default_rng(0)
    val = np.zeros(len(x), bool)
    for c in np.unique(y):
        rows = np.flatnonzero(y == c)
        val[rng.choice(rows, max(1, len(rows) // 10), replace=False)] = True
    weights, bias = head(x[~val], y[~val], x[val], y[val])
    work = out / (name.replace("/", "_") + ".sets")
    shutil.rmtree(work, ignore_errors=True)

    def write(folder, x, y=None):
        folder = work / folder
        folder.mkdir(parents=True)
        np.save(folder / "features.npy", np.ascontiguousarray(x, np.float32))
        np.save(folder / "labels.npy", (np.full(len(x), -1) if y is None else y).astype(np.int64))
        np.save(folder / "logits.npy", np.ascontiguousarray(x @ weights.T + bias, np.float32))
        np.save(folder / "fc_weight.npy", weights)
        np.save(folder / "fc_bias.npy", bias)
        return str(folder)

    args = ["--train", write("train", x[~val], y[~val]), "--val", write("val", x[val], y[val]), "--id", write("id", tx, ty)]
    for (group, s), rows in others.items():
        args += [f"--{group}", f"{s}={write(s, rows)}"]
    where = out / name.replace("/", "_")
    subprocess.run([program, "evaluate", *args, "--methods", ",".join(METHODS), "--head", "backbone", "--seeds", "0", "--bootstrap", "0",
                    "--out", str(where), "--quiet"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(work)


def table(out, names):
    """Prints near / far, in per cent, of each method and each group of tasks."""
    groups = {}
    for name in names:
        file = out / name.replace("/", "_") / "results.csv"
        if not file.exists():
            continue
        model, task = name.split("/")
        group = name if task in ("cifar10", "cifar100", "imagenette") else f"{model}/fine"
        for r in csv.DictReader(open(file)):
            if r["dataset"] == "mean" and r["seed"] == "0":
                groups.setdefault(group, {}).setdefault(r["method"], {}).setdefault(r["group"], []).append(100 * float(r["auroc"]))
    for group, methods in groups.items():
        print(f"\n{group} ({len(next(iter(methods.values()))['near'])} tasks)" if group.endswith("fine") else f"\n{group}")
        for m in sorted(methods, key=lambda m: -np.mean(methods[m]["near"])):
            print(f"  {m:12s} {np.mean(methods[m]['near']):5.1f} / {np.mean(methods[m]['far']):5.1f}")
    print("\nmean over the groups above, and the number of groups in which the score is among the four best near")
    methods = [m for m in METHODS if all(m in g for g in groups.values())]
    score = {m: (np.mean([np.mean(g[m]["near"]) for g in groups.values()]), np.mean([np.mean(g[m]["far"]) for g in groups.values()])) for m in methods}
    best = {m: sum(m in sorted(g, key=lambda k: -np.mean(g[k]["near"]))[:4] for g in groups.values()) for m in methods}
    for m in sorted(score, key=lambda m: -score[m][0]):
        print(f"  {m:12s} {score[m][0]:5.1f} / {score[m][1]:5.1f}  {best[m]}")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for flag in ("features", "superclasses", "program", "out"):
        p.add_argument("--" + flag, required=True)
    p.add_argument("--tasks", nargs="*")
    p.add_argument("--table", action="store_true", help="print what there is and run nothing")
    a = p.parse_args()
    out = pathlib.Path(a.out)
    tasks = Tasks(a.features, a.superclasses)
    names = a.tasks or list(tasks.make)
    for name in names if not a.table else []:
        if not (out / name.replace("/", "_") / "results.csv").exists():
            print(name, flush=True)
            try:
                task = tasks.make[name]()
            except FileNotFoundError as e:
                print("  left out:", e)
                continue
            run(name, task, a.program, out)
    table(out, names)


if __name__ == "__main__":
    main()
