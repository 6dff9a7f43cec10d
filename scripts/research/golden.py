"""float64 results for the head of docs/research.md: python golden.py > ../../head/residual/testdata/residual.json."""
import json
import sys

import numpy as np
import torch

import condition
import head
import scores


def main():
    rng = np.random.default_rng(7)
    n, d, o, classes = 60, 6, 4, 3
    centre = rng.normal(size=(classes, d)) * 0.7
    y, yv = rng.integers(0, classes, n), np.arange(15) % classes
    mix = rng.normal(size=(d, d))
    x, xv = (centre[k] + rng.normal(size=(len(k), d)) @ mix * 0.5 for k in (y, yv))
    far = np.concatenate([xv[:4], xv[:2] + 3, xv[:2] * -5])
    w = condition.Whitening(x, y, xv, yv)
    dens = condition.Density(w, x, y, xv)
    opt = head.Options(hidden=(5, 4), rows=40, width=1.0)
    u, uv = w(x)[:, :o], w(xv)[:, :o]
    p = head.start(opt, u, y, uv, yv, classes, 3)
    first, means = p["b"][0], p["m"]
    distances = condition.square_distances(uv, means)
    # Away from the start, where projections are zero and nearly all gradients with them.
    p = {k: v if k.startswith("binit") else v + 0.1 * rng.normal(size=np.shape(v)) for k, v in p.items()}
    par = {k: torch.tensor(v)[None] for k, v in p.items()}
    for k, v in par.items():
        v.requires_grad_(not k.startswith("binit"))
    m = dens.distance(far)
    U, L = torch.tensor(w(far)[:, :o])[None], torch.tensor(dens.log_dep(m))[None]
    U.requires_grad_()
    yf = np.arange(len(far)) % classes
    l, lp = head.forward(opt, par, U, L)
    t = torch.nn.functional.one_hot(torch.tensor(yf), classes).double()[None]
    value = head.loss(opt, l, lp, t).sum() / classes  # mean over N·C
    value.backward()
    lv = head.forward(opt, par, torch.tensor(uv)[None], torch.tensor(dens.log_dep(dens.distance(xv)))[None])[0][0].detach().numpy()
    g, gv = scores.gen(l[0].detach().numpy()), scores.gen(lv)
    out = {
        "x": x, "y": y, "xv": xv, "yv": yv, "o": o, "recovery": opt.recovery,
        "conditioning": {
            "likelihood": {str(k): v for k, v in w.likelihood.items()}, "shrinkage": w.shrinkage, "mean": w.mean,
            "gram": w.matrix @ w.matrix.T, "abs_matrix": np.abs(w.matrix),  # eigenvectors are known up to sign
            "matrix": w.matrix,
        },
        "density": {"means": dens.mu, "r50": dens.r50, "r": dens.r, "x": far, "m": m, "log_dep": dens.log_dep(m)},
        "first_beta": first, "first_means": means,
        "first_widths": {k: head.first_beta(k * k * distances, yv) for k in (1, 3, 10)},  # of rows k times as large
        "parameters": p, "u": U[0], "uv": uv, "labels": yf,
        "l": l[0], "log_phi": lp[0], "loss": value,
        "gradients": {k: v.grad[0] for k, v in par.items() if v.requires_grad} | {"u": U.grad[0]},
        "gen": g, "score": scores.combine(m, g, dens.distance(xv), gv, 1.0),
        "score_constants": {"m_mean": dens.distance(xv).mean(), "m_std": dens.distance(xv).std(), "gen_mean": gv.mean(), "gen_std": gv.std()},
    }
    plain = lambda v: v.detach().tolist() if torch.is_tensor(v) else v.tolist() if hasattr(v, "tolist") else v
    json.dump(out, sys.stdout, default=plain)


if __name__ == "__main__":
    main()
