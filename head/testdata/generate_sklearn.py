"""Writes sklearn.json: linear heads as scikit-learn fits them.

Needs scikit-learn==1.8.0 and numpy==2.4.6:

    python3 generate_sklearn.py > sklearn.json

Each task has features that differ in scale and offset, one that never varies, and
classes of unequal size. The features are rounded to float32, which the program
reads. "weights" and "bias" are those of features as they are: the standardisation
is folded in.
"""
import json
import warnings

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

warnings.simplefilter("ignore")  # newton-cg stops at what float64 can tell


def task(seed, n, d, classes, strengths):
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, n, p=np.arange(1, classes + 1) / sum(range(1, classes + 1)))
    means = rng.normal(size=(classes, d))
    x = means[y] + 1.5 * rng.normal(size=(n, d))
    x = x * 10 ** rng.uniform(-2, 2, d) + rng.normal(size=d) * 5
    x[:, d // 2] = 3.25
    x = np.round(x, 4).astype(np.float32).astype(np.float64)
    fit, held = slice(0, n * 3 // 4), slice(n * 3 // 4, n)
    scaler = StandardScaler().fit(x[fit])
    heads = []
    for strength in strengths:
        head = LogisticRegression(C=strength, solver="newton-cg", tol=1e-12, max_iter=100000).fit(scaler.transform(x[fit]), y[fit])
        weights = head.coef_ / scaler.scale_
        bias = head.intercept_ - weights @ scaler.mean_
        loss = log_loss(y[held], head.predict_proba(scaler.transform(x[held])))
        heads.append({"c": strength, "weights": weights.tolist(), "bias": bias.tolist(), "held_loss": loss})
    return {"classes": classes, "fitted": n * 3 // 4, "features": [[float(np.float32(v)) for v in row] for row in x], "labels": y.tolist(), "heads": heads}


print(json.dumps({"tasks": [task(1, 120, 5, 3, [1e-3, 1e-2, 1, 100]), task(2, 160, 8, 5, [3e-2, 3])]}))
