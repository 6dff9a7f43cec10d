"""Golden numbers of conditioning, by numpy in float64.

    python3 head/testdata/generate_golden.py > head/testdata/golden.json

Rows of three classes with correlated features, and the squared distances
between the first rows after each conditioning: a whitening is defined up to a
rotation, which distances do not see. Then the shrinkage that validation rows
choose, where the training rows are few and many.
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


def choice(n, d, l2):
    labels, held = np.arange(n) % 3, np.arange(30) % 3
    mix, centres = rng.normal(size=(d, d)), 3 * rng.normal(size=(3, d)) + 5
    draw = lambda y: (rng.normal(size=(len(y), d)) @ mix + centres[y]).astype(np.float32)
    x, xv = draw(labels), draw(held)
    case = {"d": d, "l2": l2, "x": x.ravel().tolist(), "labels": labels.tolist(), "xv": xv.ravel().tolist(), "yv": held.tolist()}
    x, xv = x.astype(np.float64), xv.astype(np.float64)
    if l2:
        x, xv = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, xv))
    means = np.stack([x[labels == c].mean(0) for c in range(3)])
    centred = x - means[labels]
    values, vectors = np.linalg.eigh(centred.T @ centred / n)
    values = np.maximum(values, 0)
    spread = (((xv - means[held]) @ vectors) ** 2).mean(0)
    likelihood = {}
    for s in (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10):
        floor = values + s * values.mean()
        likelihood[s] = -0.5 * (np.log(floor) + spread / floor).sum()
    return case | {"shrinkage": max(likelihood, key=likelihood.get)}


choices = [choice(*c) for c in ((9, 8, True), (12, 8, False), (24, 5, True), (60, 4, False), (600, 2, False))]
print(json.dumps({"d": d, "x": x.ravel().tolist(), "labels": labels.tolist(), "shown": shown, "cases": cases, "choices": choices}))
