"""Writes metrics/testdata/metrics.json: metrics by scikit-learn.

    python3 metrics/testdata/generate_metrics.py metrics/testdata/metrics.json

Needs numpy and scikit-learn. Infinite scores are replaced by finite ones of the
same order before scikit-learn sees them, since it refuses them; only the order
counts. Infinities are strings in the file.
"""
import json
import sys

import numpy as np
import sklearn
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve


def fpr_at(positive, score, tpr):
    false, true, _ = roc_curve(positive, score, drop_intermediate=False)
    return false[np.argmax(true >= tpr)]


def aupr(positive, score):
    precision, recall, _ = precision_recall_curve(positive, score)
    return auc(recall, precision)


def figures(ident, ood):
    conf = np.concatenate([ident, ood])
    conf = np.unique(conf, return_inverse=True)[1].astype(float)  # ranks: finite, same order
    is_ood = np.r_[np.zeros(len(ident)), np.ones(len(ood))]
    return {
        "auroc": roc_auc_score(is_ood, -conf),
        "aupr_out": aupr(is_ood, -conf),
        "aupr_in": aupr(1 - is_ood, conf),
        "fpr95": fpr_at(is_ood, -conf, 0.95),
        "fpr95_id": fpr_at(1 - is_ood, conf, 0.95),
        "fpr80": fpr_at(is_ood, -conf, 0.8),
    }


def main(path):
    rng = np.random.default_rng(0)
    inf = np.inf
    cases = {
        "apart": ([3, 4, 5.5], [1, 2]),
        "inverted": ([1, 2], [3, 4, 5.5]),
        "all equal": ([1, 1, 1], [1, 1]),
        "one each": ([1], [0]),
        "ties across": ([0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 2]),
        "infinite scores": ([-inf, 0, 1, inf, inf], [-inf, -inf, -1, 0, inf]),
        "exactly 95%": (np.arange(20) + 0.5, np.arange(20)),
        "normal": (rng.normal(1, 1, 50).round(3), rng.normal(0, 1, 31).round(3)),
        "coarse": (rng.normal(1, 1, 50).round(), rng.normal(0, 1, 31).round()),
    }
    out = [
        {"name": name, "id": list(ident), "ood": list(ood), **figures(np.array(ident, float), np.array(ood, float))}
        for name, (ident, ood) in cases.items()
    ]
    clean = lambda v: str(v) if isinstance(v, float) and np.isinf(v) else v
    lines = [
        json.dumps({k: [clean(float(x)) for x in v] if isinstance(v, list) else v for k, v in case.items()})
        for case in out
    ]
    with open(path, "w") as f:
        f.write('{"made_by": "metrics/testdata/generate_metrics.py, scikit-learn %s", "cases": [\n' % sklearn.__version__)
        f.write(",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
