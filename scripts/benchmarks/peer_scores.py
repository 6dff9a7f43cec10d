"""Times one score of scripts/bench scores in numpy: peer.py WHAT FEATURES ROWS CLASSES K.

FEATURES is a .npy file of float32 rows [ROWS + queries, D]; row i is of class
i mod CLASSES. Prints the seconds that passed, and those of all threads.
"""
import sys
import time

import numpy as np

what, path, rows, classes, k = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
features = np.load(path)
bank, queries = features[:rows], features[rows:]
labels = np.arange(rows) % classes


def knn():
    unit = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    q = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    scores = []
    for i in range(0, len(q), 500):
        cosines = q[i : i + 500] @ unit.T
        cosines.partition(rows - k, axis=1)
        scores.append(2 * cosines[:, rows - k] - 2)
    return np.concatenate(scores)


def moments():
    x = bank.astype(np.float64)
    means = np.stack([x[labels == c].mean(axis=0) for c in range(classes)])
    mean = x.mean(axis=0)
    x -= means[labels]
    return mean, means, x.T @ x / rows


def fit():
    mean, means, sigma = moments()
    whiten = np.linalg.inv(np.linalg.cholesky(sigma))
    return mean, whiten, (means - mean) @ whiten.T


def mahalanobis(mean, whiten, means):
    z = (queries - mean) @ whiten.T
    squares = (z * z).sum(axis=1, keepdims=True) - 2 * z @ means.T + (means * means).sum(axis=1)
    return -squares.min(axis=1)


do = {
    "knn": lambda: knn,
    "mds fit": lambda: fit,
    "mds score": lambda: (lambda fitted=fit(): mahalanobis(*fitted)),
    "eigen": lambda: (lambda sigma=moments()[2]: np.linalg.eigh(sigma)),
}[what]()
wall, cpu = time.perf_counter(), time.process_time()
do()
print(time.perf_counter() - wall, time.process_time() - cpu)
