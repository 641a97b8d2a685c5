"""Batches for `fit`, drawn as the accounting assumes."""

import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.privacy.random_access import spec_of
from keras_pergrad.privacy.sampling import draw

#: The number of batches whose rows are drawn together.
_CHUNK = 64


class PrivateBatches:
    """The result of `PrivateTraining.batches`, for `fit(x=...)`."""

    # The ledger of the trained model determines the examples of each batch, so
    # a resumed run draws the batches that come next. Examples `without`, of an
    # audit, are left out as if they had never been there.

    #: Elsewhere they are refused.
    for_private_fit = True

    def __init__(self, source, mechanism, rows=None, without=()):
        self.source = source
        self.mechanism = mechanism
        self.rows = rows
        self.without = np.asarray(without, int)
        self.spec = spec_of(source)

    def __len__(self):
        """How many batches an epoch has."""
        return self.mechanism.steps_per_epoch

    def __repr__(self):
        m = self.mechanism
        return (
            f"PrivateBatches({m.examples} examples, sampling={m.sampling!r}, "
            f"batch_size={m.batch_size})"
        )

    def batch(self, ledger, step, part=0, parts=1):
        """Return the batch of an update, a structure of arrays."""
        return self.source.take(self.drawn(ledger, step, part, parts))

    def drawn(self, ledger, step, part=0, parts=1):
        """Return the rows of the source that are in one batch."""
        phase = len(ledger.phases)
        chosen = draw(self.mechanism, ledger.key, step, phase, part, parts)
        if len(self.without):
            chosen = chosen[~np.isin(chosen, self.without)]
        return chosen if self.rows is None else self.rows[chosen]

    def dataset(self, ledger, strategy):
        """Return what `fit` takes: one epoch, or endless with replicas."""
        parts = strategy.num_replicas_in_sync
        if parts == 1:
            steps = len(self)
            batches = self._generated(ledger, [0], 1, steps)
            known = tf.data.experimental.assert_cardinality(steps)
            return batches.apply(known).prefetch(2)
        self.mechanism.selection.require_parts(self.mechanism, parts)

        def of_worker(context):
            count = parts // context.num_input_pipelines
            first = context.input_pipeline_id * count
            own = range(first, first + count)
            return self._generated(ledger, own, parts, None).prefetch(2)

        return strategy.distribute_datasets_from_function(of_worker)

    def _generated(self, ledger, own, parts, steps):
        """Return batches of some parts in turn, from the ledger's position."""
        begun: list = []

        def rows():
            # Not `updates`: a step may count itself before its batch is drawn.
            step = first = ledger.epoch_start
            while steps is None or step < first + steps:
                for part in own:
                    yield self.drawn(ledger, step, part, parts)
                step += 1

        def batches():
            # Keras may begin an epoch twice, to build the model by a batch.
            length, first = len(own) * len(self), ledger.epoch_start
            for number, chosen in enumerate(rows()):
                epoch, place = divmod(number, length)
                if not place and begun != [(first, epoch)]:
                    begun[:] = [(first, epoch)]
                    self.source.begin_epoch()
                batch = _flat(self.source.take(chosen))
                if place == length - 1:
                    self.source.end_epoch()
                yield batch

        generated = tf.data.Dataset.from_generator
        held = self.source.tensors()
        if held is None:
            examples = generated(batches, output_signature=_flat(self.spec))
            return examples.map(lambda *tensors: _packed(self.spec, tensors))

        def chunks():
            numbers = rows()
            while chunk := list(itertools.islice(numbers, _CHUNK)):
                ends = np.cumsum([0, *map(len, chunk)])
                yield np.concatenate(chunk), ends

        # Python is called rarely, and never for large arrays.
        spec = tf.TensorSpec([None], tf.int64)
        drawn: Any = generated(chunks, output_signature=(spec, spec))
        chosen = drawn.flat_map(
            lambda all_rows, ends: tf.data.Dataset.range(
                tf.size(ends, tf.int64) - 1
            ).map(lambda k: all_rows[ends[k] : ends[k + 1]])
        )
        return chosen.map(
            lambda rows: keras.tree.map_structure(
                lambda t: None if t is None else tf.gather(t, rows), held
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
        )


def _flat(structure):
    """Return the parts of a structure, without None, as a tuple."""
    flat = keras.tree.flatten(structure)
    return tuple(part for part in flat if part is not None)


def _packed(structure, flat):
    """Return the reverse of `_flat`."""
    flat = iter(flat)
    return keras.tree.map_structure(
        lambda part: None if part is None else next(flat), structure
    )
