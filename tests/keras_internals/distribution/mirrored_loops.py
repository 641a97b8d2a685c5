"""MirroredStrategy: steps of one's own, in `strategy.run` and in `fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.keras_internals.distribution.two_devices import (
    X,
    Y,
    assert_equal_copies,
    both,
    check,
    clipped,
    double,
    strategy,
)
from tests.modes import big_batch

WEIGHTS = np.random.default_rng(2).uniform(0.5, 2, len(X))
BATCH = 11


def losses(y, y_pred):
    return keras.losses.mean_squared_error(y, y_pred)


def loss_of(model, with_outputs=False):
    def loss_fn(x, y, sample_weight):
        y_pred = model(x, training=True)
        values = losses(y, y_pred)
        if sample_weight is not None:
            values *= sample_weight
        return (values, y_pred) if with_outputs else values

    return loss_fn


def net(mode, cls=kpg.PerGradModel, loss=None, *, optimizer=None, **arguments):
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(4, "tanh", kernel_regularizer="l2")(inputs)
    model = cls(inputs, keras.layers.Dense(3)(hidden))
    optimizer = optimizer or keras.optimizers.Adam(0.05)
    arguments = {"gradient_mode": mode, "jit_compile": False, **arguments}
    model.compile(optimizer, loss, **arguments)
    optimizer.build(model.trainable_variables)
    return model


def in_a_loop(model, step, weights=None):
    """Trains in `strategy.run`, or without one; the last step's results."""
    place = model.distribute_strategy
    run = tf.function(lambda batch: place.run(step, args=batch))
    data = (X, Y) if weights is None else (X, Y, weights)
    dtype = keras.config.floatx()
    arrays = tuple(a.astype(dtype) for a in data)
    batches = tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)
    for batch in place.experimental_distribute_dataset(batches):
        results = run(batch)
    return results


def taken_from(model, loss_fn=None):
    def step(*batch):
        loss = loss_fn or loss_of(model)
        gradients, logs = model.compute_gradients(loss, *batch)
        model.optimizer.apply(gradients, model.trainable_variables)
        return gradients, logs

    return step


def noisy():
    return clipped(noise_multiplier=0.5, seed=3)


#: Name → what makes the mode, and whether samples have weights.
SERVED = {
    "clipped": (lambda: kpg.Vectorized(noisy(), statistics=True), True),
    "per_sample": (lambda: kpg.PerSample(noisy()), False),
    "microbatches": (lambda: kpg.Accumulated(microbatch_size=2), True),
    "clipped_in_microbatches": (
        lambda: kpg.Accumulated(
            microbatch_size=4, inner=kpg.Vectorized(noisy())
        ),
        False,
    ),
}


def same_in_a_loop(name):
    """Gradients, logs and weights: one device, two, and `fit` on two."""
    double()
    make, weighted = SERVED[name]
    weights = WEIGHTS if weighted else None

    def train():
        model = net(make())
        step = taken_from(model)
        gradients, logs = in_a_loop(model, step, weights)
        place = model.distribute_strategy
        summed = [place.reduce("SUM", g, axis=None) for g in gradients]
        each = map(place.experimental_local_results, logs.values())
        logs = [list(map(float, values)) for values in each]
        return model, list(map(np.asarray, summed)), logs

    (one, right, alone), (model, found, together) = both(train)
    assert_equal_copies(model)
    big_batch.assert_same((found, {}), (right, {}))
    for (expected,), values in zip(alone, together, strict=True):
        assert values == pytest.approx([expected] * 2, rel=1e-10)
    keras.utils.set_random_seed(3)
    with strategy().scope():
        fitted = net(make(), loss="mse")
    arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
    fitted.fit(X, Y, sample_weight=weights, **arguments)
    for other in (one, fitted):
        big_batch.assert_same(
            (model.get_weights(), {}), (other.get_weights(), {})
        )


@check
def a_loop_of_ones_own():
    same_in_a_loop("clipped")


@check
def a_loop_of_ones_own_by_per_sample():
    same_in_a_loop("per_sample")


@check
def a_loop_of_ones_own_in_microbatches():
    same_in_a_loop("microbatches")


@check
def a_loop_of_ones_own_clipped_in_microbatches():
    same_in_a_loop("clipped_in_microbatches")


@check
def a_loop_around_the_models_own_step():
    double()

    def train():
        model = net(kpg.Vectorized(noisy()), loss="mse", metrics=["mae"])
        in_a_loop(model, lambda x, y: model.train_step((x, y)))
        return model.get_weights(), {
            name: [float(np.asarray(value))]
            for name, value in model.get_metrics_result().items()
        }

    alone, together = both(train)
    big_batch.assert_same(together, alone)


class Own(kpg.PerGradModel):
    """Takes the predictions for metrics from the pass of the gradients."""

    def train_step(self, data):
        x, y = data
        loss_fn = loss_of(self, with_outputs=True)
        gradients, logs, y_pred = self.compute_gradients(
            loss_fn, x, y, return_outputs=True
        )
        self.optimizer.apply(gradients, self.trainable_variables)
        return {**logs, **self.compute_metrics(x, y, y_pred)}


@check
def a_train_step_of_ones_own_in_fit():
    double()

    def train(mode, eager):
        model = net(mode(), Own, metrics=["mae"], run_eagerly=eager)
        arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
        history = model.fit(X, Y, **arguments).history
        # What a user's compute_metrics gives is as Keras has it, which weighs
        # replicas equally in some versions.
        assert np.isfinite(history.pop("mae")).all()
        return model.get_weights(), history

    def clipping():
        return kpg.Vectorized(noisy())

    for mode, eager in (
        (clipping, False),
        (clipping, True),
        (kpg.Batch, False),
    ):
        alone, together = both(lambda m=mode, e=eager: train(m, e))
        big_batch.assert_same(together, alone)


class TwoLosses(kpg.PerGradModel):
    """Two optimizers, each with a part of the weights, and no `call`."""

    def __init__(self):
        super().__init__()
        self.first = keras.Sequential(
            [keras.Input((5,)), keras.layers.Dense(3)]
        )
        self.second = keras.Sequential(
            [keras.Input((5,)), keras.layers.Dense(3)]
        )
        self.parts = [
            (part, keras.optimizers.Adam(rate))
            for part, rate in ((self.first, 0.1), (self.second, 0.2))
        ]
        for part, optimizer in self.parts:
            optimizer.build(part.trainable_variables)

    def train_step(self, data):
        x, y = data
        logs = {}
        for k, (part, optimizer) in enumerate(self.parts):
            gradients, more = self.compute_gradients(
                loss_of(part),
                *(x, y),
                variables=part,
                optimizer=optimizer,
                name=f"part{k}",
            )
            optimizer.apply(gradients, part.trainable_variables)
            logs.update(more)
        return logs


@check
def several_losses_of_a_model_without_a_call():
    double()

    def train():
        model = TwoLosses()
        mode = kpg.Vectorized(clipped())
        model.compile(gradient_mode=mode, jit_compile=False)
        arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
        history = model.fit(X, Y, **arguments).history
        return model.get_weights(), history

    alone, together = both(train)
    big_batch.assert_same(together, alone)


class Late(kpg.PerGradModel):
    """Built by its first call."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


@check
def steps_of_ones_own_that_are_refused():
    def refused(model, match, step=None):
        before = model.get_weights()
        with pytest.raises(ValueError, match=match):
            in_a_loop(model, step or taken_from(model))
        for a, b in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(a, b)

    with strategy().scope():
        for name in ("clipnorm", "global_clipnorm", "clipvalue"):
            optimizer = keras.optimizers.SGD(0.1, **{name: 0.1})
            model = net("vectorized", optimizer=optimizer)
            refused(model, rf"adds up after.*{name}=0\.1.*ClippedMean")
        refused(net(kpg.Accumulated(steps=2)), r"leaves the update.*steps=1")
        sequential = kpg.PerSample(updates="sample")
        refused(net(sequential), "updates='batch'")
        late = Late()
        late.compile("adam", "mse", gradient_mode="vectorized")
        build = r"'adam\w*', which has no variables.*optimizer\.build\(model"
        refused(late, build)
        refused(late, build, lambda x, y: late.train_step((x, y)))
        late.optimizer.build([])
        refused(late, r"layer 'dense\w*', which has no weights.*strategy\.sc")
        optimizer = keras.optimizers.SGD(0.1)
        inside = net("vectorized", optimizer=optimizer)
    outside = net("vectorized")

    def step(x, y):
        gradients, _ = inside.compute_gradients(
            loss_of(outside), x, y, variables=outside
        )
        optimizer.apply(gradients, outside.trainable_variables)

    refused(inside, "the weight.*created outside of its scope", step)


@check
def loss_scale_of_a_step_of_ones_own():
    double()

    def train():
        inner = keras.optimizers.SGD(0.1)
        optimizer = keras.optimizers.LossScaleOptimizer(inner)
        model = net(kpg.Vectorized(clipped()), optimizer=optimizer)
        in_a_loop(model, taken_from(model))
        return model.get_weights(), {}

    alone, together = both(train)
    big_batch.assert_same(together, alone)
