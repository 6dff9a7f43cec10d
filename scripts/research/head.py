"""The head in PyTorch, several seeds side by side: every tensor has the seed as its first dimension.

A row enters as (u, log dep_0): u [o] are its leading conditioned coordinates, dep_0 what `closed.Density` makes of all of them.
"""
import dataclasses
import math

import numpy as np
import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Options:
    hidden: tuple = (50,)  # centroids of each hidden layer
    residual: bool = True  # hidden layers add to u; otherwise they replace it by `projection` numbers, as in the paper
    projection: int = 100
    normalised: bool = True  # log phi = log softmax(l) + depression; otherwise l + depression, as in the paper
    width: float = 0.25  # beta of a hidden layer = width / (0.95 quantile of its distances); the paper's 4
    recovery: float = 1.1
    depression: bool = True  # of the hidden layers; dep_0 remains
    ce: float = 0.0  # weight of softmax cross-entropy beside the C binary problems
    focal: float = 0.0
    smooth: float = 0.0
    mixup: float = 0.0  # weight of virtual outliers: midpoints of two classes' rows, all targets zero
    ema: float = 0.0
    epochs: int = 20
    batch: int = 128
    lr: float = 3e-3
    schedule: str = "cosine"  # or constant
    rows: int = 2000  # rows that initialise hidden layers
    published: bool = False  # the last layer starts as the paper's: k-means, one beta from distances


def inverse_softplus(b):
    return float(b) if b > 5 else math.log(min(max(math.expm1(b), 1e-6), 1e4))


def sqdist(x, c):
    return ((x * x).sum(-1, keepdim=True) - 2 * x @ c.mT + (c * c).sum(-1).unsqueeze(-2)).clamp_min(0)


def kmeans(x, n, rng, passes=20):
    """k-means++ and Lloyd's passes."""
    c = [x[rng.integers(len(x))]]
    best = ((x - c[0]) ** 2).sum(1)
    for _ in range(n - 1):
        c.append(x[rng.choice(len(x), p=best / best.sum())])
        best = np.minimum(best, ((x - c[-1]) ** 2).sum(1))
    c = np.stack(c)
    for _ in range(passes):
        a = ((c * c).sum(1) - 2 * x @ c.T).argmin(1)
        c = np.stack([x[a == i].mean(0) if (a == i).any() else c[i] for i in range(n)])
    return c


def first_beta(d, y, limit=0.125):
    """The one beta under which softmax(-beta d) has the least cross-entropy with the labels of the rows, of 61 values from
    limit / 250 to limit. Without that bound, rows that are told apart without an error (a backbone's own training images)
    would make it infinite. A Gaussian's own is one half where the rows are white; one eighth is what does well there.
    """
    cross = lambda b: np.logaddexp.reduce(-b * d, 1).mean() + b * d[np.arange(len(y)), y].mean()
    return min(np.geomspace(limit / 250, limit, 61), key=cross)


def start(o, u, y, uv, yv, classes, seed):
    """Initial values of one head: float64 arrays by name. u, y: training rows; uv, yv: validation rows."""
    rng = np.random.default_rng(seed)
    p = {}
    rows = rng.permutation(len(u))[: o.rows]
    centre, spread = np.array_split(rows, 2)
    h, hv = u, uv
    for i, n in enumerate(o.hidden):
        c = kmeans(h[centre], n, rng)
        d = np.maximum((h[spread] ** 2).sum(1)[:, None] - 2 * h[spread] @ c.T + (c * c).sum(1), 0)
        b = inverse_softplus(o.width / max(np.quantile(d.min(1), 0.95), np.quantile(d.min(0), 0.95)))
        a = np.zeros((len(c), u.shape[1])) if o.residual else rng.standard_normal((len(c), o.projection))
        p |= {f"c{i}": c, f"b{i}": np.full(len(c), b), f"binit{i}": np.array(b), f"a{i}": a}
        if not o.residual:
            q = {k: torch.tensor(v) for k, v in p.items()}
            h, hv = (hidden(o, q, i, torch.tensor(r), torch.zeros(len(r)))[0].numpy() for r in (h, hv))
    if o.published:
        c = kmeans(h[centre], classes, rng)
        d = ((h[spread][:, None] - c) ** 2).sum(2)
        b = inverse_softplus(o.width / max(np.quantile(d.min(1), 0.95), np.quantile(d.min(0), 0.95)))
        return p | {"m": c, "b": np.full(classes, b)}
    m = np.stack([h[y == c].mean(0) for c in range(classes)])
    d = ((hv[:, None] - m) ** 2).sum(2)
    return p | {"m": m, "b": np.full(classes, inverse_softplus(first_beta(d, yv, 0.125 if o.residual else 100 / np.median(d))))}


def hidden(o, p, i, h, ld):
    b, b0 = F.softplus(p[f"b{i}"]).unsqueeze(-2), F.softplus(p[f"binit{i}"])[..., None, None]
    ls = torch.log(b / b0) - b * sqdist(h, p[f"c{i}"])
    if o.depression:
        ls = ls + (ld + math.log(o.recovery)).clamp_max(0).unsqueeze(-1)
    return ls.exp() @ p[f"a{i}"], ls.max(-1).values


def forward(o, p, u, ld):
    """u [S, B, o], ld [S, B] (log dep_0) -> l [S, B, C] and log phi [S, B, C]."""
    h, d0 = u, ld
    for i in range(len(o.hidden)):
        f, ld = hidden(o, p, i, h, ld)
        h = h + f if o.residual else f
    l = -F.softplus(p["b"]).unsqueeze(-2) * sqdist(h, p["m"])
    cap = (ld + math.log(o.recovery)).clamp_max(0) if o.hidden and o.depression else d0
    return l, (F.log_softmax(l, -1) if o.normalised else l) + cap.unsqueeze(-1)


def log1mexp(q):
    """log(1 - e^q) for q < 0."""
    return torch.where(q > -0.7, torch.log(-torch.expm1(q.clamp_min(-0.7))), torch.log1p(-torch.exp(q.clamp_max(-0.7))))


def loss(o, l, lp, t):
    """[S]: binary cross-entropy over the C problems, summed over classes, mean over rows; t [S, B, C] one-hot."""
    q = lp - 1e-6
    n, s = log1mexp(q), t * (1 - o.smooth)
    if o.focal:
        each = s * q * (1 - q.exp()) ** o.focal + (1 - s) * n * (o.focal * q).exp()
    else:
        each = s * q + (1 - s) * n
    out = -each.sum(2).mean(1)
    if o.ce:
        out = out - o.ce * (t * F.log_softmax(l, 2)).sum(2).mean(1)
    return out


def train(o, data, seeds, classes):
    """data: one dict a seed with u, ld, y (training) and uv, ldv, yv (validation). Returns parameters and validation losses."""
    n = min(len(d["y"]) for d in data)
    cat = lambda k, m=None: torch.tensor(np.stack([d[k][:m] for d in data]))
    U, LD, Y = cat("u", n).float(), cat("ld", n).float(), cat("y", n)
    UV, LDV, YV = cat("uv").float(), cat("ldv").float(), cat("yv")
    first = [start(o, d["u"], d["y"], d["uv"], d["yv"], classes, s) for d, s in zip(data, seeds)]
    p = {k: torch.tensor(np.stack([f[k] for f in first])).float() for k in first[0]}
    learn = [v.requires_grad_() for k, v in p.items() if not k.startswith("binit")]
    adam = torch.optim.Adam(learn, o.lr, fused=True)
    gen = [torch.Generator().manual_seed(s) for s in seeds]
    T, TV = F.one_hot(Y, classes).float(), F.one_hot(YV, classes).float()
    S, batch = torch.arange(len(seeds))[:, None], min(o.batch, n)
    steps, step = o.epochs * (n // batch), 0
    mean = {k: v.detach().clone() for k, v in p.items()}
    for _ in range(o.epochs):
        order = torch.stack([torch.randperm(n, generator=g) for g in gen])
        for i in range(n // batch):
            j = order[:, i * batch : (i + 1) * batch]
            if o.schedule == "cosine":
                adam.param_groups[0]["lr"] = o.lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            ub, lb, tb = U[S, j], LD[S, j], T[S, j]
            total = loss(o, *forward(o, p, ub, lb), tb).sum()
            if o.mixup:
                h = batch // 2
                differ = 1 - (tb[:, :h] * tb[:, h : 2 * h]).sum(2)
                q = forward(o, p, (ub[:, :h] + ub[:, h : 2 * h]) / 2, torch.minimum(lb[:, :h], lb[:, h : 2 * h]))[1] - 1e-6
                total = total - o.mixup * (log1mexp(q).sum(2) * differ).mean(1).sum()
            adam.zero_grad()
            total.backward()
            adam.step()
            step += 1
            if o.ema:
                for k, v in mean.items():
                    v.lerp_(p[k].detach(), 1 - o.ema)
    if o.ema:
        p = mean
    with torch.no_grad():
        l, lp = forward(o, p, UV, LDV)
        val = loss(o, l, lp, TV).numpy()
        ce = -(TV * F.log_softmax(l, 2)).sum(2).mean(1).numpy()
    return {k: v.detach().double() for k, v in p.items()}, val, ce


def outputs(o, p, us, lds):
    """Rows of each seed -> l and log phi, [S, n, C] in float64."""
    with torch.no_grad():
        l, lp = forward(o, p, torch.tensor(np.stack(us)), torch.tensor(np.stack(lds)))
    return l.numpy(), lp.numpy()
