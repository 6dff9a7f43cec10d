"""Two variants of the density (the distance to the nearest class mean, whitened): is either worth it?

    python3 density.py radial|modes --features FEATURES --superclasses FILE.csv [--tasks NAME...]

radial: x/|x|^b for several b, where the program has b = 1; which b the likelihood of validation rows chooses (in the
space of x, so with the Jacobian, which is 0 at b = 1), and which b class hold-out chooses. modes: k centroids a class
by k-means, and which k the likelihood of validation rows chooses. Tasks are those of singles.py, and MODEL/superclasses
(the 20 superclasses of CIFAR-100 as classes, each of five kinds of things).
"""
import argparse
import csv
import json

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from sklearn.cluster import KMeans

from metrics import auroc
from singles import FAR, Tasks, thin

SHRINKAGE = [0.01, 0.03, 0.1, 0.3, 1, 3]
EXPONENTS = [0, 0.5, 1, 1.5, 2]
MODES = [1, 2, 3, 5]


def superclasses(tasks, model):
    x, y = tasks.get(model, "cifar100-train")
    classes = json.loads((tasks.root / model / "cifar100-train" / "features.json").read_text())["classes"]
    names = sorted({r["superclass"] for r in tasks.rows})
    of = {r["class"]: names.index(r["superclass"]) for r in tasks.rows}
    y, test = np.array([of[c] for c in classes])[y], np.arange(len(y)) % 5 == 4  # rows of all 100 classes in both parts
    return thin(x[~test], 5000), thin(y[~test], 5000), thin(x[test], 1000), thin(y[test], 1000), tasks.others(model, ["cifar10-test", "tin"], FAR)


class Density:
    """Gaussians at the means of groups of rows, with one shrunk covariance."""

    def __init__(self, z, group, vz=None, valid=None, shrinkage=None):
        self.means = np.array([z[group == g].mean(0) for g in range(group.max() + 1)])
        centred = z - self.means[group]
        cov = centred.T @ centred / len(z)
        scale = np.trace(cov) / len(cov)
        if shrinkage is None:  # by the likelihood of the validation rows, each at the nearest mean of its class
            values, vectors = np.linalg.eigh(cov)
            values = np.maximum(values, 0)
            nearest = [means[((v - means) ** 2).sum(1).argmin()] for v, means in ((v, self.means[m]) for v, m in zip(vz, valid))]
            spread = ((vz - np.array(nearest)) @ vectors).astype(np.float64) ** 2
            fit = lambda s: -0.5 * np.log(values + s * scale).sum() - 0.5 * (spread.mean(0) / (values + s * scale)).sum()
            shrinkage = max(SHRINKAGE, key=fit)
        self.shrinkage = shrinkage
        lower = np.linalg.cholesky(cov + shrinkage * scale * np.eye(len(cov), dtype=cov.dtype))
        self.whiten = solve_triangular(lower, np.eye(len(lower), dtype=cov.dtype), lower=True).T
        self.logdet = np.log(np.diag(lower).astype(np.float64)).sum()

    def distances(self, z):
        a, b = z @ self.whiten, self.means @ self.whiten
        return np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T, 0)

    def score(self, z):
        return -self.distances(z).min(1)


def evaluate(score, tx, others):
    inside, groups = score(tx), {"near": [], "far": []}
    for (group, _), rows in others.items():
        groups[group].append(100 * auroc(inside, score(rows)))
    return np.mean(groups["near"]), np.mean(groups["far"])


def split(y):
    rng, val = np.random.default_rng(0), np.zeros(len(y), bool)
    for c in np.unique(y):
        rows = np.flatnonzero(y == c)
        val[rng.choice(rows, len(rows) // 5, replace=False)] = True
    return val


def radial(x, y, tx, _, others):
    val, classes = split(y), y.max() + 1
    lengths = np.linalg.norm(x, axis=1)
    unit = np.median(lengths)  # only a unit, which scales the numbers
    rows = []
    for b in EXPONENTS:
        change = lambda x: (x / unit / (np.linalg.norm(x, axis=1, keepdims=True) / unit) ** b).astype(np.float32)
        z = change(x)
        d = Density(z[~val], y[~val], z[val], list(y[val][:, None]))
        own = d.distances(z[val])[np.arange(val.sum()), y[val]]
        jacobian = np.log(abs(1 - b)) - b * x.shape[1] * np.log(lengths[val] / unit).mean() if b != 1 else np.nan
        likelihood = -0.5 * own.mean() - d.logdet + jacobian
        held = []
        folds = np.array_split(np.random.default_rng(1).permutation(classes), min(5, classes))
        for fold in folds:
            out = np.isin(y, fold)
            labels = np.unique(y[~out], return_inverse=True)[1]
            part = np.zeros(len(y), int)
            part[~out] = labels
            some = Density(z[~out & ~val], part[~out & ~val], shrinkage=d.shrinkage)
            held.append(100 * auroc(some.score(z[~out & val]), some.score(z[out])))
        near, far = evaluate(lambda x: d.score(change(x)), tx, others)
        rows.append((b, d.shrinkage, likelihood, np.mean(held), near, far))
        print(f"  b {b:3.1f}  shrinkage {d.shrinkage:5.2f}  likelihood {likelihood:10.1f}  held-out classes {np.mean(held):5.1f}  near / far {near:5.1f} / {far:5.1f}", flush=True)
    return rows


def modes(x, y, tx, _, others):
    val, classes = split(y), y.max() + 1
    change = lambda x: (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    z = change(x)
    _, _, axes = np.linalg.svd(z[~val][:: max(1, len(z) // 2000)] - z[~val].mean(0), full_matrices=False)
    rows = []
    for k in MODES:
        group, of = np.zeros(len(y), int), []
        for c in range(classes):
            r = np.flatnonzero((y == c) & ~val)
            group[r] = k * c + (KMeans(k, n_init=2, random_state=0).fit_predict(z[r] @ axes[:50].T) if k > 1 else 0)
        members = [np.arange(k * c, k * c + k) for c in range(classes)]
        weight = np.bincount(group[~val], minlength=k * classes) / np.repeat(np.bincount(y[~val]), k)
        d = Density(z[~val], group[~val], z[val], [members[c] for c in y[val]])
        own = np.array([logsumexp(np.log(weight[m]) - 0.5 * row[m]) for row, m in zip(d.distances(z[val]).astype(np.float64), (members[c] for c in y[val]))])
        near, far = evaluate(lambda x: d.score(change(x)), tx, others)
        rows.append((k, d.shrinkage, own.mean() - d.logdet, None, near, far))
        print(f"  k {k}  shrinkage {d.shrinkage:5.2f}  likelihood {own.mean() - d.logdet:10.1f}  near / far {near:5.1f} / {far:5.1f}", flush=True)
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("what", choices=["radial", "modes"])
    p.add_argument("--features", required=True)
    p.add_argument("--superclasses", required=True)
    p.add_argument("--tasks", nargs="*")
    a = p.parse_args()
    tasks = Tasks(a.features, a.superclasses)
    for m in ("vit-tiny-p16", "efficientnet-lite0", "densenet100-cifar100"):
        tasks.add(f"{m}/superclasses", lambda m=m: superclasses(tasks, m))
    gains = {"likelihood": [], "held-out classes": []}
    for name in a.tasks or list(tasks.make):
        try:
            task = tasks.make[name]()
        except FileNotFoundError:
            continue
        print(name, flush=True)
        rows = radial(*task) if a.what == "radial" else modes(*task)
        base = next(r for r in rows if r[0] == 1)
        for rule, column in (("likelihood", 2), ("held-out classes", 3)):
            some = [r for r in rows if r[column] is not None and r[column] == r[column]]
            if some:
                best = max(some, key=lambda r: r[column])
                gains[rule].append((best[0], best[4] - base[4], best[5] - base[5]))
    for rule, g in gains.items():
        if g:
            chosen, near, far = zip(*g)
            print(f"chosen by {rule}: {list(chosen)}; near {np.mean(near):+.2f} (worst {min(near):+.2f}), far {np.mean(far):+.2f} (worst {min(far):+.2f}), against 1")


if __name__ == "__main__":
    main()
