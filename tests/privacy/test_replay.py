"""What one unit moves in private training is what is accounted for."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.keras_internals.data.batches import PaddedBatch
from keras_pergrad.keras_internals.state.saved import AggregationState
from keras_pergrad.privacy import model_check, training
from tests.hunt.planting import Fault
from tests.marks import few
from tests.privacy.replay import CLIP, NOISE, N, Setting, check

layers = keras.layers
falling = keras.optimizers.schedules.PiecewiseConstantDecay([2], [4.0, NOISE])
CLIPPINGS = {
    "model": kpg.ClippedMean(CLIP),
    "layer": kpg.ClippedMean(CLIP, per="layer"),
    "variable": kpg.ClippedMean(CLIP, per="variable"),
    "automatic": kpg.privacy.AutomaticClippedMean(CLIP),
    "adaptive": kpg.privacy.AdaptiveClippedMean(CLIP),
}
USERS = {
    "user_ids": np.array([0, 1, 0, 2, 0, 3, 0, 1, 2, 3, 4, 4]),
    "samples_per_user": 2,
    "batch_size": 3,
}


CORRELATED = {"noise": "correlated", "bands": 3, "steps": 6}
XLA = {"jit_compile": True}
# For every change: each value of each argument once.
SETTINGS = {
    "poisson": Setting(),
    "fixed, by layer": Setting(
        {"sampling": "fixed", "clipping": CLIPPINGS["layer"]}, unit=(0,)
    ),
    "shuffled, by variable, XLA": Setting(
        {"sampling": "shuffled", "clipping": CLIPPINGS["variable"]},
        compiled=XLA,
    ),
    "adaptive, microbatches": Setting(
        {"clipping": CLIPPINGS["adaptive"], "microbatch_size": 2},
        weighted=False,
    ),
    "automatic, single samples, a schedule": Setting(
        {
            "clipping": CLIPPINGS["automatic"],
            "method": "per_sample",
            "noise_multiplier": falling,
        },
        unit=(0,),
    ),
    "users": Setting(USERS, unit=(0, 2, 4, 6)),
    "cyclic, kept noise": Setting(CORRELATED),
    "ordered, redrawn noise, XLA": Setting(
        {**CORRELATED, "sampling": "ordered", "earlier_noise": "redrawn"},
        compiled=XLA,
    ),
}


def network(*hidden):
    """A function that makes a model with some layers in it."""

    def make():
        inputs = keras.Input((3,))
        x = inputs
        for layer in hidden:
            x = layer()(x)
        return kpg.PerGradModel(inputs, layers.Dense(1)(x))

    return make


class AddsMean(layers.Layer):
    """Adds the mean of its inputs to the loss."""

    def call(self, x):
        self.add_loss(keras.ops.mean(x**2))
        return x


class KeepsMean(layers.Layer):
    """Keeps the mean of the batch, as batch normalization does."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], trainable=False)

    def call(self, x):
        self.mean.assign(keras.ops.mean(x, 0))
        return x


dense = lambda **options: lambda: layers.Dense(4, **options)  # noqa: E731
OTHERS = {
    "eager": Setting(compiled={"run_eagerly": True}),
    "steps at once": Setting(compiled={"steps_per_execution": 3}),
    "all examples": Setting({"sampling": "fixed", "batch_size": N}),
    "users, a schedule": Setting(
        {**USERS, "noise_multiplier": falling}, unit=(0, 2, 4, 6)
    ),
    "users, XLA": Setting(USERS, unit=(0, 2, 4, 6), compiled=XLA),
    "a falling clip norm": Setting(
        {
            "clipping": kpg.ClippedMean(
                keras.optimizers.schedules.PiecewiseConstantDecay(
                    [2], [2 * CLIP, CLIP]
                )
            )
        }
    ),
    "a convolution": Setting(
        make=network(
            lambda: layers.Reshape((3, 1)),
            lambda: layers.Conv1D(4, 2, activation="leaky_relu"),
            layers.Flatten,
        )
    ),
    "a recurrent layer": Setting(
        make=network(
            lambda: layers.Reshape((3, 1)),
            lambda: layers.LSTM(3, recurrent_activation="sigmoid"),
        ),
        # Gates that are shut have no gradient, so the bound is that of a rest.
        attains=False,
    ),
    "regularisers": Setting(make=network(dense(kernel_regularizer="l2"))),
    # The unit's rows come last: the draws of the others are the same.
    "dropout": Setting(make=network(dense(), lambda: layers.Dropout(0.5))),
    "add_loss": Setting(make=network(dense(), AddsMean)),
    "add_loss, XLA": Setting(
        make=network(dense(), AddsMean), compiled=XLA, pads=False
    ),
    "add_loss, single samples": Setting(
        {"method": "per_sample"}, make=network(dense(), AddsMean)
    ),
    "add_loss, microbatches": Setting(
        {"microbatch_size": 2}, make=network(dense(), AddsMean)
    ),
    "bfloat16": Setting(
        make=network(dense(dtype="mixed_bfloat16")), rounding=1e-2
    ),
    "bfloat16, single samples": Setting(
        {"method": "per_sample"},
        make=network(dense(dtype="mixed_bfloat16")),
        rounding=1e-2,
    ),
    "Adam": Setting(compiled={"optimizer": "adam"}),
}
WAYS = {
    "at once": {},
    "microbatches": {"microbatch_size": 2},
    "single samples": {"method": "per_sample"},
    "single samples in microbatches": {
        "method": "per_sample",
        "microbatch_size": 2,
    },
}
PRODUCT = {
    f"{sampling}, {clipping}, {way}{', XLA' * jit_compile}": Setting(
        {"sampling": sampling, "clipping": CLIPPINGS[clipping], **WAYS[way]},
        unit=(N - 1,) if jit_compile else (0,),
        compiled={"jit_compile": jit_compile},
        # No exchange moves both the sum and the count as far as they can.
        attains=(sampling, clipping) != ("fixed", "adaptive"),
    )
    for sampling, clipping, way, jit_compile in itertools.product(
        ("poisson", "fixed", "shuffled"), CLIPPINGS, WAYS, (False, True)
    )
}
ALL = SETTINGS | OTHERS | PRODUCT


@pytest.mark.parametrize("name", few([*ALL], [*SETTINGS]))
def test_a_unit_moves_no_more_than_is_accounted_for(name):
    check(ALL[name])


# Faults.


def last_unclipped(right):
    def weights(self, norms):
        found = right(self, norms)
        return tf.concat([found[:-1], tf.ones_like(found[-1:])], 0)

    return weights


def by_the_largest(right):
    def weights(self, norms):
        norms = tf.where(tf.math.is_finite(norms), norms, 0.0)
        return right(self, tf.ones_like(norms) * tf.reduce_max(norms))

    return weights


def not_finite_let_through(right):
    return lambda self, norms: CLIP / tf.maximum(norms, CLIP)


def divided_by_the_actual_size(right):
    def finish(self, gradients, n, state=None):
        actual = tf.cast(tf.maximum(n, 1), "float32")
        size = tf.cast(self.expected_batch_size, "float32")
        return [g * size / actual for g in right(self, gradients, n, state)]

    return finish


def noise_twice(right):
    def finish(self, gradients, n, state=None):
        gradients = right(self, gradients, n, state)
        return right(self, gradients, self.expected_batch_size, state)

    return finish


def noise_on_the_sum_and_beside(right):
    def finish(self, gradients, n, state=None):
        released = right(self, gradients, n, state)
        return [g + tf.random.normal(tf.shape(g)) for g in released]

    return finish


def no_noise(right):
    def normal(self, like, deviation):
        return right(self, like, deviation) * 0

    return normal


def the_same_noise(right):
    def normal(self, like, deviation):
        right(self, like, deviation)
        draw = tf.random.stateless_normal(tf.shape(like), [1, 2])
        return draw * tf.cast(deviation, draw.dtype)

    return normal


def counted_as_one(right):
    def observe(self, norms, state):
        right(self, norms, state)
        state.advance("seen", tf.convert_to_tensor(state.seen))

    return observe


def all_rows(right):
    return lambda total, *arguments: np.arange(total)


def _fault(name, owner, attribute, make, found_by, setting=SETTINGS["poisson"]):
    return Fault(name, owner, attribute, make), found_by, setting


FAULTS = [
    _fault(
        "the last sample of a batch not clipped",
        kpg.ClippedMean,
        "weights",
        last_unclipped,
        "release|moved",
    ),
    _fault(
        "all samples clipped by the largest norm",
        kpg.ClippedMean,
        "weights",
        by_the_largest,
        "moved",
    ),
    _fault(
        "what is not finite let through",
        kpg.ClippedMean,
        "weights",
        not_finite_let_through,
        "release",
    ),
    _fault(
        "division by the actual size",
        kpg.ClippedMean,
        "finish",
        divided_by_the_actual_size,
        "release",
    ),
    _fault(
        "noise added twice",
        kpg.ClippedMean,
        "finish",
        noise_twice,
        "draws of a step",
    ),
    _fault(
        "noise of another source added, too",
        kpg.ClippedMean,
        "finish",
        noise_on_the_sum_and_beside,
        "release",
    ),
    _fault("no noise", AggregationState, "normal", no_noise, "noise"),
    _fault(
        "the same noise in each step",
        AggregationState,
        "normal",
        the_same_noise,
        "noise",
    ),
    _fault(
        "samples of padding counted",
        PaddedBatch,
        "weights",
        lambda right: lambda self, weights, sample_index=None: weights,
        "moved",
        Setting({"method": "per_sample"}, compiled=XLA, weighted=False),
    ),
    _fault(
        "the count of adaptive clipping not centred",
        kpg.privacy.AdaptiveClippedMean,
        "observe",
        counted_as_one,
        "moved",
        SETTINGS["adaptive, microbatches"],
    ),
    _fault(
        "a user's examples not limited",
        training,
        "select_user_rows",
        all_rows,
        "rows of a user",
        SETTINGS["users"],
    ),
    _fault(
        "state of the batch let through",
        model_check,
        "_loss_problems",
        lambda right: lambda *arguments: [*right(*arguments)][:0],
        "state with the unit",
        Setting(make=network(KeepsMean)),
    ),
]
NAMES = [fault.name for fault, _, _ in FAULTS]


@pytest.mark.parametrize("name", few(NAMES, NAMES[:1]))
def test_faults_are_found(name):
    fault, found_by, setting = FAULTS[NAMES.index(name)]
    with fault.planted(), pytest.raises(AssertionError, match=found_by):
        check(setting)
