"""Golden numbers of the paper's head and of the OOD metrics, by PyTorch in float64.

    python3 internal/testenv/goldens/generate.py internal/testenv/goldens

Needs PyTorch 2.15 and numpy. mlrbfn_torch.py is the network, written from the paper
alone; README.md says what each file holds.
"""
import json, math, numpy as np, torch, torch.nn.functional as F
torch.set_num_threads(1); torch.set_default_dtype(torch.float64)
import mlrbfn_torch as M
import sys as _s; G = _s.argv[1].rstrip('/') + '/'
def cv(o):
    if isinstance(o, torch.Tensor): o = o.detach().numpy()
    if isinstance(o, np.ndarray): o = o.tolist()
    if isinstance(o, (np.floating,)): o = float(o)
    if isinstance(o, (np.integer,)): o = int(o)
    if isinstance(o, float) and not math.isfinite(o): return 'nan' if o != o else ('inf' if o > 0 else '-inf')
    if isinstance(o, (list, tuple)): return [cv(v) for v in o]
    if isinstance(o, dict): return {k: cv(v) for k, v in o.items()}
    return o
FILES = []
def dump(n, o): json.dump(cv(o), open(G + n, 'w'), indent=0); FILES.append(n)
def mk(n, d, o, k, last, seed, ib=0.3):
    g = torch.Generator().manual_seed(seed); l = M.Layer(d, n, o, k, last, torch.float64, g)
    with torch.no_grad():
        l.centroids.mul_(.7); l.beta.copy_(ib + .8 * torch.randn(n, generator=g)); l.init_beta.fill_(ib)
    return l
def lay(l, x, dep, rec=1.1):
    o, dn, s = l(x, dep, rec)
    r = dict(k=l.k, last=l.last, recovery=rec, input=x, depression=dep, centroids=l.centroids, beta=l.beta, init_beta=float(l.init_beta), output=o, depress_next=dn, scales=s)
    if not l.last: r['projections'] = l.projections
    return r
g = torch.Generator().manual_seed(7)
X = torch.randn(6, 3, generator=g); dep = torch.tensor([1., .95, .5, .01, 1.4, 1 / 1.1])
# 1/2 layers
dump('layer_forward.json', [lay(mk(5, 3, 4, k, False, 11 + i), X, dep, rec) for i, (k, rec) in enumerate([(1, 1.1), (2, 1.1), (3, 1.1), (1.5, 1.1), (2, 1.05)])])
dump('last_layer_forward.json', [lay(mk(4, 3, 1, k, True, 31 + i), X, dep, rec) for i, (k, rec) in enumerate([(1, 1.1), (2, 1.1), (3, 1.1), (1.5, 1.1), (2, 1.05)])])
# 3 loss
lp = torch.tensor([[-.1, -3., -7.], [-20., -1e-9, 0.], [-800., -.5, -1e-3], [-1e4, -40., -.6931]], requires_grad=True); y = torch.tensor([0, 2, 1, 1])
L = M.log_bce(lp, y, 3); L.backward()
ent = -(F.one_hot(y, 3) * (lp - 1e-6) + (1 - F.one_hot(y, 3)) * M.log1mexp_appendix(lp - 1e-6))
lpi = torch.tensor([[float('-inf'), -1., -2.]])
dump('loss.json', dict(log_pred=lp, labels=y, classes=3, loss=L, entries=ent, grad=lp.grad, shift=1e-6, reduction='mean over all batch*class entries', inf_case=dict(log_pred=lpi, labels=[1], appendix_loss=M.log_bce(lpi, torch.tensor([1]), 3), limit_loss=float(-(torch.tensor([-1.])[0] - 1e-6 + M.log1mexp_appendix(torch.tensor(-2. - 1e-6))) / 3), note='appendix gives NaN (0*-inf); the mathematical limit takes 0 for the negative entry')))
# 4 network, grads, Adam
def net(k, seed=5, B=8, d=3, hid=(5, 4), o=6, C=3):
    g = torch.Generator().manual_seed(seed); m = M.MLRBFN(d, list(hid), o, C, k, torch.float64, seed)
    with torch.no_grad():
        for l in m.layers:
            n = len(l.beta); l.init_beta.fill_(-.6 if k < 3 else -1.5); l.beta.copy_(l.init_beta + .4 * torch.randn(n, generator=g)); l.centroids.mul_(.6)
            if not l.last: l.projections.mul_(.5)
        x = torch.randn(B, d, generator=g)
    return m, x, torch.randint(0, C, (B,), generator=g)
def pars(m, what): return [dict(centroids=(l.centroids if what == 'v' else l.centroids.grad).detach().clone(), beta=(l.beta if what == 'v' else l.beta.grad).detach().clone(), **({} if l.last else dict(projections=(l.projections if what == 'v' else l.projections.grad).detach().clone()))) for l in m.layers]
import copy
for k in (1, 2, 3, 1.5):
    m, x, y = net(k); r = dict(k=k, recovery=1.1, input=x, labels=y, init_beta=[float(l.init_beta) for l in m.layers], params=pars(m, 'v'))
    xx = x.clone().requires_grad_(); dp = torch.ones(len(x)); h = xx; tr = []
    for l in m.layers: h, dp, s = l(h, dp); tr.append(dict(output=h.detach().clone(), depress=dp.detach().clone(), scales=s.detach().clone()))
    lo = M.log_bce(h, y, 3); lo.backward(); r.update(layers=tr, log_pred=h.detach().clone(), loss=lo.detach().clone(), grads=pars(m, 'g'), grad_input=xx.grad)
    # finite-difference check
    worst = 0
    for p in m.parameters():
        fl = p.data.view(-1)
        for j in range(0, len(fl), 3):
            o = fl[j].item(); fl[j] = o + 1e-6; a = M.log_bce(m(x), y, 3).item(); fl[j] = o - 1e-6; b = M.log_bce(m(x), y, 3).item(); fl[j] = o
            worst = max(worst, abs((a - b) / 2e-6 - p.grad.view(-1)[j].item()))
    opt = torch.optim.Adam(m.parameters(), lr=1e-3); ls = []
    for t in range(5):
        opt.zero_grad(); lo = M.log_bce(m(x), y, 3); lo.backward(); opt.step(); ls.append(lo.item())
        if t == 0: r['adam1'] = pars(m, 'v')
    r['adam5'] = pars(m, 'v'); r['adam_losses'] = ls; r['adam'] = dict(lr=1e-3, beta1=.9, beta2=.999, eps=1e-8)
    print('net k', k, 'loss', ls, 'fd worst', worst, 'min dep', [float(t['depress'].min()) for t in tr[:-1]], 'capped', [int((t['depress'] * 1.1 >= 1).sum()) for t in tr[:-1]])
    dump(f'network_k{k}.json', r)
# 5 beta init
bi = []
for k, sc, n in ((2, 1, 4), (1, 1, 4), (3, 1, 4), (1.5, 1, 4), (2, .3, 4), (2, 5000, 4), (2, 1, 1), (2, 1, 12)):
    g = torch.Generator().manual_seed(int(k * 10 + n)); xb = sc * torch.randn(10, 3, generator=g); c = sc * torch.randn(n, 3, generator=g) * .7
    bs, q1, q2 = M.beta_from(xb, c, k); D = M.dist_k(xb, c, k, False)
    bi.append(dict(k=k, data=xb, centroids=c, q95_data=q1, q95_centroids=q2, dist=max(float(q1), float(q2)), ratio=4 / max(float(q1), float(q2)), beta=bs, softplus_beta=F.softplus(bs), min_over_centroids=D.min(1).values, min_over_data=D.min(0).values))
print('beta ratios', [b['ratio'] for b in bi], [float(b['beta']) for b in bi])
dump('beta_init.json', bi)
# 6 k-means
km = []
for k in (1, 2, 3, 1.5):
    g = torch.Generator().manual_seed(3); D = torch.randn(12, 2, generator=g); C0 = torch.cat([D[:3] + .05, torch.tensor([[50., 50.]])])
    r = dict(k=k, data=D, start=C0, dead_centroid=3)
    for it in (1, 2, 5, 100): r[f'centroids_after_{it}'] = M.webscale_iterations(D, C0, k, it)
    r['assign_first_pass'] = M.dist_k(D, C0, k, False).argmin(1); km.append(r)
pp = []
for k in (1, 2, 3, 1.5):
    g = torch.Generator().manual_seed(9); D = torch.randn(8, 2, generator=g); n = 10; us = torch.rand(n - 1, generator=g); nz = 1e-5 * torch.randn(n - 1, 2, generator=g)
    c = torch.empty(n, 2); c[0] = D[0]; pk = [0]; pr = []
    for i in range(1, n):
        d = M.dist_k(D, c[:i], k, False).min(-1).values; p = d / d.sum(); cs = torch.cumsum(p, 0); j = int((cs > us[i - 1]).long().argmax()); pk.append(j); c[i] = D[j] + nz[i - 1]; pr.append(p)
    pp.append(dict(k=k, data=D, uniforms=us, noise=nz, picks=pk, centroids=c, probs=pr, note='n=10 > 8 points: last picks are duplicates + noise'))
dump('kmeans.json', dict(iterations=km, plusplus=pp))
# 7 plateau
p = torch.nn.Parameter(torch.zeros(1)); o = torch.optim.SGD([p], lr=.1); s = torch.optim.lr_scheduler.ReduceLROnPlateau(o, factor=.5, patience=3)
losses = [1., .9, .9, .9 * (1 - 1e-4), .9 * (1 - 1.01e-4), .95, .95, .95, .95, .95, .95, .95, .95, .5, .5, .5, float('nan'), .5, .5, .5, .5, .4, .39999, .39999, .39999, .39999, .39999] + [.39999] * 20
tr = []
for l in losses: s.step(l); tr.append(dict(loss=l, lr=o.param_groups[0]['lr'], bad=s.num_bad_epochs, best=float(s.best)))
dump('plateau.json', dict(mode='min', factor=.5, patience=3, threshold=1e-4, threshold_mode='rel', cooldown=0, min_lr=0, eps=1e-8, lr0=.1, trace=tr))
s2 = torch.optim.SGD([p], lr=1e-7); 
# 8 edges
E = []
for k in (1, 2, 3, 1.5):
    l = mk(3, 3, 2, k, False, 51); x = l.centroids.detach().clone().requires_grad_(); out, dn, sc = l(x, torch.ones(3)); (out.sum() + dn.sum()).backward()
    E.append(dict(name=f'x equals centroid k={k}', **lay(l, x.detach(), torch.ones(3)), upstream='sum(output)+sum(depress_next)', grad_centroids=l.centroids.grad, grad_beta=l.beta.grad, grad_projections=l.projections.grad, grad_input=x.grad))
l = mk(4, 3, 2, 2, False, 52); E.append(dict(name='depression exactly 0 (hidden)', **lay(l, X[:2], torch.tensor([0., 1.]))))
l = mk(4, 3, 2, 2, True, 53); E.append(dict(name='depression exactly 0 (last) -> -inf', **lay(l, X[:2], torch.tensor([0., 1.]))))
l = mk(4, 3, 2, 2, False, 54); E.append(dict(name='huge distance -> underflow to 0', **lay(l, X[:2] * 1e6, torch.ones(2))))
l = mk(4, 3, 2, 2, True, 55); E.append(dict(name='huge distance last', **lay(l, X[:2] * 1e6, torch.ones(2))))
l = mk(1, 3, 2, 2, False, 56); E.append(dict(name='one-centroid layer', **lay(l, X[:3], dep[:3])))
l = mk(1, 3, 2, 2, True, 57); E.append(dict(name='one-centroid last layer', **lay(l, X[:3], dep[:3])))
l = mk(2, 3, 2, 2, False, 58)
with torch.no_grad(): l.beta.copy_(torch.tensor([25., -40.])); l.init_beta.fill_(-13.815510557964274)
E.append(dict(name='softplus extremes (threshold 20 -> identity; beta=-40; init at clamp 1e-6)', **lay(l, X[:3] * .01, dep[:3]), softplus_beta=F.softplus(l.beta), softplus_init=F.softplus(l.init_beta)))
l = mk(3, 3, 2, 2, False, 59)
with torch.no_grad(): l.centroids[1] = l.centroids[0]; l.beta[1] = l.beta[0]
x = l.centroids.detach()[:1].clone() + .1; out, dn, sc = l(x, torch.ones(1)); dn.sum().backward()
E.append(dict(name='tie in max: gradient goes to the first index', **lay(l, x, torch.ones(1)), grad_centroids=l.centroids.grad, grad_beta=l.beta.grad))
d1 = torch.tensor([1 / 1.1, .5, 1.], requires_grad=True); l = mk(3, 3, 2, 2, True, 60); out, _, _ = l(X[:3], d1); out.sum().backward()
E.append(dict(name='gradient of min(log dep + log rec, 0) at and around the cap', **lay(l, X[:3], d1.detach()), upstream='sum(output)', grad_depression=d1.grad))
d2 = torch.tensor([1 / 1.1, .5, 1.], requires_grad=True); l = mk(3, 3, 2, 2, False, 61); out, dn, _ = l(X[:3], d2); (out.sum() + dn.sum()).backward()
E.append(dict(name='gradient of min(dep*rec, 1) at and around the cap (torch.minimum halves the gradient on an exact tie)', **lay(l, X[:3], d2.detach()), upstream='sum(output)+sum(depress_next)', grad_depression=d2.grad, tie_exact=[bool(v == 1.) for v in (d2.detach() * 1.1)]))
dump('edge_cases.json', E)
# 9 metrics
from sklearn import metrics
def oo(ci, co):
    y = np.r_[np.zeros(len(ci)), np.ones(len(co))]; c = np.r_[ci, co]
    f, t, th = metrics.roc_curve(y, -c); f2, t2, _ = metrics.roc_curve(y, -c, drop_intermediate=False)
    pi, ri, _ = metrics.precision_recall_curve(1 - y, c); po, ro, _ = metrics.precision_recall_curve(y, -c)
    return dict(conf_id=ci, conf_ood=co, auroc=metrics.roc_auc_score(y, -c), auroc_openood=metrics.auc(f, t), fpr_at_95=f[np.argmax(t >= .95)], fpr_at_95_no_drop=f2[np.argmax(t2 >= .95)], aupr_in=metrics.auc(ri, pi), aupr_out=metrics.auc(ro, po), average_precision_in=metrics.average_precision_score(1 - y, c), average_precision_out=metrics.average_precision_score(y, -c), roc_fpr=f, roc_tpr=t)
r = np.random.RandomState(0)
cs = [('continuous', r.beta(5, 1, 60), r.beta(2, 2, 40)), ('ties (rounded to .1)', r.beta(5, 1, 60).round(1), r.beta(2, 2, 40).round(1)), ('saturated at 1 (>5% OOD tie with ID)', np.r_[np.ones(50), r.rand(10)], np.r_[np.ones(8), r.rand(32)]), ('all equal', np.ones(5), np.ones(4)), ('perfect', np.linspace(.8, 1, 20), np.linspace(0, .5, 20)), ('inverted', np.linspace(0, .5, 20), np.linspace(.8, 1, 20)), ('many exact zeros', np.r_[np.zeros(3), r.rand(57)], np.r_[np.zeros(30), r.rand(10)]), ('one each', np.array([.7]), np.array([.2])), ('collinear steps (drop_intermediate changes FPR)', np.repeat(np.arange(20) / 20, 5), np.repeat(np.arange(20) / 20, 3)), ('exact 20 OOD (0.95 reached exactly)', r.rand(30), r.rand(20))]
out = [dict(name=n, **oo(a, b)) for n, a, b in cs]
for q in out: print(q['name'], q['auroc'], q['fpr_at_95'], q['fpr_at_95_no_drop'], q['aupr_in'], q['aupr_out'])
dump('metrics.json', out)
# 10 full initialisation of a network from given uniforms/noise + 20 training steps (float64, two mini-batches)
g = torch.Generator().manual_seed(21); Xd = torch.cat([torch.randn(10, 2, generator=g) * .3 + torch.tensor(c) for c in ([0., 0.], [2., 0.], [0., 2.])]); yd = torch.arange(3).repeat_interleave(10)
pm = torch.randperm(30, generator=g); Xd, yd = Xd[pm], yd[pm]
m = M.MLRBFN(2, [5, 4], 6, 3, 2, torch.float64, 3); rec = dict(k=2, recovery=1.1, data=Xd, labels=yd, init_batch='rows 0..19: first 10 centroids, last 10 beta', kmeans_iters=100, layers=[]); x = Xd[:20]; dpp = torch.ones(20)
with torch.no_grad():
    for l in m.layers:
        n = len(l.beta); us = torch.rand(n - 1, generator=g); nz = 1e-5 * torch.randn(n - 1, x.shape[1], generator=g); D = x[:10]; c = torch.empty(n, x.shape[1]); c[0] = D[0]
        for i in range(1, n):
            d = M.dist_k(D, c[:i], 2, False).min(-1).values; cs_ = torch.cumsum(d / d.sum(), 0); c[i] = D[int((cs_ > us[i - 1]).long().argmax())] + nz[i - 1]
        fc = M.webscale_iterations(D, c, 2, 100); l.centroids.copy_(fc); bs, _, _ = M.beta_from(x[10:], fc, 2); l.init_beta.copy_(bs); l.beta.fill_(float(bs))
        rec['layers'].append(dict(n=n, uniforms=us, noise=nz, start=c, centroids=fc, init_beta=float(bs), **({} if l.last else dict(projections=l.projections.clone())))); x, dpp, _ = l(x, dpp)
opt = torch.optim.Adam(m.parameters(), lr=1e-2); ls = []
for t in range(20):
    b = slice(0, 15) if t % 2 == 0 else slice(15, 30); opt.zero_grad(); lo = M.log_bce(m(Xd[b]), yd[b], 3); lo.backward(); opt.step(); ls.append(lo.item())
rec.update(lr=1e-2, losses=ls, final=pars(m, 'v'), final_log_pred=m(Xd), batches='even steps rows 0..14, odd steps rows 15..29')
print('train golden', ls[0], ls[-1]); dump('init_and_train.json', rec)
print(FILES)
