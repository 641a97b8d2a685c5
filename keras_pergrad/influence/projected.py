"""Curvature of random projections of gradients.

As TRAK (Park et al., arXiv 2303.14186) and LoGra (Choe et al., arXiv
2405.13954): the curvature is the mean of the projections' outer products.
"""

import concurrent.futures
import dataclasses
import functools

import numpy as np
import tensorflow as tf

from keras_pergrad.factors import projections
from keras_pergrad.functions.data_passes import run, shown
from keras_pergrad.influence.data import finite
from keras_pergrad.influence.gradient_store import GradientStore
from keras_pergrad.keras_internals.losses.compiled import is_overwritten

# The projections of all training samples, in memory or on disk.


_THREADS = 2
#: So many numbers are widened and multiplied at once: they stay in the cache
#: of a core, and TensorFlow does not spread them over threads.
_PIECE = 2**17


class InMemory:
    """Rows in memory, (n, size)."""

    def __init__(self, rows):
        self._all, self.samples = rows, len(rows)

    def blocks(self, count=4096):
        """Yield (first row, rows)."""
        for first in range(0, self.samples, count):
            yield first, self._all[first : first + count]

    def times(self, others):
        """Return the products with other rows, (m, n)."""
        return others @ self._all.T.astype("float64")

    def gram(self):
        """Return the sum of the rows' outer products, in float64."""
        return _gram(rows for _, rows in self.blocks())


class OnDisk(GradientStore):
    """Rows of a store, which are never held together."""

    def blocks(self):
        """Yield (first row, rows in float32)."""
        for first, rows, scales in self.blocks_as_stored():
            yield first, rows.astype("float32") * scales[:, None]

    def times(self, others):
        """Return the products with other rows, (m, n), in float32."""
        others = tf.constant(others, tf.float32)
        found = np.empty((len(others), self.samples), "float32")
        times = _times(self.size, self.rows_at_once)

        def multiply(number):
            for first, rows, scales in self.blocks_as_stored(number, _THREADS):
                # A tensor of the same memory: convert_to_tensor would copy.
                tensor = tf.experimental.dlpack.from_dlpack(rows.__dlpack__())
                products = times(others, tensor).numpy()
                place = found[:, first : first + len(rows)]
                np.multiply(products, scales, out=place)

        # While one waits for the disk, another one multiplies.
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(multiply, range(_THREADS)))
        return found

    def gram(self):
        """Return the sum of the rows' outer products, kept in the store."""
        return self.kept("gram.npy", lambda: _gram(r for _, r in self.blocks()))


@functools.cache
def _times(size, most):
    """Return a function of (others, rows) to their products, (m, n).

    Others are (m, size), rows (n, size) in half precision, at most `most`.
    """
    step = max(1, _PIECE // size)

    def times(others, rows):
        products = []
        for first in range(0, most, step):
            # One after the other, or all are widened before the first product.
            with tf.control_dependencies(products[-1:]):
                piece = tf.cast(rows[first : first + step], tf.float32)
            products.append(tf.matmul(others, piece, transpose_b=True))
        return tf.concat(products, 1)

    signature = [
        tf.TensorSpec([None, size], tf.float32),
        tf.TensorSpec([None, size], tf.float16),
    ]
    return tf.function(times, signature, autograph=False)


def _gram(blocks):
    total = 0.0
    for rows in blocks:
        rows = tf.convert_to_tensor(rows)
        product = tf.matmul(rows, rows, transpose_a=True)
        total = total + product.numpy().astype("float64")
    return np.asarray(total)


# Influence from random projections of gradients, kept for all samples.
#
# As TRAK (Park et al., arXiv 2303.14186) and LoGra (Choe et al., arXiv
# 2405.13954): the curvature is the mean of the projections' outer products.


#: Of the mean eigenvalue of the curvature.
_SHARE = 0.1
_TESTS = 256


class Projected:
    """Scores of one checkpoint from projections.

    Args:
        model, batches, verbose: as for `InWeightSpace`; without `batches`
            the rows are those of a store.
        size: how many numbers a gradient becomes.
        damping: a number; None: a tenth of the mean eigenvalue.
        seed: of the projections.
        rows: of training samples, `OnDisk`; None: made at the first question.
    """

    def __init__(self, model, batches, size, damping, seed, verbose, rows=None):
        self._model, self._batches = model, batches
        shapes = tuple(map(tuple, shapes_of(model)))
        self._what = _Project(shapes, size, seed)
        self._damping, self._verbose = damping, verbose
        self._rows, self._factor = rows, None

    def scores(self, tests):
        """Return tests · (K + damping)⁻¹ · training projections, (m, n)."""
        self._fit()
        found, first = [], 0
        for batch in tests(_TESTS):
            rows = self.project(batch, first).astype("float64")
            found.append(self._rows.times(self._solved(rows)))
            first += len(rows)
        return np.concatenate(found)

    def self_influence(self):
        """Return the same of each training sample with itself, (n,)."""
        self._fit()
        return np.concatenate(
            [
                np.sum(rows * self._solved(rows.astype("float64")), 1)
                for _, rows in self._rows.blocks()
            ]
        )

    def save(self, path, shard, about, samples):
        """Build what is missing of a part of a store; return the store."""
        first = next(iter(self._batches))
        size = self.project(first, 0).shape[1]
        rows = len(tf.nest.flatten(first[0])[0])
        about = {**about, "rows": rows, "samples": samples, "size": size}
        what = {
            **dataclasses.asdict(self._what),
            "shapes": shapes_of(self._model),
        }
        store = OnDisk(path, {**what, **about})
        missing = set(store.missing(shard))
        if missing:
            batches = _From(self._batches, min(missing), max(missing) + 1)
            for number, batch in enumerate(
                shown(batches, self._verbose), min(missing)
            ):
                if number in missing:
                    store.write(number, self.project(batch, number * rows))
        if not store.missing():
            self._rows, self._factor = store, None
        return store

    def project(self, batch, first):
        """Return the projections of a batch's gradients, (n, size)."""
        data = (*batch, None, 0)
        (parts,) = run(
            self._what, self._model, data, "vectorized", False, tf.zeros([])
        )
        rows = [p.numpy().astype("float32") for p in parts if p is not None]
        return finite(np.concatenate(rows, 1), first)

    def _fit(self):
        if self._rows is None:
            found, first = [], 0
            for batch in shown(self._batches, self._verbose):
                found.append(self.project(batch, first))
                first += len(found[-1])
            self._rows = InMemory(np.concatenate(found))
        if self._factor is None:
            gram = self._rows.gram() / self._rows.samples
            damping = self._damping
            if damping is None:
                damping = _SHARE * np.trace(gram) / len(gram)
            try:
                matrix = gram + damping * np.eye(len(gram))
                self._factor = np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:
                raise ValueError(
                    "The projected curvature plus the damping expected to be "
                    f"positive definite. Received: damping={damping:g} with "
                    f"{self._rows.samples} samples and {len(gram)} numbers. "
                    "Pass a larger `damping`, or None."
                ) from None

    def _solved(self, rows):
        return tf.linalg.cholesky_solve(self._factor, rows.T).numpy().T


@dataclasses.dataclass(frozen=True)
class _Project:
    """What a pass makes of factors: their projections."""

    shapes: tuple
    projection_size: int
    seed: int

    def of_factors(self, factors, n, more):
        """Return the projections of each variable, (n, its size)."""
        del more
        maps = projections(self.shapes, self.projection_size, self.seed)
        return [
            f and (rows := f.project(m)) * tf.cast(n, rows.dtype)
            for f, m in zip(factors, maps, strict=True)
        ]


class _From:
    """The batches between two numbers."""

    def __init__(self, batches, first, stop):
        self._batches, self._first = batches, first
        self.count = stop - first

    def __iter__(self):
        batches = self._batches.beginning(self._first)
        for _, batch in zip(range(self.count), batches):
            yield batch


def shapes_of(model):
    """Return the shapes of the variables whose gradients are projected."""
    return [
        list(v.shape)
        for v in model.trainable_variables
        if not is_overwritten(v)
    ]


def samples_of(batches):
    """Return how many samples all batches have; a data set is read once."""
    if hasattr(batches, "samples"):
        return batches.samples
    return sum(len(tf.nest.flatten(batch[0])[0]) for batch in batches)
