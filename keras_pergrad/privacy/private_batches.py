"""The batches of private training, by sample or by user."""

import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.numbers import positive_integer
from keras_pergrad.privacy.mechanism import (
    EXAMPLE,
    SELECTIONS,
    UNIQUE,
    USER,
    draw,
    make_key,
)
from keras_pergrad.privacy.random_access import spec_of

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


# The examples that are used where each user may have only so many.


SAMPLINGS_OF_USERS = [k for k, s in SELECTIONS.items() if s.serves_users]


def unit_of(user_ids):
    """Return whom the guarantee is for, one of `mechanism.UNITS`."""
    if user_ids is None:
        return EXAMPLE
    return UNIQUE if isinstance(user_ids, str) else USER


def rows_of_users(total, user_ids, most, sampling, seed):
    """Return the rows to use if users have several examples, else None."""
    named = user_ids is not None and not isinstance(user_ids, str)
    if named != (most is not None) or (
        isinstance(user_ids, str) and user_ids != UNIQUE
    ):
        given = f"user_ids of type {type(user_ids).__name__}"
        if isinstance(user_ids, str):
            given = f"user_ids={user_ids!r}"
        raise ValueError(
            "Expected `user_ids`, one for each example, together with "
            "`samples_per_user`; or user_ids='unique'. Received: "
            f"{given}, samples_per_user={most!r}"
        )
    if not named:
        return None
    count = len(np.asarray(user_ids))
    if count != total:
        raise ValueError(
            f"Expected {total} `user_ids`, one for each example. "
            f"Received: {count}"
        )
    positive_integer("samples_per_user", most)
    if sampling not in SAMPLINGS_OF_USERS:
        raise ValueError(
            f"With `user_ids` only sampling={SAMPLINGS_OF_USERS[0]!r} is "
            f"accounted for. Received: sampling={sampling!r}"
        )
    return bounded_rows(user_ids, most, seed)


def bounded_rows(user_ids, most, seed=None):
    """Return the rows that are used, sorted; of each user `most`, at random."""
    # A counter that no batch is drawn with.
    bits = np.random.Philox(key=make_key(seed), counter=[0, 0, 0, 2**63])
    generator = np.random.Generator(bits)
    order = generator.permutation(len(user_ids))
    _, users = np.unique(np.asarray(user_ids)[order], return_inverse=True)
    by_user = np.argsort(users, kind="stable")
    counts = np.bincount(users)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    place = np.arange(len(users)) - starts
    return np.sort(order[by_user[place < most]])
