"""Models of several tasks, and what they are trained on."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np

import keras_pergrad as kpg
from tests.models import making
from tests.modes import big_batch

layers = keras.layers
ENGINES = big_batch.EXECUTION


def upgrad():
    return kpg.aggregations.UPGrad(norm_eps=0.0, reg_eps=1e-13)


@dataclasses.dataclass
class Case:
    make: Callable
    losses_of_outputs: Callable
    x: np.ndarray
    y: dict
    sample_weight: dict | None = None
    losses: dict | list | None = None
    aggregation: Callable = upgrad

    def mode(self):
        return kpg.ByTask(self.aggregation(), self.losses)


def heads(cls):
    inputs = keras.Input((5,))
    x = layers.Dense(6, "tanh", kernel_regularizer="l2")(inputs)
    x = big_batch.Added(name="added")(x)
    picture = layers.Dense(6, name="flat")(x)
    outputs = {
        "score": layers.Dense(1, name="score")(x),
        "picture": layers.Reshape((2, 3), name="picture")(picture),
        "same": layers.Dense(1, name="same", activity_regularizer="l2")(x),
    }
    return cls(inputs, outputs)


def masked(cls):
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(7, 4, mask_zero=True)(inputs)
    x = layers.Dense(4, "tanh")(x)
    return cls(inputs, {n: layers.Dense(3, name=n)(x) for n in ("a", "b")})


_rng = np.random.default_rng(6)
_SCORE = {**big_batch.TWO, "same": -2 * big_batch.TWO["score"]}
_PLACES = {
    "a": big_batch.PLACES,
    "b": _rng.normal(size=(big_batch.N, 6, 3)),
}
MEAN, WEIGHTED = "sum_over_batch_size", "mean_with_sample_weight"
if keras.__version__ < "3.9":
    WEIGHTED = MEAN


def _kinds():
    return {
        "score": keras.losses.MeanSquaredError("sum"),
        "picture": keras.losses.MeanAbsoluteError(MEAN),
        "same": keras.losses.MeanSquaredError(WEIGHTED),
    }


def _of_positions():
    labels = keras.losses.SparseCategoricalCrossentropy
    return {
        "a": labels(from_logits=True),
        "b": keras.losses.MeanSquaredError(WEIGHTED),
    }


CASES = {
    "kinds": Case(
        heads,
        _kinds,
        big_batch.X,
        y=_SCORE,
        sample_weight={
            "score": big_batch.WEIGHTS,
            "picture": _rng.uniform(size=(big_batch.N, 2)),
            "same": big_batch.WEIGHTS[::-1].copy(),
        },
    ),
    "add_loss": Case(
        heads,
        _kinds,
        big_batch.X,
        y=_SCORE,
        losses={"both": ["picture", "same"], "small": "add_loss/added"},
        aggregation=kpg.aggregations.IMTLG,
    ),
    "masked": Case(
        masked,
        _of_positions,
        big_batch.IDS,
        y=_PLACES,
        sample_weight={
            "a": big_batch.PLACE_WEIGHTS,
            "b": big_batch.PLACE_WEIGHTS[:, ::-1],
        },
    ),
}


def data(name):
    case = CASES[name]
    parts = (case.x, case.y, case.sample_weight)
    return parts if case.sample_weight else parts[:2]


def compiled(name, mode, cls=kpg.PerGradModel, **how):
    """The model of a case, from the same start each time.

    Without a mode it is a `keras.Model`.
    """
    case = CASES[name]
    keras.utils.set_random_seed(3)
    loss = case.losses_of_outputs()
    how["loss_weights"] = dict(zip(loss, [0.3, 2.0, 0.7]))
    how["optimizer"] = keras.optimizers.SGD(0.1, momentum=0.9)
    model = case.make(cls if mode else keras.Model)
    return making.compiled(model, mode, loss, **how)


def trained(name, mode, sizes=(10, 10, 3), **how):
    """Weights and history after training on batches of these sizes."""
    model = compiled(name, mode, **how)
    making.trained(model, big_batch.Batches(data(name), sizes))
    return model.get_weights(), model.history.history


class OwnLoss(kpg.PerGradModel):
    """A loss of its own, which cannot be told apart by task."""

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)
