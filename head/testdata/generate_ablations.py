"""Writes head/testdata/ablations.json: what PyTorch makes, in float64, of heads
that take back a step of the paper's, and of ReLU networks.

    python3 head/testdata/generate_ablations.py head/testdata/ablations.json

Needs PyTorch. Each case holds outputs, loss and gradients, and the parameters
after one and after five steps of Adam.
"""
import json
import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


class Head(nn.Module):
    def __init__(self, d, widths, o, norm, no_depression, no_ratio, no_projections):
        super().__init__()
        self.norm, self.no_depression = norm, no_depression
        self.no_ratio, self.no_projections = no_ratio or no_depression, no_projections
        self.init_beta = torch.tensor(-0.6)
        self.layers = nn.ModuleList()
        for i, n in enumerate(widths):
            layer = nn.Module()
            layer.centroids = nn.Parameter(0.6 * torch.randn(n, d))
            layer.beta = nn.Parameter(self.init_beta + 0.4 * torch.randn(n))
            d = n
            if i < len(widths) - 1 and not no_projections:
                layer.projections = nn.Parameter(0.5 * torch.randn(n, o))
                d = o
            self.layers.append(layer)

    def forward(self, x, trace=None):
        dep = torch.ones(len(x))
        for i, layer in enumerate(self.layers):
            width = F.softplus(layer.beta)
            distances = (x[:, None] - layer.centroids).abs().pow(self.norm).sum(-1)
            cap = torch.ones(len(x)) if self.no_depression else (dep * 1.1).clamp(max=1)
            if i == len(self.layers) - 1:
                return -width * distances + cap.log()[:, None]
            ratio = 1 if self.no_ratio else width / F.softplus(self.init_beta)
            n = ratio * torch.exp(-width * distances) * cap[:, None]
            dep = n.max(1).values
            x = n if self.no_projections else n @ layer.projections
            if trace is not None:
                trace.append({"output": x.tolist(), "depress": dep.tolist()})


def entries(log_y, labels):
    y = F.one_hot(labels, log_y.shape[1])
    log_y = log_y - 1e-6
    return -(y * log_y + (1 - y) * torch.log(-torch.expm1(log_y)))


def arrays(model, of):
    return [{name: of(p).tolist() for name, p in layer.named_parameters()} for layer in model]


def trained(model, layers, loss):
    """Gradients, and what Adam makes of the parameters."""
    out = {"params": arrays(layers, lambda p: p.detach())}
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for step in range(1, 6):
        adam.zero_grad()
        objective, shown = loss()
        objective.backward()
        losses.append(shown.item())
        if step == 1:
            out["grads"] = arrays(layers, lambda p: p.grad)
        adam.step()
        if step in (1, 5):
            out[f"adam{step}"] = arrays(layers, lambda p: p.detach())
    return out | {"loss": losses[0], "adam_losses": losses, "adam": {"lr": 1e-3}}


def head(name, norm=2, sum_loss=False, **switches):
    torch.manual_seed(5)
    flags = dict.fromkeys(("no_depression", "no_ratio", "no_projections"), False) | switches
    model = Head(3, (5, 4, 3), 6, norm, **flags)
    x, labels = torch.randn(8, 3, requires_grad=True), torch.randint(0, 3, (8,))
    trace = []
    log_pred = model(x, trace)

    def loss():
        e = entries(model(x), labels)
        return (e.sum() if sum_loss else e.mean()), e.mean()

    gradient, = torch.autograd.grad(loss()[0], x)
    return {
        "name": name, "k": norm, "recovery": 1.1, "sum_loss": sum_loss, **flags,
        "input": x.tolist(), "labels": labels.tolist(), "init_beta": [-0.6] * 3, "layers": trace,
        "log_pred": log_pred.tolist(), "grad_input": gradient.tolist(), **trained(model, model.layers, loss),
    }


def mlp(depth):
    torch.manual_seed(depth)
    widths = [3] + [5] * (depth - 1) + [4]
    linear = [nn.Linear(a, b) for a, b in zip(widths, widths[1:])]
    steps = [m for layer in linear for m in (layer, nn.ReLU())][:-1]
    model = nn.Sequential(*steps)
    x, labels = torch.randn(8, 3), torch.randint(0, 4, (8,))

    def loss():
        value = F.cross_entropy(model(x), labels)
        return value, value

    return {"input": x.tolist(), "labels": labels.tolist(), "logits": model(x).tolist(), **trained(model, linear, loss)}


cases = {
    "heads": [
        head("no depression", no_depression=True),
        head("no ratio", no_ratio=True),
        head("no projections", no_projections=True),
        head("earlier", no_projections=True, no_depression=True, norm=3),
        head("sum loss", sum_loss=True),
    ],
    "mlps": [mlp(depth) for depth in (1, 2, 4)],
}
with open(sys.argv[1], "w") as f:
    json.dump(cases, f, separators=(",", ":"))
    f.write("\n")
