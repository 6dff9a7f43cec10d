"""Writes neco.json, the scores of NECO on the features of this golden.

    PYTHONPATH=.setup/python python3 internal/testenv/goldens/openood/generate_neco.py FOLDER

FOLDER is openood.zip, unpacked. Needs NumPy 2.2 or newer. OpenOOD has no NECO. This
follows evaluate_neco of github.com/mueller-mp/maha-norm (NINCO/detection_methods.py,
commit ee66a99) in float64; where scikit-learn is installed, its StandardScaler and
PCA, which that function calls, are asked too.
"""
import json
import sys
from pathlib import Path

import numpy as np

SHARE = 0.9
SETS = ("id", "near", "far")
folder = Path(sys.argv[1])


def load(name):
    return np.load(folder / f"{name}.npy").astype(np.float64)


features = {name: load(f"{name}_features") for name in ("train", *SETS)}
top = {name: load(f"{name}_logits").max(axis=1) for name in SETS}


def scores(standardised, projected):
    return {
        name: np.linalg.norm(projected[name], axis=1) / np.linalg.norm(standardised[name], axis=1) * top[name]
        for name in SETS
    }


# The axes come from singular values, not from a covariance as in the program.
mean, deviation = features["train"].mean(axis=0), features["train"].std(axis=0)
assert deviation.min() > 1e-6, "scikit-learn divides by 1 instead"
standardised = {name: (x - mean) / deviation for name, x in features.items()}
_, values, axes = np.linalg.svd(standardised["train"], full_matrices=False)
explained = np.cumsum(values**2) / np.sum(values**2)
dim = int(np.argmax(explained >= SHARE)) + 1
clean = scores(standardised, {name: standardised[name] @ axes[:dim].T for name in SETS})
print(f"{dim} axes have {explained[dim - 1]:.6f} of the variance, one fewer {explained[dim - 2]:.6f}")


def evaluate(inside, outside):
    """The metrics of OpenOOD: OOD is positive in the first FPR, ID in the second."""
    assert len(np.unique(np.concatenate([inside, outside]))) == len(inside) + len(outside), "ties"

    def precision_recall_area(positive, negative):
        is_positive = np.concatenate([np.ones(len(positive)), np.zeros(len(negative))])
        is_positive = is_positive[np.argsort(-np.concatenate([positive, negative]), kind="stable")]
        found = np.cumsum(is_positive)
        precision = np.r_[1, found / np.arange(1, len(found) + 1)]
        recall = np.r_[0, found / len(positive)]
        return float(np.sum(np.diff(recall) * (precision[1:] + precision[:-1]) / 2))

    return {
        "AUROC": float((inside[:, None] > outside[None]).mean()),
        "AUPR_IN": precision_recall_area(inside, outside),
        "AUPR_OUT": precision_recall_area(-outside, -inside),
        "FPR95_ood_positive": float((inside <= np.sort(outside)[int(np.ceil(0.95 * len(outside) - 1e-9)) - 1]).mean()),
        "FPR95_id_positive": float((outside >= np.sort(inside)[::-1][int(np.ceil(0.95 * len(inside) - 1e-9)) - 1]).mean()),
    }


try:
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler
except ImportError:
    print("scikit-learn is not installed, so that it was not asked")
else:
    scaler = StandardScaler().fit(features["train"])
    peer = {name: scaler.transform(x) for name, x in features.items()}
    pca = PCA().fit(peer["train"])
    count = np.where(np.cumsum(pca.explained_variance_ratio_) >= SHARE)[0][0] + 1
    theirs = scores(peer, {name: pca.transform(peer[name])[:, :count] for name in SETS})
    print("scikit-learn is at most", max(np.abs(theirs[name] - clean[name]).max() for name in SETS), "off")

scale = max(np.abs(clean[name]).max() for name in SETS)
out = {
    "method": "neco",
    "hyper_parameters": {"share": SHARE, "axes": dim},
    "fit_on": "train",
    "clean_float64": {name: clean[name].tolist() for name in SETS}
    | {"metrics": {name: evaluate(clean["id"], clean[name]) for name in SETS[1:]}},
    "tolerance": {"float64_abs": 1e-10 * scale},
}
for name, figures in out["clean_float64"]["metrics"].items():
    print(name, figures)
(folder / "neco.json").write_text(json.dumps(out, allow_nan=False))
