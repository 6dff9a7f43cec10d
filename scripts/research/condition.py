"""Conditioning of features: x -> (x/||x|| - mean) M, fitted only on training rows."""
import numpy as np

SHRINKAGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def l2(x):
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def class_means(z, y):
    return np.stack([z[y == c].mean(0) for c in range(y.max() + 1)])


def square_distances(z, c):
    return np.maximum((z * z).sum(1)[:, None] - 2 * z @ c.T + (c * c).sum(1), 0)


class Whitening:
    """Optional L2, minus the mean, then M = E (lam + s mean(lam))^-1/2 R.

    lam, E are the eigenpairs of the within-class covariance (divided by N). The shrinkage s is the one of SHRINKAGES under
    which the validation rows are most likely, for Gaussians at the classes' training means:

        L(s) = -1/2 sum_j log(lam_j + s mean(lam)) - 1/2 sum_j v_j / (lam_j + s mean(lam)),

    v_j the mean square of the validation rows' differences from their class means along E_j. R rotates: eigenvectors of the
    second moments of what is whitened, largest eigenvalue first, so that directions that tell the classes apart come first.
    kind = "standardise" divides by standard deviations instead, "centre" by one number (the root of mean(lam)).
    """

    def __init__(self, x, y, xv, yv, norm=True, kind="whiten", shrinkage=None):
        self.norm = norm
        x, xv = (l2(x), l2(xv)) if norm else (x, xv)
        mu = class_means(x, y)
        r = x - mu[y]
        self.mean = x.mean(0)
        if kind == "whiten":
            lam, e = np.linalg.eigh(r.T @ r / len(x))
            lam = np.maximum(lam, 0)
            v = (((xv - mu[yv]) @ e) ** 2).mean(0)
            floor = lambda s: lam + s * lam.mean()
            self.likelihood = {s: -0.5 * (np.log(floor(s)) + v / floor(s)).sum() for s in SHRINKAGES}
            self.shrinkage = shrinkage or max(self.likelihood, key=self.likelihood.get)
            m = e / np.sqrt(floor(self.shrinkage))
        else:
            sd = x.std(0) if kind == "standardise" else np.full(x.shape[1], np.sqrt((r * r).mean()))
            m = np.diag(1 / np.where(sd < 1e-6, 1, sd))
            self.shrinkage = 0
        z = (x - self.mean) @ m
        self.matrix = m @ np.linalg.eigh(z.T @ z)[1][:, ::-1]

    def __call__(self, x):
        return ((l2(x) if self.norm else x) - self.mean) @ self.matrix


class Density:
    """How far a row is from all classes: m(x) = min_c |z - mu_c|^2, and log dep_0 = log sigmoid(4 (r - m) / (r - r50)).

    z is the whitened row, mu_c the training rows' class means; r and r50 are the 0.99 and 0.5 quantiles of m over the
    validation rows. dep_0 is 0.98 at the median, one half at r, and falls like exp(-4 m / (r - r50)) beyond.
    """

    def __init__(self, whiten, x, y, xv):
        self.whiten, self.mu = whiten, class_means(whiten(x), y)
        m = self.distance(xv)
        self.r50, self.r = np.quantile(m, [0.5, 0.99])

    def distance(self, x):
        return square_distances(self.whiten(x), self.mu).min(1)

    def log_dep(self, m):
        return -np.logaddexp(0, 4 * (m - self.r) / (self.r - self.r50))
