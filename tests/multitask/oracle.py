"""Aggregations of written-out gradients, step by step or over all subsets."""

import itertools

import numpy as np


def _subsets(numbers):
    for size in range(len(numbers) + 1):
        yield from map(list, itertools.combinations(numbers, size))


def upgrad(rows):
    m = len(rows)
    gramian = rows @ rows.T
    regular = gramian / np.trace(gramian) + 1e-4 * np.eye(m)
    total = np.zeros(rows.shape[1])
    for i in range(m):
        z = _complementary(regular, regular[i], [j for j in range(m) if j != i])
        total += rows[i] + z @ rows
    return total / m


def _complementary(matrix, q, allowed):
    """The only z ≥ 0 with y = M z + q ≥ 0 and z y = 0, over all subsets."""
    for free in _subsets(allowed):
        z = np.zeros(len(q))
        z[free] = np.linalg.solve(matrix[np.ix_(free, free)], -q[free])
        y = matrix @ z + q
        if z.min() >= 0 and min(y[allowed], default=0) >= -1e-13:
            return z
    raise AssertionError("no solution")


def mgda(rows):
    weights = np.full(len(rows), 1 / len(rows))
    for _ in range(100):
        now = weights @ rows
        t = np.argmin(rows @ now)
        a, b, c = rows[t] @ now, now @ now, rows[t] @ rows[t]
        if c <= a:
            step = 1.0
        elif b <= a:
            step = 0.0
        else:
            step = (b - a) / (b + c - 2 * a)
        weights = (1 - step) * weights + step * np.eye(len(rows))[t]
        if step < 1e-3:
            break
    return weights @ rows


def _faces(rows):
    """All sets of rows, each with the inverse of its Gramian."""
    for face in _subsets(range(len(rows))):
        if face:
            part = rows[face]
            yield part, np.linalg.inv(part @ part.T)


def shortest(rows):
    """The shortest convex combination: the best of those on all faces."""
    found = []
    for part, inverse in _faces(rows):
        weights = inverse.sum(1) / inverse.sum()
        if weights.min() >= 0:
            found.append(weights @ part)
    return min(found, key=np.linalg.norm)


def cagrad(rows, c=0.5):
    mean = rows.mean(0)
    radius = c * np.linalg.norm(mean)
    best = None
    for part, inverse in _faces(rows):
        b = part @ mean
        p, q = inverse.sum(1), inverse @ b
        # v = μ p - q with ‖Σ v g‖ = radius.
        roots = np.roots([p.sum(), -2 * q.sum(), b @ q - radius * radius])
        for mu in roots[np.isreal(roots)].real:
            v = mu * p - q
            if v.min() >= 0 and v.sum() > 0:
                w = v / v.sum()
                value = w @ b + radius * np.linalg.norm(w @ part)
                if best is None or value < best[0]:
                    best = value, w @ part
    return mean + radius * best[1] / np.linalg.norm(best[1])


def pcgrad(rows, order):
    total = np.zeros(rows.shape[1])
    for i, own in enumerate(rows):
        for j in order[i]:
            if j != i and own @ rows[j] < 0:
                own = own - (own @ rows[j]) / (rows[j] @ rows[j]) * rows[j]
        total += own
    return total / len(rows)


def imtlg(rows):
    lengths = np.linalg.norm(rows, axis=1)
    weights = np.linalg.pinv(rows @ rows.T, hermitian=True) @ lengths
    return weights / weights.sum() @ rows


def aligned(rows):
    left, values, right = np.linalg.svd(rows, full_matrices=False)
    values = values[values > 1e-7 * values[0]]
    k = len(values)
    matrix = values[-1] * left[:, :k] @ right[:k]
    return matrix.mean(0)


def _distances(rows):
    return np.linalg.norm(rows[:, None] - rows[None], axis=2)


def krum(rows, byzantine=1, selected=2):
    nearest = np.sort(_distances(rows), 1)[:, 1 : len(rows) - byzantine - 1]
    chosen = np.argsort(nearest.sum(1))[:selected]
    return rows[chosen].mean(0)


def median(rows, smoothing=1e-3):
    point = rows.mean(0)
    lengths = np.sort(np.linalg.norm(rows, axis=1))
    least = smoothing * lengths[(len(rows) - 1) // 2]
    for _ in range(10_000):
        far = np.maximum(np.linalg.norm(rows - point, axis=1), least)
        point = (rows / far[:, None]).sum(0) / (1 / far).sum()
    return point
