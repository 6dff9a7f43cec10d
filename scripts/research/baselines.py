"""The scores that the head is compared with: one linear head's, and those read off the features (all training rows)."""
import numpy as np
import torch
from scipy.special import logsumexp, softmax


def l2(x):
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def linear_head(x, y, xv, yv, seed, epochs=100, batch=128, lr=1e-3):
    """Softmax regression on standardised rows, Adam, the epoch of the best validation loss. Returns rows -> logits."""
    torch.manual_seed(seed)
    mu, sd = x.mean(0), x.std(0)
    sd = np.where(sd < 1e-6, 1, sd)
    t = lambda a: torch.tensor((a - mu) / sd, dtype=torch.float32)
    X, Y, XV, YV = t(x), torch.tensor(y), t(xv), torch.tensor(yv)
    net = torch.nn.Linear(x.shape[1], int(y.max()) + 1)
    opt = torch.optim.Adam(net.parameters(), lr)
    ce, best, kept = torch.nn.functional.cross_entropy, np.inf, None
    for _ in range(epochs):
        order = torch.randperm(len(X))
        for i in range(0, len(X), batch):
            j = order[i : i + batch]
            opt.zero_grad()
            ce(net(X[j]), Y[j]).backward()
            opt.step()
        with torch.no_grad():
            v = float(ce(net(XV), YV))
        if v < best:
            best, kept = v, [p.detach().clone() for p in net.parameters()]
    w, b = (p.double().numpy() for p in kept)
    return lambda a: ((a - mu) / sd) @ w.T + b


def logit_scores(z):
    p = softmax(z, 1)
    return {
        "msp": p.max(1),
        "mls": z.max(1),
        "energy": logsumexp(z, 1),
        "gen": -np.sort(p, 1)[:, -100:].__pow__(0.1).__mul__((1 - np.sort(p, 1)[:, -100:]) ** 0.1).sum(1),
    }


def mahalanobis(x, y, relative):
    mu = np.stack([x[y == c].mean(0) for c in range(y.max() + 1)])
    r, m0 = x - mu[y], x.mean(0)
    p = np.linalg.pinv(r.T @ r / len(x), hermitian=True)
    p0 = np.linalg.pinv((x - m0).T @ (x - m0) / len(x), hermitian=True)
    quad = lambda a, q: ((a @ q) * a).sum(1)

    def score(a):
        d = np.stack([quad(a - m, p) for m in mu], 1)
        return -(d.min(1) - relative * quad(a - m0, p0))

    return score


def knn(x, k=50):
    bank = l2(x).astype(np.float32)

    def score(a):
        a = l2(a).astype(np.float32)
        return np.concatenate([-np.partition(2 - 2 * a[i : i + 1000] @ bank.T, k - 1, 1)[:, k - 1] for i in range(0, len(a), 1000)])

    return score


def vim(x, logits, weight, bias):
    """ViM with the linear head's weights, in the features' own coordinates."""
    d = x.shape[1]
    keep = 1000 if d >= 2048 else 512 if d >= 768 else d // 2
    u = -np.linalg.pinv(weight) @ bias
    _, e = np.linalg.eigh((x - u).T @ (x - u) / len(x))
    null = e[:, : d - keep]
    norm = lambda a: np.linalg.norm((a - u) @ null, axis=1)
    alpha = logits(x).max(1).mean() / norm(x).mean()
    return lambda a: logsumexp(logits(a), 1) - alpha * norm(a)


def all_scores(task, seed):
    """name -> {set -> scores}, and the linear head's test accuracy in percent."""
    fit, val = task.split(seed)
    x, y = task.x, task.y
    logits = linear_head(x[fit], y[fit], x[val], y[val], seed)
    d = x.shape[1]
    bias = logits(np.zeros((1, d)))[0]
    weight = (logits(np.eye(d)) - bias).T
    fits = {
        "vim": vim(x, logits, weight, bias),
        "knn": knn(x),
        "mds": mahalanobis(x, y, 0),
        "rmds": mahalanobis(x, y, 1),
    }
    for n in ("mds", "rmds"):
        fits[n + "++"] = (lambda f: lambda a: f(l2(a)))(mahalanobis(l2(x), y, n == "rmds"))
    z = {s: logits(a) for s, a in task.test.items()}
    out = {n: {s: f(a) for s, a in task.test.items()} for n, f in fits.items()}
    for s in z:
        for n, v in logit_scores(z[s]).items():
            out.setdefault(n, {})[s] = v
    return out, 100 * (z["id"].argmax(1) == task.test_y).mean()
