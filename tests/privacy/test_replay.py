"""What one unit moves in private training is what is accounted for."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.modes.padded_batch import PaddedBatch
from keras_pergrad.privacy import model_check
from keras_pergrad.privacy.ledger import Ledger
from keras_pergrad.privacy.users import Users
from tests.hunt.planting import Fault, instead
from tests.marks import few
from tests.privacy.replay import CLIP, NOISE, N, Setting, check, network
from tests.privacy.tiny import AddsMean, InWeight, average

layers = keras.layers
Falling = keras.optimizers.schedules.PiecewiseConstantDecay
falling = Falling([2], [4.0, NOISE])
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


dense = lambda **options: lambda: layers.Dense(4, **options)  # noqa: E731
adding = network(dense(), AddsMean)
half = network(dense(dtype="mixed_bfloat16"))
SINGLE = {"method": "per_sample"}
OTHERS = {
    "eager": Setting(compiled={"run_eagerly": True}),
    "steps at once": Setting(compiled={"steps_per_execution": 3}),
    "all examples": Setting({"sampling": "fixed", "batch_size": N}),
    "users, a schedule": Setting(
        {**USERS, "noise_multiplier": falling}, unit=(0, 2, 4, 6)
    ),
    "users, XLA": Setting(USERS, unit=(0, 2, 4, 6), compiled=XLA),
    "a falling clip norm": Setting(
        {"clipping": kpg.ClippedMean(Falling([2], [2 * CLIP, CLIP]))}
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
    "add_loss": Setting(make=adding),
    "add_loss, XLA": Setting(make=adding, compiled=XLA, pads=False),
    "add_loss, single samples": Setting(SINGLE, make=adding),
    "add_loss, microbatches": Setting({"microbatch_size": 2}, make=adding),
    "bfloat16": Setting(make=half, rounding=1e-2),
    "bfloat16, single samples": Setting(SINGLE, make=half, rounding=1e-2),
    "Adam": Setting(compiled={"optimizer": "adam"}),
}
WAYS = {
    "at once": {},
    "microbatches": {"microbatch_size": 2},
    "single samples": SINGLE,
    "single samples in microbatches": {**SINGLE, "microbatch_size": 2},
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


@pytest.mark.parametrize(
    "name", few([*ALL], [*SETTINGS], killers=["adaptive, microbatches"])
)
def test_a_unit_moves_no_more_than_is_accounted_for(name):
    check(ALL[name])


FAULTS = {}


def fault(owner, attribute, found_by, *, setting=SETTINGS["poisson"]):
    """Lists a wrong function, which is called with the right one in front.

    Args:
        owner, attribute: where it stands.
        found_by: part of the message that tells of it.
        setting: the row of the table with which it is found.
    """

    def listed(wrong):
        name = wrong.__name__.replace("_", " ")
        planted = Fault(name, owner, attribute, instead(wrong))
        FAULTS[name] = planted, found_by, setting
        return wrong

    return listed


@fault(kpg.ClippedMean, "weights", "release|moved")
def last_unclipped(right, self, norms):
    found = right(self, norms)
    return tf.concat([found[:-1], tf.ones_like(found[-1:])], 0)


@fault(kpg.ClippedMean, "weights", "moved")
def by_the_largest(right, self, norms):
    norms = tf.where(tf.math.is_finite(norms), norms, 0.0)
    return right(self, tf.ones_like(norms) * tf.reduce_max(norms))


@fault(kpg.ClippedMean, "weights", "release")
def not_finite_let_through(right, self, norms):
    return CLIP / tf.maximum(norms, CLIP)


@fault(kpg.ClippedMean, "finish", "release")
def divided_by_the_actual_size(right, self, gradients, n, state=None):
    actual = tf.cast(tf.maximum(n, 1), "float32")
    size = tf.cast(self.expected_batch_size, "float32")
    return [g * size / actual for g in right(self, gradients, n, state)]


@fault(kpg.ClippedMean, "finish", "draws of a step")
def noise_twice(right, self, gradients, n, state=None):
    gradients = right(self, gradients, n, state)
    return right(self, gradients, self.expected_batch_size, state)


@fault(kpg.ClippedMean, "finish", "release")
def noise_on_the_sum_and_beside(right, *arguments):
    return [g + tf.random.normal(tf.shape(g)) for g in right(*arguments)]


@fault(Ledger, "gradient_noise", "noise")
def no_noise(right, *arguments):
    return right(*arguments) * 0


@fault(Ledger, "gradient_noise", "noise")
def the_same_noise(right, self, index, like, deviation):
    draw = tf.random.stateless_normal(tf.shape(like), [1, 2])
    return draw * tf.cast(deviation, draw.dtype)


@fault(
    kpg.privacy.AdaptiveClippedMean,
    "observe",
    "moved",
    setting=SETTINGS["adaptive, microbatches"],
)
def counted_as_one(right, self, norms, state):
    right(self, norms, state)
    state.advance("seen", tf.convert_to_tensor(state.seen))


padded = Setting(SINGLE, compiled=XLA, weighted=False)


@fault(PaddedBatch, "weights", "moved", setting=padded)
def padding_counted(right, self, weights, sample_index=None):
    return weights


@fault(Users, "rows", "rows of a user", setting=SETTINGS["users"])
def all_rows_of_a_user(right, self, key):
    return np.arange(len(self.ids))


keeping = Setting(make=network(lambda: InWeight(average)))


@fault(model_check, "_loss_problems", "state with the unit", setting=keeping)
def state_of_the_batch_let_through(right, *arguments):
    return [*right(*arguments)][:0]


@pytest.mark.parametrize("name", few([*FAULTS], [*FAULTS][:1]))
def test_faults_are_found(name):
    planted, found_by, setting = FAULTS[name]
    with planted.planted(), pytest.raises(AssertionError, match=found_by):
        check(setting)
