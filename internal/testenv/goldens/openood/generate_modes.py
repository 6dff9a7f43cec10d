"""Writes scores/mds++k.json, the scores of MDS++ with several centroids a class on the
features of this golden, and scores/mds++k_superclasses.json, where the ten classes are
taken for two of five kinds each.

    PYTHONPATH=.setup/python python3 internal/testenv/goldens/openood/generate_modes.py

The method is this project's (posthoc.FitModes); this is its formula, with inverses and
determinants where the program has eigenvectors and Cholesky's factor.
"""
import numpy as np

from golden import SETS, load, write

x = {}
for name in ("train", *SETS):
    f = load(f"{name}_features")
    x[name] = f / np.linalg.norm(f, axis=1, keepdims=True)


def squares(a, b):
    return ((a[:, None] - b[None]) ** 2).sum(2)


def k_means(rows, k):
    best = None
    for u in (0.25, 0.5, 0.75):
        centres = rows[[int(u * len(rows))]]
        while len(centres) < k:
            share = np.cumsum(squares(rows, centres).min(1))
            centres = np.vstack([centres, rows[np.searchsorted(share, u * share[-1])]])
        before = None
        for _ in range(50):
            distances = squares(rows, centres)
            of = distances.argmin(1)
            if best is None or distances.min(1).sum() < best[0]:
                best = distances.min(1).sum(), centres.copy()
            if before is not None and (of == before).all():
                break
            before = of
            for c in np.unique(of):
                centres[c] = rows[of == c].mean(0)
    return best[1]


def fit(rows, labels, k):
    """Means of groups, their labels, their shares and the covariance within."""
    means, owner, share, within = [], [], [], 0
    for c in np.unique(labels):
        own = rows[labels == c]
        of = squares(own, k_means(own, k)).argmin(1)
        for g in np.unique(of):
            means.append(own[of == g].mean(0))
            owner.append(c)
            share.append((of == g).mean())
            within = within + (own[of == g] - means[-1]).T @ (own[of == g] - means[-1])
    return np.array(means), np.array(owner), np.array(share), within / len(rows)


def shrunk(within, s):
    return within + s * np.trace(within) / len(within) * np.eye(len(within))


for name, labels in (("mds++k", load("train_labels").astype(int)), ("mds++k_superclasses", load("train_labels").astype(int) // 5)):
    held = np.zeros(len(labels), bool)
    for c in np.unique(labels):
        rows = np.flatnonzero(labels == c)
        held[rows[(np.arange(len(rows)) + 1) * 2654435769 % 2**32 < 2**32 // 5]] = True
    best = None
    for k in (1, 2, 3, 5):
        means, owner, share, within = fit(x["train"][~held], labels[~held], k)
        for s in (0.01, 0.03, 0.1, 0.3, 1, 3):
            sigma = shrunk(within, s)
            inverse, logs = np.linalg.inv(sigma), []
            for row, c in zip(x["train"][held], labels[held]):
                d = row - means[owner == c]
                logs.append(np.log((share[owner == c] * np.exp(-0.5 * np.einsum("gi,ij,gj->g", d, inverse, d))).sum()))
            likelihood = np.mean(logs) - 0.5 * np.linalg.slogdet(sigma)[1]
            print(f"{name}: k {k}, s {s}: {likelihood:.4f}")
            if best is None or likelihood > best[0]:
                best = likelihood, k, s
    _, k, s = best
    means, _, _, within = fit(x["train"], labels, k)
    inverse = np.linalg.inv(shrunk(within, s))
    scores = {}
    for set_name in SETS:
        d = x[set_name][:, None] - means[None]
        scores[set_name] = -np.einsum("ngi,ij,ngj->ng", d, inverse, d).min(1)
    write(name, scores, {"k": k, "shrinkage": s})
