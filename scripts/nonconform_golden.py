"""Writes what the package nonconform 2.0.0 (Python 3.12 or newer) says of some lists of
conformal p-values: python3 scripts/nonconform_golden.py >pipeline/internal/discovery/testdata/nonconform.json

Of each list: the q-value of each rank with Storey's estimate, and how many are new at least, with a
confidence of 95%, by each kind of certificate that the package has.
"""

import json

import numpy as np
from nonconform._internal.p_value_selection import adjusted_p_values
from nonconform.fdr import FDPCertificate

METHODS = ("mc_thc", "mc_hc", "mc_ks", "mc_bj", "ks")


def new(p: np.ndarray, n: int, method: str) -> int:
    sampled = {} if method == "ks" else {"seed": 1, "n_resamples": 10_000}
    certificate = FDPCertificate.from_p_values(p, n_calibration=n, confidence=0.95, method=method, **sampled)
    found = certificate.rejection_counts
    return int(np.max(np.ceil(found - np.floor(certificate.fdp_upper_bounds * found + 1e-9))))


cases = []
for n, m, share, shift in ((9, 5, 0.4, 3), (80, 100, 0.0, 0), (80, 300, 0.3, 1.5), (150, 500, 0.1, 2), (1000, 600, 0.02, 4), (1001, 600, 0.5, 1)):
    random = np.random.default_rng([n, m])
    calibration = random.normal(size=n)
    scores = random.normal(size=m)
    scores[: round(m * share)] -= shift
    ranks = 1 + np.searchsorted(np.sort(calibration), scores)
    p = ranks / (n + 1)
    cases.append(
        {
            "n": n,
            "ranks": ranks.tolist(),
            "q": dict(zip(ranks.tolist(), (float(f"{q:.12g}") for q in adjusted_p_values(p, method="storey", n_calibration=n)))),
            "new": {method: new(p, n, method) for method in METHODS},
        }
    )
print(json.dumps(cases))
