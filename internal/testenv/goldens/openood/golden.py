"""What the generate_NAME.py beside this file share: the arrays of openood.zip, and
the file of scores that tests read. Needs NumPy 2.2 or newer.
"""
import io
import json
import zipfile
from pathlib import Path

import numpy as np

SETS = ("id", "near", "far")
HERE = Path(__file__).resolve().parent


def load(name):
    """An array of openood.zip in float64, such as train_features or near_logits."""
    with zipfile.ZipFile(HERE.parent / "openood.zip") as archive:
        return np.load(io.BytesIO(archive.read(f"{name}.npy"))).astype(np.float64)


def write(name, scores, hyper_parameters, fit_on="train", tolerance=None):
    """Writes scores/NAME.json.

    scores has an array of float64 scores for each of SETS, higher for images that are
    more in-distribution. tolerance is the largest difference that tests accept: 1e-10 of
    the largest score, where it is not given.
    """
    if tolerance is None:
        tolerance = 1e-10 * max(np.abs(scores[s]).max() for s in SETS)
    metrics = {s: evaluate(scores["id"], scores[s]) for s in SETS[1:]}
    for s, values in metrics.items():
        print(name, s, values)
    save(name, {
        "method": name,
        "hyper_parameters": hyper_parameters,
        "fit_on": fit_on,
        "clean_float64": {s: scores[s].tolist() for s in SETS} | {"metrics": metrics},
        "tolerance": {"float64_abs": tolerance},
    })


def save(name, method):
    (HERE / "scores" / f"{name}.json").write_text(json.dumps(method, allow_nan=False) + "\n")


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
