"""Times one step of scripts/bench growth: peer.py numpy|faiss|scikit-learn WHAT FOLDER.

FOLDER has the sets train and id. Prints the processor seconds of all threads, and
the bytes by which the memory grew at its peak, without the features.
"""
import sys
import time

import numpy as np

library, what, folder = sys.argv[1:]
bank, labels = np.load(folder + "/train/features.npy"), np.load(folder + "/train/labels.npy")
queries, k = np.load(folder + "/id/features.npy"), 50
classes = labels.max() + 1


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def numpy_knn():
    u, q = unit(bank), unit(queries)
    for i in range(0, len(q), 500):
        cosines = q[i : i + 500] @ u.T
        cosines.partition(len(u) - k, axis=1)


def faiss_knn():
    index = faiss.IndexFlatIP(bank.shape[1])
    index.add(unit(bank))
    index.search(unit(queries), k)


def sklearn_knn():
    NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit(bank)).kneighbors(unit(queries))


def centred():
    x = bank.astype(np.float64)
    means = np.stack([x[labels == c].mean(axis=0) for c in range(classes)])
    x -= means[labels]
    return x, means


def nearest(whiten, means):
    z, m = queries @ whiten, means @ whiten
    return -((z * z).sum(axis=1, keepdims=True) - 2 * z @ m.T + (m * m).sum(axis=1)).min(axis=1)


def numpy_mds():
    x, means = centred()
    nearest(np.linalg.inv(np.linalg.cholesky(x.T @ x / len(x))).T, means)


def sklearn_mds():
    x, means = centred()
    nearest(np.linalg.cholesky(EmpiricalCovariance(assume_centered=True).fit(x).get_precision()), means)


def numpy_residual():
    x = bank.astype(np.float64)
    x -= x.mean(axis=0)
    vectors = np.linalg.eigh(x.T @ x)[1]
    np.linalg.norm((queries - bank.mean(axis=0)) @ vectors[:, : len(vectors) // 2], axis=1)


def sklearn_residual():
    p = PCA(svd_solver="covariance_eigh").fit(bank)
    np.linalg.norm((queries - p.mean_) @ p.components_[len(p.components_) // 2 :].T, axis=1)


def sklearn_logistic():
    LogisticRegression(C=1, max_iter=20).fit(unit(bank) * bank.shape[1] ** 0.5, labels)


if library == "faiss":
    import faiss
if library == "scikit-learn":
    import warnings

    from sklearn.covariance import EmpiricalCovariance
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import NearestNeighbors

    warnings.simplefilter("ignore")  # that 20 iterations do not converge


def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


do = globals()[{"scikit-learn": "sklearn"}.get(library, library) + "_" + what]
with open("/proc/self/clear_refs", "w") as f:
    f.write("5")  # the peak begins anew
before, cpu = status("VmRSS"), time.process_time()
do()
print(time.process_time() - cpu, status("VmHWM") - before)
