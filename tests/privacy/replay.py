"""Replay of private training: what one unit moves on neighbouring data.

A unit is what the guarantee is for: an example, or a user with all examples.
Its data take several forms, from a blank to a gross outlier, and `fit` runs
once with each. The run with plain data is recorded. In the others each release
of the mechanism is replaced by the recorded one, so that all runs have the
same weights in each step; the draws are the same anyway. What still differs is
what the unit contributes to the mechanism: at most the sensitivity that the
accounting assumes. All else, such as the state of layers, must be equal.
(arXiv 2602.17454.)

A setting is a row: `Setting(arguments, ...)`. `whitened` turns what is released
in a step into numbers whose noise has the deviation 1; if it is correlated over
steps, the strategy of `check_strategy` makes its draws independent.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.modes import sums
from keras_pergrad.modes.microbatches import part_sizes
from keras_pergrad.privacy.draws import make_key
from keras_pergrad.privacy.ledger import Ledger
from keras_pergrad.privacy.private_mean import PrivateMean
from keras_pergrad.privacy.selections import REPLACE
from tests.models import making
from tests.privacy.tiny import compile_privately, made_of, private

N, SIZE, CLIP, NOISE = 12, 2, 0.5, 2.0
#: With it the units below are in some batches, alone in one, and one is empty.
SEED = 955
_rng = np.random.default_rng(6)
# The first column tells the rows apart and has the same numbers in all forms.
X = _rng.normal(size=(N, 3)).astype("float32")
ROW_OF = {float(first): row for row, first in enumerate(X[:, 0])}
Y = _rng.normal(size=(N, 1)).astype("float32")
WEIGHTS = np.linspace(0.5, 2, N).astype("float32")


def network(*hidden):
    """A function that makes a model with some layers in it."""
    return lambda: making.net(
        *(layer() for layer in hidden),
        shape=(3,),
        units=1,
        cls=kpg.PerGradModel,
    )


# With it outliers have large gradients in each variable.
plain = network(lambda: keras.layers.Dense(4, activation="leaky_relu"))


@dataclasses.dataclass(frozen=True)
class Setting:
    """A row of the table.

    Attributes:
        arguments: of `PrivateTraining`, besides the defaults of `training`.
        unit: the rows that are the unit's.
        compiled: arguments of `compile`.
        weighted: whether the examples have weights.
        make: the function that makes the model.
        attains: whether an outlier comes as far as the sensitivity.
        pads: whether batches are padded to a few sizes for XLA.
        rounding: by how much of the sensitivity the gradients of the others
            are rounded differently, in a batch of another size.
    """

    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    unit: tuple[int, ...] = (N - 1,)
    compiled: dict[str, Any] = dataclasses.field(default_factory=dict)
    weighted: bool = True
    make: Callable[[], Any] = plain
    attains: bool = True
    pads: bool = True
    rounding: float = 1e-4

    def training(self):
        clip = {} if "clipping" in self.arguments else {"clip_norm": CLIP}
        plan = {"samples": N, "batch_size": SIZE, "noise_multiplier": NOISE}
        return private(**{"seed": SEED, **plan, **clip, **self.arguments})


PLAIN, BLANK = "plain", "blank"
FORMS = PLAIN, "gross", "opposite", "not finite", "heavy", BLANK


def put(form, x, y, weights, unit):
    """Put the form of a unit into the data."""
    if form in ("gross", "opposite"):
        x[unit, 1:] *= 100
        y[unit] = 1e4 if form == "gross" else -1e4
    elif form == "not finite":
        x[unit, 1], x[unit, 2] = np.nan, np.inf
    elif form == "heavy":
        weights[unit] = 1e20


@dataclasses.dataclass
class Step:
    """What went into a step, and what came out of its mechanism.

    Attributes:
        rows: the rows of the batch.
        draws: the noise, a list of (draw, deviation).
        contributed: the sums of the clipped gradients, one per variable.
        released: the gradients with noise; the next clip norm is the last if
            it is estimated. Those of this run's own data.
        state: all that is kept after the step, but the metrics.
    """

    rows: list[int]
    draws: list[Any] = dataclasses.field(default_factory=list)
    contributed: list[Any] = dataclasses.field(default_factory=list)
    released: list[Any] | None = None
    state: list[Any] = dataclasses.field(default_factory=list)


class Recorder:
    """The steps of each run; later runs get the releases of the first."""

    def __init__(self):
        self.runs: dict[str, list[Step]] = {}
        self.sizes: set[int] = set()
        self.steps: list[Step] = []

    def see_batch(self, x):
        self.steps.append(Step([ROW_OF[float(first)] for first in x[:, 0]]))

    def see_draw(self, draw, deviation):
        self.steps[-1].draws.append((draw, float(deviation)))

    def exchange(self, n, *values):
        """Take what a step has released; return what is to be released."""
        step, count = self.steps[-1], int(values[0])
        means, step.released = values[1 : 1 + count], [*values[1 + count :]]
        step.contributed = [g * n if n else np.zeros_like(g) for g in means]
        return self.runs[PLAIN][len(self.steps) - 1].released


@contextlib.contextmanager
def recording(recorder):
    """Let a recorder see batches, draws and releases of what is traced here."""
    finish, gradient_noise = PrivateMean.finish, Ledger.gradient_noise

    def seen_noise(self, index, like, deviation):
        draw = gradient_noise(self, index, like, deviation)
        seen = [draw, tf.cast(deviation, "float32")]
        tf.numpy_function(recorder.see_draw, seen, [])
        return draw

    def seen_finish(self, gradients, n, state=None):
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        released = finish(self, gradients, n, state)
        if "clip" in state.kept:
            released = [*released, tf.convert_to_tensor(state.clip)]
        values = [n, len(gradients), *gradients, *released]
        dtypes = [tensor.dtype for tensor in released]
        exchanged = tf.numpy_function(recorder.exchange, values, dtypes)
        for frozen, tensor in zip(exchanged, released, strict=True):
            frozen.set_shape(tensor.shape)
        if "clip" in state.kept:
            state.clip.assign(exchanged.pop())
        return exchanged

    class SeenBatch(sums.PaddedBatch):
        def __init__(self, batch, sizes=()):
            super().__init__(batch, sizes)
            rows = tf.shape(self.present)[0]
            tf.numpy_function(lambda n: recorder.sizes.add(int(n)), [rows], [])

    with (
        mock.patch.object(Ledger, "gradient_noise", seen_noise),
        mock.patch.object(PrivateMean, "finish", seen_finish),
        mock.patch.object(sums, "PaddedBatch", SeenBatch),
    ):
        yield


def kept_variables(model):
    ledger = model.aggregation_state
    return [
        *model.variables,
        *model.optimizer.variables,
        *(getattr(ledger, name) for name in ledger.kept),
    ]


def replay(setting):
    """Train with each form of the unit; return training, model, recorder."""
    training, recorder = setting.training(), Recorder()
    keras.utils.set_random_seed(4)
    model = setting.make()
    settings = {
        "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
        "loss": "mse",
        **setting.compiled,
    }
    compile_privately(model, training, **settings)
    model.optimizer.build(model.trainable_variables)
    train_step = model.train_step

    def seen_step(data):
        tf.numpy_function(recorder.see_batch, [data[0]], [])
        return train_step(data)

    model.train_step = seen_step
    start = [np.array(variable) for variable in kept_variables(model)]

    def keep(batch, logs):
        state = [np.array(variable) for variable in kept_variables(model)]
        recorder.steps[-1].state = state

    keeps = keras.callbacks.LambdaCallback(on_train_batch_end=keep)
    with recording(recorder):
        for form in forms_of(setting, training):
            for variable, value in zip(kept_variables(model), start):
                variable.assign(value)
            data = data_of(setting, training, form, recorder=recorder)
            callbacks = [training.callback, keeps]
            model.fit(data, callbacks=callbacks, verbose=0)
    return training, model, recorder


def forms_of(setting, training):
    left_out = set() if setting.weighted else {"heavy"}
    if relation(training) == REPLACE:
        left_out.add(BLANK)
    return [form for form in FORMS if form not in left_out]


def relation(training):
    return training.mechanism.selection.relation(training.mechanism)


def data_of(setting, training, form, *, recorder):
    """Return the batches of a form, and tell the recorder of it."""
    arrays = X.copy(), Y.copy(), WEIGHTS.copy()
    put(form, *arrays, list(setting.unit))
    recorder.steps = recorder.runs[form] = []
    data = training.batches(*arrays if setting.weighted else arrays[:2])
    if form == BLANK:
        rows = np.arange(N)
        if data.users is not None:
            rows = data.users.rows(make_key(SEED))
        data.excluded_rows = np.flatnonzero(np.isin(rows, setting.unit))
    return data


def check(setting):
    """Train with each form of the unit, and compare the runs."""
    training, model, recorder = replay(setting)
    runs = recorder.runs
    if setting.pads:
        sizes = training.gradient_mode.aggregation.batch_sizes()
        sizes = part_sizes(sizes, training.microbatch_size)
        assert recorder.sizes <= {*sizes}, "sizes of batches"
    for steps in runs.values():
        check_equal(setting, steps, runs[PLAIN])
        check_releases(training, steps)
    check_noise(training, runs[PLAIN])
    check_distances(setting, training, model, runs=runs)
    if training.mechanism.strategy is not None:
        check_strategy(setting, training, runs)


def check_equal(setting, steps, recorded):
    """All but the unit's rows and what follows from them is equal."""
    for step, other in zip(steps, recorded, strict=True):
        rows, others = (
            [row for row in s.rows if row not in setting.unit]
            for s in (step, other)
        )
        assert rows == others
        draws = zip(step.draws, other.draws, strict=True)
        for (draw, deviation), (same, as_large) in draws:
            np.testing.assert_array_equal(draw, same)
            assert deviation == as_large
        for value, same in zip(step.state, other.state, strict=True):
            unequal = "state with the unit"
            np.testing.assert_array_equal(value, same, err_msg=unequal)


def check_releases(training, steps):
    """Each step adds the noise once, and divides by a public number."""
    size = training.mechanism.batch_size
    for step in steps:
        assert len(step.draws) == len(step.released), "draws of a step"
        for contributed, released, (draw, deviation) in zip(
            step.contributed, step.released, step.draws
        ):
            error = (released * size - contributed - draw) / deviation
            np.testing.assert_allclose(error, 0, atol=1e-4, err_msg="release")


def check_noise(training, steps):
    """The draws have the deviation that they are given."""
    noise = [joined(draw / d for draw, d in step.draws) for step in steps]
    drawn = np.ravel(made_of(training.mechanism.strategy, noise))
    assert abs(drawn.std() - 1) < 4 / np.sqrt(2 * len(drawn)), "noise"
    assert len(np.unique(drawn)) == len(drawn), "noise that was added before"


def check_distances(setting, training, model, *, runs):
    """The unit moves what is released by no more than is accounted for."""
    mechanism = training.mechanism
    groups = training.clipping.groups(model.trainable_variables) or [0]
    root = np.sqrt(max(groups) + 1)
    noise = mechanism.noise(0, len(runs[PLAIN]))
    counts = [np.isin(step.rows, setting.unit).sum() for step in runs[PLAIN]]
    assert 0 in counts or mechanism.is_full_batch
    assert max(counts) > 0
    assert max(counts) <= mechanism.examples_per_user, "rows of a user"
    seen = {row for step in runs[PLAIN] for row in step.rows}
    assert len(seen & {*setting.unit}) <= mechanism.examples_per_user
    exchanges = relation(training) == REPLACE
    pairs = [*itertools.combinations(runs, 2)]
    if not exchanges:
        pairs = [pair for pair in pairs if BLANK in pair]
    largest = np.zeros(max(groups) + 1)
    for pair in pairs:
        for t, (one, other) in enumerate(zip(*(runs[form] for form in pair))):
            moved = distances(training, groups, one, other=other)
            bound = counts[t] * (2 if exchanges else 1) / (noise[t] * root)
            if not counts[t]:
                assert not moved.any(), f"moved without the unit: {pair}"
                continue
            within = moved <= bound * (1 + setting.rounding)
            assert within.all(), f"moved {moved} of {bound}: {pair}, step {t}"
            largest = np.maximum(largest, moved / bound)
    if setting.attains:
        assert (largest >= 0.9).all(), ("not attained", largest)


def check_strategy(setting, training, runs):
    """The unit moves all steps together by no more than is accounted for."""
    mechanism, steps = training.mechanism, len(runs[PLAIN])
    strategy, period = mechanism.strategy, mechanism.steps_per_epoch
    if mechanism.sampling == "ordered":
        bound = strategy.sensitivity(steps, period)
    else:
        looks = -(-steps // strategy.bands)
        bound = strategy.sensitivity(steps, steps) * looks**0.5
    for form in runs:
        totals, others = (
            np.stack([joined(step.contributed) for step in run])
            for run in (runs[form], runs[BLANK])
        )
        moved = (totals - others).astype(float) / CLIP
        norm = np.linalg.norm(made_of(strategy, moved))
        assert norm <= bound * (1 + setting.rounding), ("strategy", form)


def joined(arrays):
    return np.concatenate([array.ravel() for array in arrays])


def distances(training, groups, one, *, other):
    """How far two steps' releases are apart, in deviations, by group."""
    squares = np.zeros(max(groups) + 1)
    whites = (whitened(training, step) for step in (one, other))
    for k, (a, b) in enumerate(zip(*whites, strict=True)):
        group = groups[k] if k < len(groups) else 0
        squares[group] += np.sum((a - b) ** 2)
    return np.sqrt(squares)


def whitened(training, step):
    """What a step has released, in units of its noise."""
    size, clipping = training.mechanism.batch_size, training.clipping
    values = [released.astype(float) for released in step.released]
    if len(values) > len(step.contributed):
        # C · exp(−clip_rate · count / size) hides a count with noise.
        values[-1] = -np.log(values[-1]) / clipping.clip_rate
    return [
        value * size / deviation
        for value, (_, deviation) in zip(values, step.draws, strict=True)
    ]
