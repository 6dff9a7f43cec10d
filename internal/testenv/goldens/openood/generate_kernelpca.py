"""Writes scores/cop.json and scores/corp_*.json, the scores of kernel PCA on the features
of this golden.

    PYTHONPATH=.setup/python python3 internal/testenv/goldens/openood/generate_kernelpca.py

This follows CoP_CoRP_c10.py of github.com/fanghenshaometeor/ood-kernel-pca (commit
5f24c69) with the settings of its run_detection.sh for CIFAR-10 and standard training,
in float64 and without the 1e-10 that is added to lengths: minus the length of what a row,
of length 1 and for CoRP by random features of seed 0, has outside of the axes. The axes come from singular
values of the rows, not from a covariance as there and in the program.
"""
import numpy as np

from golden import SETS, load, write

directions = {}
for name in ("train", *SETS):
    f = load(f"{name}_features")
    directions[name] = f / np.linalg.norm(f, axis=1, keepdims=True)


def reconstruction(mapped, share):
    mean = mapped["train"].mean(axis=0)
    _, values, axes = np.linalg.svd(mapped["train"] - mean, full_matrices=False)
    explained = np.cumsum(values**2) / np.sum(values**2)
    q = int(np.argmax(explained >= share)) + 1
    print(f"{q} axes have {explained[q - 1]:.6f} of the variance, one fewer {explained[q - 2]:.6f}")
    scores = {}
    for name in SETS:
        centred = mapped[name] - mean
        scores[name] = -np.linalg.norm(centred - centred @ axes[:q].T @ axes[:q], axis=1)
    return scores, q


scores, q = reconstruction(directions, 0.85)
write("cop", scores, {"share": 0.85, "axes": q})

# All rows with fewer random features, and few rows with as many as there.
for name, rows, gamma, m, share in (("corp_M256", 2000, 2, 256, 0.8), ("corp_n200", 200, 2, 2048, 0.8)):
    np.random.seed(0)  # setup_seed(args.seed)
    w = np.sqrt(2 * gamma) * np.random.normal(size=(m, directions["train"].shape[1]))
    u = 2 * np.pi * np.random.rand(m)
    some = directions | {"train": directions["train"][:rows]}
    scores, q = reconstruction({s: np.sqrt(2 / m) * np.cos(x @ w.T + u) for s, x in some.items()}, share)
    write(name, scores, {"gamma": gamma, "m": m, "share": share, "axes": q, "rows": rows})
