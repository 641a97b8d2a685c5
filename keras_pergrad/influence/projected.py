"""Curvature of random projections of gradients.

As TRAK (Park et al., arXiv 2303.14186) and LoGra (Choe et al., arXiv
2405.13954): the curvature is the mean of the projections' outer products.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from keras_pergrad.functions.data_passes import with_progress
from keras_pergrad.influence.definiteness import is_definite, rounding_share
from keras_pergrad.influence.gradient_products import (
    pass_of,
    require_finite_rows,
)
from keras_pergrad.influence.projected_factors import project
from keras_pergrad.influence.projected_rows import RowsInMemory, RowsOnDisk
from keras_pergrad.influence.projection import projections

#: The default damping, as a share of the mean eigenvalue of the curvature.
_DAMPING_SHARE = 0.1
_TEST_BATCH_SIZE = 256
_PASS_NAME = "Projected gradients"


class ProjectedInfluence:
    """Scores of one checkpoint from projections.

    `rows` of training samples are those of a store, `RowsOnDisk`, or made at
    first use, from `batches`.
    """

    def __init__(
        self, model, batches, size, *, damping, seed, verbose, rows=None
    ):
        self._model, self._batches = model, batches
        shapes = tuple(map(tuple, projected_shapes(model)))
        self._projection = _ProjectionPass(shapes, size, seed)
        self._damping, self._verbose = damping, verbose
        self._rows, self._factor = rows, None

    def scores(self, make_batches):
        """Return tests · (K + damping)⁻¹ · training projections, (m, n)."""
        self._fit()
        scores, first_row = [], 0
        for batch in make_batches(_TEST_BATCH_SIZE):
            rows = self.project(batch, first_row).astype("float64")
            scores.append(self._rows.times(self._solve(rows)))
            first_row += len(rows)
        return np.concatenate(scores)

    def self_influence(self):
        """Return the same of each training sample with itself, (n,)."""
        self._fit()
        return np.concatenate(
            [
                np.sum(rows * self._solve(rows.astype("float64")), 1)
                for rows in self._rows.blocks()
            ]
        )

    def save(self, path, shard, metadata, *, samples):
        """Build the missing chunks of a shard of a store; return the store."""
        first_batch = next(iter(self._batches))
        size = self.project(first_batch, 0).shape[1]
        chunk_rows = len(tf.nest.flatten(first_batch[0])[0])
        settings = {
            **dataclasses.asdict(self._projection),
            "shapes": projected_shapes(self._model),
            "rows": chunk_rows,
            "samples": samples,
            "size": size,
        }
        store = RowsOnDisk(path, {**settings, **metadata})
        missing = set(store.missing(shard))
        if missing:
            batches = _BatchRange(self._batches, min(missing), max(missing) + 1)
            for number, batch in enumerate(
                with_progress(batches, self._verbose, _PASS_NAME), min(missing)
            ):
                if number in missing:
                    store.write(
                        number, self.project(batch, number * chunk_rows)
                    )
        if not store.missing():
            self._rows, self._factor = store, None
        return store

    def project(self, batch, first_row):
        """Return the projections of a batch's gradients, (n, size)."""
        parts = pass_of(self._projection, self._model, batch, tf.zeros([]))
        rows = [p.numpy().astype("float32") for p in parts if p is not None]
        return require_finite_rows(np.concatenate(rows, 1), first_row)

    def _fit(self):
        if self._rows is None:
            blocks, first_row = [], 0
            for batch in with_progress(
                self._batches, self._verbose, _PASS_NAME
            ):
                blocks.append(self.project(batch, first_row))
                first_row += len(blocks[-1])
            self._rows = RowsInMemory(np.concatenate(blocks))
        if self._factor is None:
            gram = self._rows.gram() / self._rows.samples
            damping = self._damping
            if damping is None:
                damping = _DAMPING_SHARE * np.trace(gram) / len(gram)
            matrix = gram + damping * np.eye(len(gram))
            # The default is far above rounding, if there is any gradient.
            share = 0.0
            if self._damping is not None:
                share = rounding_share(self._model.trainable_variables)
            if not is_definite(matrix, share):
                raise ValueError(
                    "The projected curvature plus the damping expected to be "
                    "positive definite, beyond rounding. Received: "
                    f"damping={damping:g} with {self._rows.samples} samples "
                    f"and {len(gram)} numbers. Pass a larger `damping`, or "
                    "None."
                )
            self._factor = np.linalg.cholesky(matrix)

    def _solve(self, rows):
        return tf.linalg.cholesky_solve(self._factor, rows.T).numpy().T


@dataclasses.dataclass(frozen=True)
class _ProjectionPass:
    """A pass over the data: random projections of the gradients."""

    shapes: tuple
    projection_size: int
    seed: int

    def of_factors(self, factors, n, more):
        """Return the projections of each variable, (n, its size)."""
        del more
        maps = projections(self.shapes, self.projection_size, self.seed)
        return [
            f and (rows := project(f, m)) * tf.cast(n, rows.dtype)
            for f, m in zip(factors, maps, strict=True)
        ]


class _BatchRange:
    """The batches between two numbers."""

    def __init__(self, batches, first, stop):
        self._batches, self._first = batches, first
        self.count = stop - first

    def __iter__(self):
        batches = self._batches.iterate_from(self._first)
        for _, batch in zip(range(self.count), batches):
            yield batch


def projected_shapes(model):
    """Return the shapes of the variables whose gradients are projected."""
    return [list(v.shape) for v in model.trainable_variables]
