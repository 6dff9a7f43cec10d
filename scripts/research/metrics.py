"""AUROC and FPR@95 as OpenOOD counts them (OOD is the positive class; higher scores are more in-distribution)."""
import numpy as np
from scipy.stats import rankdata


def auroc(inside, outside):
    r = rankdata(np.concatenate([inside, outside]))
    n, m = len(inside), len(outside)
    return (r[:n].sum() - n * (n + 1) / 2) / (n * m)


def fpr95(inside, outside):
    """Share of in-distribution rows flagged at the first threshold that catches 95% of the others."""
    t = np.sort(outside)[int(np.ceil(0.95 * len(outside))) - 1]
    return float((inside <= t).mean())


def near_far(task, score):
    """score: set name -> scores. Returns mean AUROC (in percent) over the near sets, over the far sets, and each set's."""
    each = {s: 100 * auroc(score["id"], score[s]) for s in task.near + task.far}
    return np.mean([each[s] for s in task.near]), np.mean([each[s] for s in task.far]), each
