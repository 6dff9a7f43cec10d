"""Episodes: open-set training of the residual head without outside images. Is it worth it, and does depth help then?

    python3 episodes.py --features FEATURES --superclasses FILE.csv [--tasks NAME...] [--read E] [--seeds N...]

At each training step a few classes are taken out of the head, with the hidden centroids that are theirs, and the rows
of these classes are negatives of all classes that are left. The loss is that of the whole head plus `weight` times
that of the episodes. Tasks are those of singles.py; --read is how many conditioned features the layers read. Near /
far AUROC of the decision (GEN of the last layer), of the depression before the last layer, and of the sums of the
decision with the density (the head's own score) and with the depression; means over tasks and seeds.
"""
import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from condition import Density, Whitening, class_means, l2, square_distances
from metrics import auroc
from scores import gen
from singles import Tasks

RECOVERY, WIDTH, CENTROIDS = np.log(1.1), 0.25, 50
# name -> hidden layers, weight of the episodes (None: no training)
VARIANTS = {"before training": (0, None), "1 layer": (0, 0), "1 layer, episodes": (0, 1), "1 layer, episodes x 4": (0, 4)}
for layers in (2, 3):
    VARIANTS |= {f"{layers} layers": (layers - 1, 0), f"{layers} layers, episodes": (layers - 1, 1), f"{layers} layers, episodes x 4": (layers - 1, 4)}
SIX = [f"vit-tiny-p16/{s}" for s in "fish people trees insects small_mammals aquatic_mammals".split()]


class Data:
    """Conditioned rows of a task, and the head as the linear classifier that it begins with."""

    def __init__(self, task, read, seed):
        x, y, tx, self.ty, others = task
        rng, val = np.random.default_rng(seed), np.zeros(len(y), bool)
        for c in np.unique(y):
            rows = np.flatnonzero(y == c)
            val[rng.permutation(rows)[: max(1, round(len(rows) / 10))]] = True
        self.y, self.classes, yv = y[~val], y.max() + 1, y[val]
        sets = {"train": x[~val], "val": x[val], "id": tx} | {f"{group} {name}": rows for (group, name), rows in others.items()}
        sets = {k: v.astype(np.float64) for k, v in sets.items()}
        whiten = Whitening(sets["train"], self.y, sets["val"], yv)
        # Logistic regression on the normalised rows, in the coordinates of z; the logits depend on the first C - 1.
        unit = l2(sets["train"]).std()
        fits = [LogisticRegression(C=c, max_iter=200, tol=1e-4).fit(l2(sets["train"]) / unit, self.y) for c in (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3)]
        losses = [-f.predict_log_proba(l2(sets["val"]) / unit)[np.arange(len(yv)), yv].mean() for f in fits]
        fit = next(f for f, loss in zip(fits, losses) if loss <= min(losses) + 0.03)
        a = np.linalg.solve(whiten.matrix, (fit.coef_ - fit.coef_.mean(0)).T / unit).T
        bias = fit.intercept_ + fit.coef_ @ whiten.mean / unit
        turn = np.linalg.svd(a)[2].T
        whiten.matrix, a, k = whiten.matrix @ turn, (a @ turn)[:, : self.classes - 1], self.classes - 1
        z = {s: whiten(rows) for s, rows in sets.items()}
        density = Density(whiten, sets["train"], self.y, sets["val"])
        self.m = {s: density.distance(rows) for s, rows in sets.items()}
        self.dep = {s: density.log_dep(m) for s, m in self.m.items()}
        self.u = {s: rows[:, :read] for s, rows in z.items()}
        scale = (a * class_means(z["train"], self.y)[:, :k]).sum() / (a * a).sum()
        right = -bias - scale / 2 * (a * a).sum(1)
        w = np.zeros((self.classes, self.u["val"].shape[1]))
        w[:, :k] = scale * a + np.linalg.lstsq(a, right - right.mean(), rcond=1e-9)[0]
        d = square_distances(self.u["val"], w)
        widths = 0.0005 * 250 ** (np.arange(61) / 60)
        width = min(widths, key=lambda b: -log_softmax(-b * d, 1)[np.arange(len(yv)), yv].mean())
        self.last = {"c": jnp.asarray(w, jnp.float32), "b": inverse_softplus(width, self.classes)}

    def head(self, layers, seed):
        """The head before training, and the class that each hidden centroid is taken out with."""
        rows = np.random.default_rng(seed).permutation(len(self.y))[:2000]
        u, y, half = self.u["train"][rows], self.y[rows], len(rows) // 2
        c, owner = [], []
        for k in range(self.classes):
            own = u[y == k]
            n = min(max(1, CENTROIDS // self.classes), len(own))
            c.append(KMeans(n, n_init=1, random_state=seed).fit(own).cluster_centers_)
            owner += [k] * n
        c, held = np.concatenate(c), u[half:]
        among = square_distances(held, held)
        np.fill_diagonal(among, np.inf)
        width = min(WIDTH / max(np.quantile(square_distances(held, c).min(1), 0.95), np.quantile(among.min(1), 0.95)), 4)
        hidden = [{"c": jnp.asarray(c, jnp.float32), "b": inverse_softplus(width, len(c)), "a": jnp.zeros(c.shape, jnp.float32)} for _ in range(layers)]
        return {"hidden": hidden, "last": self.last}, (np.log(width), tuple(owner))


def inverse_softplus(b, n):
    return jnp.full(n, np.log(np.expm1(b)), jnp.float32)


def distances(u, c):
    return (u * u).sum(1, keepdims=True) - 2 * u @ c.T + (c * c).sum(1)


def forward(head, start, u, dep, there):
    """Log phi and l of the classes that are there (1) and the depression; taken out (0): -1e9."""
    log_width, owner = start
    for layer in head["hidden"]:
        b = jax.nn.softplus(layer["b"])
        n = jnp.log(b) - log_width - b * distances(u, layer["c"]) + jnp.minimum(dep + RECOVERY, 0)[:, None]
        n = jnp.where(there[np.array(owner)] > 0, n, -1e9)
        u, dep = u + jnp.exp(jnp.minimum(n, 30)) @ layer["a"], n.max(1)
    l = jnp.where(there > 0, -jax.nn.softplus(head["last"]["b"]) * distances(u, head["last"]["c"]), -1e9)
    cap = jnp.minimum(dep + RECOVERY, 0) if head["hidden"] else dep
    return jax.nn.log_softmax(l, 1) + cap[:, None], l, dep


def loss(head, start, u, dep, one_hot, there):
    phi = jnp.minimum(forward(head, start, u, dep, there)[0] - 1e-6, -1e-6)
    own = one_hot * there
    return -(jnp.where(there > 0, own * phi + (1 - own) * jnp.log(-jnp.expm1(phi)), 0).sum(1) / there.sum()).mean()


@functools.cache
def trainer(start, classes, weight, steps, rate=0.003):
    def total(head, u, dep, y, out):
        one_hot = jax.nn.one_hot(y, classes)
        whole = loss(head, start, u, dep, one_hot, jnp.ones(classes))
        return whole + weight * jax.vmap(lambda there: loss(head, start, u, dep, one_hot, there))(out).mean() if weight else whole

    @jax.jit
    def run(head, u, dep, y, rows, out):
        def step(state, given):
            (head, m, v, t), (rows, out) = state, given
            g = jax.grad(total)(head, u[rows], dep[rows], y[rows], out)
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
            lr, t = rate * (1 + jnp.cos(jnp.pi * t / steps)) / 2, t + 1
            return (jax.tree.map(lambda p, m, v: p - lr * m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), head, m, v), m, v, t), None

        zero = jax.tree.map(jnp.zeros_like, head)
        return jax.lax.scan(step, (head, zero, zero, jnp.float32(0)), (rows, out))[0][0]

    return run


def train(data, head, start, weight, seed, epochs=20, batch=128, episodes=2):
    rng, n, c = np.random.default_rng(seed), len(data.y), data.classes
    orders = [rng.permutation(n) for _ in range(epochs)]
    rows = np.concatenate([np.concatenate([o, o[: -n % batch]]) for o in orders]).reshape(-1, batch)
    out = np.ones((len(rows), episodes, c), np.float32)
    np.put_along_axis(out, rng.random(out.shape).argsort(-1)[..., : max(1, c // 5)], 0, -1)
    u, dep = (jnp.asarray(v["train"], jnp.float32) for v in (data.u, data.dep))
    return trainer(start, int(c), weight, len(rows))(head, u, dep, jnp.asarray(data.y), jnp.asarray(rows), jnp.asarray(out))


def measure(data, head, start):
    said = {s: [np.asarray(v, np.float64) for v in forward(head, start, jnp.asarray(data.u[s], jnp.float32), jnp.asarray(data.dep[s], jnp.float32), jnp.ones(data.classes))] for s in data.u if s != "train"}
    terms = {"decision": {s: gen(l) for s, (_, l, _) in said.items()}, "depression": {s: d for s, (_, _, d) in said.items()}, "density": {s: -data.m[s] for s in said}}
    z = {t: {s: (v - each["val"].mean()) / each["val"].std() for s, v in each.items()} for t, each in terms.items()}
    scores = {t: terms[t] for t in ("decision", "depression")}
    scores |= {f"decision + {t}": {s: z["decision"][s] + z[t][s] for s in said} for t in ("density", "depression")}
    result = {"accuracy": 100 * (said["id"][1].argmax(1) == data.ty).mean()}
    for name, score in scores.items():
        result[name] = [100 * np.mean([auroc(score["id"], v) for s, v in score.items() if s.startswith(group)]) for group in ("near", "far")]
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--features", required=True)
    p.add_argument("--superclasses", required=True)
    p.add_argument("--tasks", nargs="*", default=SIX)
    p.add_argument("--variants", nargs="*", default=list(VARIANTS))
    p.add_argument("--read", type=int, default=50)
    p.add_argument("--seeds", type=int, nargs="*", default=[0])
    a = p.parse_args()
    tasks = Tasks(a.features, a.superclasses)
    all_data = [(seed, Data(tasks.make[name](), a.read, seed)) for name in a.tasks for seed in a.seeds]
    print("| head | accuracy | decision | depression | decision + density | decision + depression |\n|---|---|---|---|---|---|")
    for name in a.variants:
        layers, weight = VARIANTS[name]
        found = []
        for seed, data in all_data:
            head, start = data.head(layers, seed)
            if weight is not None:
                head = train(data, head, start, weight, seed)
            found.append(measure(data, head, start))
        mean = {k: np.mean([f[k] for f in found], 0) for k in found[0]}
        cells = [f"{mean.pop('accuracy'):.1f}"] + [f"{near:.1f} / {far:.1f}" for near, far in mean.values()]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
