"""Influence against retraining, and beside dattri and kronfluence.

    python -m benchmarks.extras.influence loo|lds|labels|store [--torch PYTHON]

The figures are in benchmarks/results/influence.md. Needs scikit-learn, and for
the peers the environment of `requirements-torch.txt` with dattri and
kronfluence.
"""

import argparse
import os
import pathlib
import subprocess
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.harness.process import ROOT, interpreter

_KINDS = ("exact", "ekfac", "kfac", "projected", "none")


def digits(train, test, seed=0):
    """Return (x, y) of training and test samples, in 0 to 1."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    rows = order[:train], order[train : train + test]
    return [((x[r] / 16).astype("float32"), y[r].astype("int64")) for r in rows]


def loo(left=100, l2=1e-3):
    """Correlation with leave-one-out retraining of a logistic regression."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = digits(600, 100)
    x, x_test = x.astype("float64"), x_test.astype("float64")
    penalty = keras.regularizers.L2(l2)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(10, kernel_regularizer=penalty)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    newton = _Newton(x, y, l2)
    best = newton.fit(np.zeros(650), np.ones(600), 30)
    model.set_weights([best[:640].reshape(64, 10), best[640:]])
    chosen = np.random.default_rng(0).choice(600, left, replace=False)
    before, changes = _losses(best, x_test, y_test), []
    for j in chosen:
        weights = np.ones(600)
        weights[j] = 0
        without = newton.fit(best, weights, 4)
        changes.append(_losses(without, x_test, y_test) - before)
    truth = np.transpose(changes)
    for curvature in _KINDS:
        damping = {"exact": 1e-6, "projected": 1e-3}.get(curvature)
        begun = time.perf_counter()
        influence = kpg.influence.Influence(
            model, x, y, curvature=curvature, damping=damping, verbose=0
        )
        found = influence.scores(x_test, y_test)[:, chosen]
        took = time.perf_counter() - begun
        all_pairs = np.corrcoef(found.ravel(), truth.ravel())[0, 1]
        each = [np.corrcoef(a, b)[0, 1] for a, b in zip(found, truth)]
        print(
            f"| {curvature} | {all_pairs:.3f} | {np.mean(each):.3f} "
            f"| {took:.2f} s |"
        )


class _Newton:
    """Logistic regression, by Newton's method in NumPy."""

    def __init__(self, x, y, l2):
        self.x = np.concatenate([x, np.ones((len(x), 1))], 1)
        self.y, self.l2 = np.eye(10)[y], np.full(650, 2 * l2)
        self.l2[640:] = 0

    def fit(self, theta, weights, steps):
        n = len(self.x)
        for _ in range(steps):
            logits = self.x @ theta.reshape(65, 10)
            chances = np.exp(logits - logits.max(1, keepdims=True))
            chances /= chances.sum(1, keepdims=True)
            slopes = (chances - self.y) * weights[:, None] / n
            gradient = (self.x.T @ slopes).ravel() + self.l2 * theta
            if np.abs(gradient).max() < 1e-11:
                break
            hessian = np.zeros((65, 10, 65, 10))
            for c in range(10):
                for e in range(c, 10):
                    each = chances[:, c] * ((c == e) - chances[:, e])
                    each = each * weights / n
                    part = self.x.T @ (each[:, None] * self.x)
                    hessian[:, c, :, e] = hessian[:, e, :, c] = part
            hessian = hessian.reshape(650, 650) + np.diag(self.l2 + 1e-10)
            theta = theta - np.linalg.solve(hessian, gradient)
        return theta


def _losses(theta, x, y):
    logits = x @ theta[:640].reshape(64, 10) + theta[640:]
    logits = logits - logits.max(1, keepdims=True)
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]


def lds(python, halves=50, steps=300):
    """Linear datamodeling scores of an MLP over retrained halves."""
    (x, y), (x_test, y_test) = digits(1000, 100)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    train = _trainer(model, x, y, steps)
    rng = np.random.default_rng(1)
    subsets = np.array([rng.permutation(1000) < 500 for _ in range(halves)])

    def losses():
        logits = model(x_test)
        return keras.losses.sparse_categorical_crossentropy(
            y_test, logits, from_logits=True
        ).numpy()

    truth = []
    for subset in subsets:
        train(subset.astype("float32"))
        truth.append(losses())
    train(np.ones(1000, "float32"))
    print("test loss", losses().mean(), "of halves", np.mean(truth))
    weights = model.get_weights()
    rows = {}
    for curvature in _KINDS:
        for damping in (None, 1e-3, 1e-2, 1e-1):
            if damping is not None and curvature == "none":
                continue
            for _turn in range(2):
                begun = time.perf_counter()
                influence = kpg.influence.Influence(
                    model,
                    x,
                    y,
                    curvature=curvature,
                    damping=damping,
                    batch_size=1000,
                    verbose=0,
                )
                try:
                    scores = influence.scores(x_test, y_test)
                except ValueError as error:
                    print(curvature, damping, str(error)[:150])
                    break
                took = time.perf_counter() - begun
                key = f"keras_pergrad {curvature}", str(damping)
                rows.setdefault(key, []).append((took, scores))
    if python:
        for name, scores in _peers(
            python, weights, x, y, x_test=x_test, y_test=y_test
        ):
            method, damping, _, took = name.split("|")
            rows.setdefault((method, damping), []).append((float(took), scores))
    truth = np.array(truth)
    for (method, damping), turns in rows.items():
        score = _lds(turns[-1][1], subsets, truth)
        times = " / ".join(f"{took:.2f}" for took, _ in turns)
        print(f"| {method} | {damping} | {score:.3f} | {times} s |")


def _trainer(model, x, y, steps):
    begin = model.get_weights()
    variables = model.trainable_variables
    x, y = tf.constant(x), tf.constant(y)

    @tf.function
    def run(weights):
        first = [tf.zeros_like(v) for v in variables]
        second = [tf.zeros_like(v) for v in variables]
        for t in tf.range(1, steps + 1):
            with tf.GradientTape() as tape:
                each = keras.losses.sparse_categorical_crossentropy(
                    y, model(x), from_logits=True
                )
                loss = tf.reduce_sum(each * weights) / tf.reduce_sum(weights)
            slopes = tape.gradient(loss, variables)
            first = [0.9 * m + 0.1 * g for m, g in zip(first, slopes)]
            second = [0.99 * s + 0.01 * g * g for s, g in zip(second, slopes)]
            place = tf.cast(t, tf.float32)
            for v, m, s in zip(variables, first, second):
                step = m / (1 - 0.9**place)
                scale = tf.sqrt(s / (1 - 0.99**place)) + 1e-7
                v.assign_sub(0.01 * step / scale)

    def train(weights):
        model.set_weights(begin)
        run(tf.constant(weights))

    return train


def _lds(scores, subsets, truth):
    """Mean over the tests of the rank correlation over the subsets."""
    predicted = -(subsets.astype("float64") @ scores.T)
    ranks = [np.argsort(np.argsort(a, 0), 0) for a in (predicted, truth)]
    pairs = zip(*(r.T for r in ranks))
    return np.mean([np.corrcoef(a, b)[0, 1] for a, b in pairs])


def _peers(python, weights, x, y, *, x_test, y_test):
    with tempfile.TemporaryDirectory() as folder:
        given = pathlib.Path(folder) / "in.npz"
        out = pathlib.Path(folder) / "out.npz"
        named = {f"w{k}": w for k, w in enumerate(weights)}
        np.savez(
            given,
            arrays=len(weights),
            x_train=x,
            y_train=y,
            x_test=x_test,
            y_test=y_test,
            **named,
        )
        subprocess.run(
            [python, "-m", "benchmarks.peers.torch_influence", given, out],
            cwd=ROOT,
            check=True,
        )
        with np.load(out) as found:
            yield from [(name, found[name]) for name in found.files]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["loo", "lds", "labels", "store"])
    parser.add_argument("--torch", default=interpreter("torch"))
    given = parser.parse_args()
    if given.what == "lds":
        lds(given.torch)
    else:
        {"loo": loo, "labels": labels, "store": store}[given.what]()


def labels():
    """Flipped labels found by self-influence, of digits and of a text task."""
    for name, make in {
        "digits": _flipped_digits,
        "text": _flipped_text,
    }.items():
        model, x, y, flipped = make()
        for curvature in _KINDS:
            damping = {"exact": 1e-2}.get(curvature)
            influence = kpg.influence.Influence(
                model, x, y, curvature=curvature, damping=damping, verbose=0
            )
            try:
                scores = influence.self_influence()
            except ValueError as error:
                print(name, curvature, str(error)[:200])
                continue
            order = np.argsort(-scores)
            tenth = flipped[order[: len(x) // 10]].sum() / flipped.sum()
            print(
                f"| {name} | {curvature} | {_auc(scores, flipped):.3f} "
                f"| {tenth:.0%} |"
            )


def _auc(scores, positive):
    ranks = np.argsort(np.argsort(scores)) + 1
    good, bad = positive.sum(), (~positive).sum()
    return (ranks[positive].sum() - good * (good + 1) / 2) / (good * bad)


def _flip(y, classes, seed=0):
    rng = np.random.default_rng(seed)
    flipped = np.zeros(len(y), bool)
    flipped[rng.choice(len(y), len(y) // 10, replace=False)] = True
    other = (y + rng.integers(1, classes, len(y))) % classes
    return np.where(flipped, other, y), flipped


def _flipped_digits():
    keras.utils.set_random_seed(0)
    (x, right), _ = digits(1500, 100)
    y, flipped = _flip(right, 10)
    penalty = keras.regularizers.L2(1e-3)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(
                32, activation="relu", kernel_regularizer=penalty
            ),
            keras.layers.Dense(10, kernel_regularizer=penalty),
        ]
    )
    return _trained(model, x, y, flipped, 15)


def _flipped_text():
    """Topics of made-up sentences: each has its own words among common ones."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    n, length, topics, own = 1500, 20, 4, 50
    right = rng.integers(0, topics, n)
    x = rng.integers(1, 400, (n, length))
    told = rng.uniform(size=x.shape) < 0.35
    words = 400 + own * right[:, None] + rng.integers(0, own, x.shape)
    x = np.where(told, words, x).astype("int32")
    y, flipped = _flip(right, topics)
    penalty = keras.regularizers.L2(1e-4)
    model = keras.Sequential(
        [
            keras.Input((length,), dtype="int32"),
            keras.layers.Embedding(
                400 + own * topics, 16, embeddings_regularizer=penalty
            ),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(topics, kernel_regularizer=penalty),
        ]
    )
    return _trained(model, x, y, flipped, 15)


def _trained(model, x, y, flipped, epochs):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(x, y, batch_size=64, epochs=epochs, verbose=0)
    return model, x, y, flipped


def store(samples=1_000_000, size=1024, tests=10):
    """The time of a query over that of reading the store once."""
    from keras_pergrad.influence.projected_rows import RowsOnDisk

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        about = {"samples": samples, "size": size, "rows": 10_000}
        rows = RowsOnDisk(folder, about)
        part = rng.normal(size=(about["rows"], size)).astype("float32")
        for chunk in rows.missing():
            rows.write(chunk, part)
        others = rng.normal(size=(tests, size))
        path = pathlib.Path(folder) / "gradients.npy"
        for cold in (True, False):
            times = []
            for _ in range(5):
                each = []
                for ask in (lambda: _read(path), lambda: rows.times(others)):
                    if cold:
                        _forget(path)
                    begun = time.perf_counter()
                    ask()
                    each.append(time.perf_counter() - begun)
                times.append(each)
                print(cold, each)
            read, query = np.median(times, 0)
            kind = "from disk" if cold else "from memory"
            print(
                f"| {kind} | {read:.2f} s | {query:.2f} s "
                f"| {query / read:.2f} |"
            )


def _forget(path):
    """Let the system drop what it holds of a file."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path):
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(2**23)
        while file.readinto(buffer):
            pass


if __name__ == "__main__":
    main()
