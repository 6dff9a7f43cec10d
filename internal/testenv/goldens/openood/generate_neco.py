"""Writes scores/neco.json, the scores of NECO on the features of this golden.

    PYTHONPATH=.setup/python python3 internal/testenv/goldens/openood/generate_neco.py

OpenOOD has no NECO. This follows evaluate_neco of github.com/mueller-mp/maha-norm
(NINCO/detection_methods.py, commit ee66a99) in float64: the length of a standardised row
within the fewest principal axes with 90 % of the variance, divided by its whole length,
times its largest logit. Where scikit-learn is installed, the scores by its StandardScaler
and PCA, which that function calls, are compared too (2e-14).
"""
import numpy as np

from golden import SETS, load, write

SHARE = 0.9

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

try:
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler
except ImportError:
    print("scikit-learn is not installed, so its scores are not compared")
else:
    scaler = StandardScaler().fit(features["train"])
    peer = {name: scaler.transform(x) for name, x in features.items()}
    pca = PCA().fit(peer["train"])
    count = np.where(np.cumsum(pca.explained_variance_ratio_) >= SHARE)[0][0] + 1
    theirs = scores(peer, {name: pca.transform(peer[name])[:, :count] for name in SETS})
    print("scikit-learn is at most", max(np.abs(theirs[name] - clean[name]).max() for name in SETS), "off")

write("neco", clean, {"share": SHARE, "axes": dim})
