"""Times one step of scripts/bench growth or thousand: peer.py numpy|faiss|scikit-learn WHAT FOLDER [LIMIT QUERIES OTHERS].

FOLDER has the sets train and id. With LIMIT (bytes) memory beyond it is refused, without the
pages of files, and so many queries of id and of near are scored. Prints the processor seconds
of all threads, the seconds, and the bytes by which the memory grew at its peak, without the
features, which are read as they are needed.
"""
import resource
import sys
import threading
import time

import numpy as np

library, what, folder, *sizes = sys.argv[1:]
bank, labels = np.load(folder + "/train/features.npy", mmap_mode="r"), np.load(folder + "/train/labels.npy")
queries, k = np.load(folder + "/id/features.npy"), 50
if sizes:
    limit, n, others = map(int, sizes)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    queries = np.concatenate([queries[:n], np.load(folder + "/near/features.npy", mmap_mode="r")[:others]])
classes = labels.max() + 1
parts = [slice(i, i + 50_000) for i in range(0, len(bank), 50_000)]


def unit(x):
    u = np.empty(x.shape, np.float32)
    for i in range(0, len(x), 50_000):
        u[i : i + 50_000] = x[i : i + 50_000] / np.linalg.norm(x[i : i + 50_000], axis=1, keepdims=True)
    return u


def numpy_knn():
    u, q = unit(bank), unit(queries)
    step = max(1, min(500, 2**28 // len(u)))  # a gigabyte of cosines
    for i in range(0, len(q), step):
        cosines = q[i : i + step] @ u.T
        cosines.partition(len(u) - k, axis=1)


def faiss_knn():
    index = faiss.IndexFlatIP(bank.shape[1])
    for part in parts:
        index.add(unit(bank[part]))
    index.search(unit(queries), k)


def sklearn_knn():
    NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit(bank)).kneighbors(unit(queries))


def class_means():
    return np.stack([bank[labels == c].mean(axis=0, dtype=np.float64) for c in range(classes)])


def nearest(whiten, means):
    z, m = queries @ whiten, means @ whiten
    return -((z * z).sum(axis=1, keepdims=True) - 2 * z @ m.T + (m * m).sum(axis=1)).min(axis=1)


def numpy_mds():
    means, products = class_means(), 0
    for part in parts:
        x = bank[part] - means[labels[part]]
        products += x.T @ x
    nearest(np.linalg.inv(np.linalg.cholesky(products / len(bank))).T, means)


def sklearn_mds():
    means, x = class_means(), np.empty(bank.shape, np.float32)
    for part in parts:
        x[part] = bank[part] - means[labels[part]]
    covariance = EmpiricalCovariance(assume_centered=True).fit(x).covariance_.astype(np.float64)
    nearest(np.linalg.inv(np.linalg.cholesky(covariance)).T, means)


def numpy_residual():
    mean, products = bank.mean(axis=0, dtype=np.float64), 0
    for part in parts:
        x = bank[part] - mean
        products += x.T @ x
    vectors = np.linalg.eigh(products)[1]
    np.linalg.norm((queries - mean) @ vectors[:, : len(vectors) // 2], axis=1)


def sklearn_residual():
    p = PCA(svd_solver="covariance_eigh").fit(bank)
    np.linalg.norm((queries - p.mean_) @ p.components_[len(p.components_) // 2 :].T, axis=1)


def sklearn_logistic():
    x = unit(bank)
    x *= bank.shape[1] ** 0.5
    LogisticRegression(C=1, max_iter=20).fit(x, labels)


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
before, cpu, began = status("RssAnon"), time.process_time(), time.time()
peak, done = before, threading.Event()


def watch():
    global peak
    while not done.wait(0.02):
        peak = max(peak, status("RssAnon"))


watching = threading.Thread(target=watch)
watching.start()
try:
    do()
finally:
    done.set()
    watching.join()
print(time.process_time() - cpu, peak - before, time.time() - began)
