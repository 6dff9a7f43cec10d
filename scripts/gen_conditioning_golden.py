"""Golden numbers of the package conditioning, by numpy in float64.

    python3 scripts/gen_conditioning_golden.py > conditioning/testdata/golden.json

Rows of three classes with correlated features, and the squared distances
between the first rows after each conditioning: a whitening is defined up to a
rotation, which distances do not see.
"""
import json

import numpy as np

rng = np.random.default_rng(7)
n, d, shown = 60, 8, 12
labels = np.arange(n) % 3
mix = rng.normal(size=(d, d))
x = (rng.normal(size=(n, d)) @ mix + 3 * rng.normal(size=(3, d))[labels] + 5).astype(np.float32)


def distances(z):
    z = z[:shown]
    return ((z[:, None] - z[None]) ** 2).sum(-1)


def whiten(x, s):
    means = np.stack([x[labels == c].mean(0) for c in range(3)])
    centred = x - means[labels]
    values, vectors = np.linalg.eigh(centred.T @ centred / n)
    return (x - x.mean(0)) @ (vectors / np.sqrt(values + s * values.mean()))


def pca(x, e):
    _, _, axes = np.linalg.svd(x - x.mean(0), full_matrices=False)
    return (x - x.mean(0)) @ axes[:e].T


wide = x.astype(np.float64)
unit = wide / np.linalg.norm(wide, axis=1, keepdims=True)
cases = []
for l2, rows in ((False, wide), (True, unit)):
    for options, z in (
        ({"kind": "none"}, rows),
        ({"kind": "standardise"}, (rows - rows.mean(0)) / rows.std(0)),
        ({"kind": "pca"}, pca(rows, d)),
        ({"kind": "pca", "dims": 3}, pca(rows, 3)),
        ({"kind": "whiten", "shrinkage": 0.1}, whiten(rows, 0.1)),
        ({"kind": "whiten", "shrinkage": 1}, whiten(rows, 1)),
    ):
        cases.append({"options": options | {"l2": l2}, "distances": distances(z).round(12).tolist()})
print(json.dumps({"d": d, "x": x.ravel().tolist(), "labels": labels.tolist(), "shown": shown, "cases": cases}))
