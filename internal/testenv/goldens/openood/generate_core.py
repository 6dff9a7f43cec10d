"""Writes scores/core.json, the scores of CORE on the features of this golden.

    PYTHONPATH=.setup/python python3 internal/testenv/goldens/openood/generate_core.py

The authors' code is not public (arXiv:2603.18290, March 2026). This follows the formula
in the documentation of posthoc.CORE, one row at a time.
"""
import numpy as np

from golden import SETS, load, write

weights, bias = load("fc_weight"), load("fc_bias")
train, labels = load("train_features"), load("train_labels").astype(int)


def residual(f, c):
    return f - f @ weights[c] / (weights[c] @ weights[c]) * weights[c]


mean_residuals = [np.mean([residual(f, c) for f in train[labels == c]], axis=0) for c in range(len(weights))]


def signals(f, logits):
    """The energy and the cosine of one row."""
    top = logits.max()
    c = int(np.argmax(logits))
    r, g = residual(f, c), mean_residuals[c]
    return top + np.log(np.exp(logits - top).sum()), r @ g / np.sqrt((r @ r) * (g @ g))


fitted = np.array([signals(f, weights @ f + bias) for f in train])
mean, deviation = fitted.mean(axis=0), fitted.std(axis=0)
scores = {}
for name in SETS:
    rows = zip(load(f"{name}_features"), load(f"{name}_logits"))
    scores[name] = np.array([((signals(f, z) - mean) / deviation).sum() for f, z in rows])
write("core", scores, {})
