"""Everything tried, over feature sets that `extract` made: python explore.py --features DIR --idx DIR --out FOLDER.

DIR holds MODEL/SET folders (data.py names them). results.jsonl in FOLDER holds finished results; the same command resumes from
there. results.csv and results.md are written at the end.
"""
import argparse
import csv
import json
import pathlib

import numpy as np
import torch

import baselines
import condition
import data
import head
import scores
from metrics import auroc, near_far

SEEDS = (0, 1, 2)
RECIPE = dict(hidden=(200,))
# name -> (conditioning, head options, weight of GEN, coordinates of u)
CORE = {
    "recipe": ("whiten", RECIPE),
    "recipe, closed form (0 epochs, 1 layer)": ("whiten", dict(hidden=(), epochs=0)),
    "recipe, 1 layer": ("whiten", dict(hidden=())),
    "recipe, 3 layers": ("whiten", dict(hidden=(200, 200))),
}
TRIED = CORE | {
    "recipe, N = 50": ("whiten", dict(hidden=(50,))),
    "recipe, 4 layers of 50": ("whiten", dict(hidden=(50, 50, 50))),
    "recipe, width 1": ("whiten", dict(hidden=(200,), width=1)),
    "recipe, width 4": ("whiten", dict(hidden=(200,), width=4)),
    "recipe, recovery 1.5": ("whiten", RECIPE | dict(recovery=1.5)),
    "recipe, no hidden depression": ("whiten", RECIPE | dict(depression=False)),
    "recipe, not residual (projection 100)": ("whiten", RECIPE | dict(residual=False)),
    "recipe, not normalised": ("whiten", RECIPE | dict(normalised=False)),
    "recipe, + cross-entropy": ("whiten", RECIPE | dict(ce=1.0)),
    "recipe, focal 2": ("whiten", RECIPE | dict(focal=2.0)),
    "recipe, smoothing 0.05": ("whiten", RECIPE | dict(smooth=0.05)),
    "recipe, virtual outliers (mixup)": ("whiten", RECIPE | dict(mixup=0.3)),
    "recipe, EMA 0.99": ("whiten", RECIPE | dict(ema=0.99)),
    "recipe, lr 0.001": ("whiten", RECIPE | dict(lr=1e-3)),
    "recipe, lr 0.01": ("whiten", RECIPE | dict(lr=1e-2)),
    "recipe, constant lr": ("whiten", RECIPE | dict(schedule="constant")),
    "recipe, 60 epochs": ("whiten", RECIPE | dict(epochs=60)),
    "recipe, o = 20": ("whiten", RECIPE, 20),
    "recipe, o = 100": ("whiten", RECIPE, 100),
    "recipe, o = D": ("whiten", RECIPE, None),
    "recipe, u standardised": ("standardise", RECIPE),
    "recipe, u centred (PCA)": ("centre", RECIPE),
    "recipe, no L2": ("whiten, no L2", RECIPE),
}
PAPER = dict(hidden=(50, 50, 50), residual=False, normalised=False, width=4, lr=1e-3, schedule="constant", rows=128, epochs=100, published=True)


def prepare(task, kind, o):
    """One dict a seed, as head.train takes it, with every set's u and m."""
    out = []
    for seed in SEEDS:
        fit, val = task.split(seed)
        part = (task.x[fit], task.y[fit], task.x[val], task.y[val])
        norm = kind != "whiten, no L2"
        w = condition.Whitening(*part, norm=norm)
        density = condition.Density(w, *part[:3])
        c = w if kind.startswith("whiten") else condition.Whitening(*part, kind=kind)
        rows = task.test | {"fit": part[0], "val": part[2]}
        u, m = {k: c(x)[:, :o] for k, x in rows.items()}, {k: density.distance(x) for k, x in rows.items()}
        ld = {k: density.log_dep(v) for k, v in m.items()}
        out.append(dict(u=u["fit"], ld=ld["fit"], y=part[1], uv=u["val"], ldv=ld["val"], yv=part[3], U=u, M=m, L=ld, s=w.shrinkage))
    return out


def run_head(task, kind, options, o=50, cache={}):
    key = task.name, kind, o
    if key not in cache:
        cache.clear()
        cache[key] = prepare(task, kind, o)
    rows, opt = cache[key], head.Options(**options)
    p, val, ce = head.train(opt, rows, SEEDS, task.classes)
    sets = ["val", *task.test]
    out = {k: head.outputs(opt, p, [d["U"][k] for d in rows], [d["L"][k] for d in rows]) for k in sets}
    for i, (seed, d) in enumerate(zip(SEEDS, rows)):
        g = {k: scores.gen(out[k][0][i]) for k in sets}
        score = {f"m + {w} GEN": {k: scores.combine(d["M"][k], g[k], d["M"]["val"], g["val"], w) for k in task.test} for w in (1, 1.5, 2, 3)}
        score |= {"max log phi": {k: out[k][1][i].max(1) for k in task.test}, "GEN": g, "m": {k: -d["M"][k] for k in task.test}}
        yield dict(
            seed=seed,
            acc=100 * float((out["id"][0][i].argmax(1) == task.test_y).mean()),
            val=float(val[i]),
            ce=float(ce[i]),
            shrinkage=d["s"],
            confidence=[float(np.mean([np.exp(out[k][1][i].max(1)).mean() for k in s])) for s in (["id"], task.near, task.far)],
            s={n: near_far(task, v) for n, v in score.items()},
        )


def run_paper(task):
    parts = [task.split(s) for s in SEEDS]
    zero = lambda n: np.zeros(n)
    rows = [
        dict(u=task.x[f], ld=zero(len(f)), y=task.y[f], uv=task.x[v], ldv=zero(len(v)), yv=task.y[v]) for f, v in parts
    ]
    opt = head.Options(**PAPER)
    p, _, _ = head.train(opt, rows, SEEDS, task.classes)
    out = {k: head.outputs(opt, p, [x] * 3, [zero(len(x))] * 3)[1] for k, x in task.test.items()}
    for i, seed in enumerate(SEEDS):
        acc = 100 * float((out["id"][i].argmax(1) == task.test_y).mean())
        yield dict(seed=seed, acc=acc, s={"max log phi": near_far(task, {k: v[i].max(1) for k, v in out.items()})})


def run_baselines(task):
    for seed in SEEDS:
        s, acc = baselines.all_scores(task, seed)
        yield dict(seed=seed, acc=acc, s={k: near_far(task, v) for k, v in s.items()})


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--features", required=True)
    a.add_argument("--idx", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--tasks", default=",".join(data.TASKS))
    a.add_argument("--threads", type=int, default=1)
    a = a.parse_args()
    torch.set_num_threads(a.threads)
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    log = out / "results.jsonl"
    done = {(r["task"], r["what"]) for r in map(json.loads, log.open())} if log.exists() else set()
    for name in a.tasks.split(","):
        jobs = {"baselines": run_baselines, "published head": run_paper}
        for what, (kind, options, *o) in (TRIED if name in data.TUNED else CORE).items():
            jobs[what] = lambda t, k=kind, p=options, o=o: run_head(t, k, p, *o)
        jobs = {w: f for w, f in jobs.items() if (name, w) not in done}
        task = data.Task(a.features, name, a.idx) if jobs else None
        for what, job in jobs.items():
            rows = [dict(task=name, what=what, **r) for r in job(task)]
            with log.open("a") as f:
                f.writelines(json.dumps(r) + "\n" for r in rows)
            print(name, what, flush=True)
    table(log, out)


def table(log, out):
    """results.csv: every score of everything; results.md: per task, what counts."""
    rows = [json.loads(line) for line in log.open()]
    groups = {}
    for r in rows:
        for score, (near, far, each) in r["s"].items():
            groups.setdefault((r["task"], r["what"], score), []).append((r["acc"], near, far, near + far, each))
    with (out / "results.csv").open("w", newline="") as f:
        w = csv.writer(f)
        w.writerow("task,what,score,seeds,acc,acc_std,near,near_std,far,far_std,sum,sum_std,each".split(","))
        for key, v in groups.items():
            c = np.array([x[:4] for x in v])
            flat = [f"{x:.2f}" for pair in zip(c.mean(0), c.std(0)) for x in pair]
            each = " ".join(f"{s}={np.mean([x[4][s] for x in v]):.2f}" for s in v[0][4])
            w.writerow([*key, len(v), *flat, each])
    shown = {"baselines": None, "published head": ["max log phi"]}
    with (out / "results.md").open("w") as f:
        for task in data.TASKS:
            f.write(f"\n### {task}\n\n| what | score | accuracy | near | far | sum |\n|---|---|---|---|---|---|\n")
            for (t, what, score), v in groups.items():
                use = shown.get(what, None if what == "recipe" else ["m + 1 GEN"])
                if t == task and (use is None or score in use):
                    c = np.array([x[:4] for x in v])
                    f.write(f"| {what} | {score} | " + " | ".join(f"{m:.2f} ± {s:.2f}" for m, s in zip(c.mean(0), c.std(0))) + " |\n")


if __name__ == "__main__":
    main()
