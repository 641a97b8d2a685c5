"""`ByTask` against a tape for each loss, with the aggregation in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg

layers = keras.layers
RATE = 0.1


@pytest.fixture(autouse=True)
def _double():
    before = keras.config.dtype_policy(), keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(before[0])
    keras.config.set_floatx(before[1])


def mlp(cls=kpg.PerGradModel, frozen=False):
    inputs = keras.Input((6,))
    trunk = layers.Dense(7, "tanh", kernel_regularizer="l2")(inputs)
    trunk = layers.BatchNormalization()(trunk)
    trunk = layers.Dense(5, "tanh")(trunk)
    return cls(inputs, [_head("a", 3)(trunk), _head("b", 2)(trunk)])


def _head(name, units):
    return layers.Dense(units, name=name, bias_regularizer="l2")


def recurrent(cls=kpg.PerGradModel):
    """Tied embeddings, a mask, an LSTM, a normalisation."""
    inputs = keras.Input((5,), dtype="int32")
    table = layers.ReversibleEmbedding(9, 4, mask_zero=True)
    h = table(inputs)
    h = layers.LayerNormalization()(h)
    h = layers.LSTM(4, return_sequences=True)(h)
    words = layers.Activation("softmax", name="a")(table(h, reverse=True))
    ends = layers.LSTM(3)(h)
    return cls(inputs, {"a": words, "b": layers.Dense(2, name="b")(ends)})


def convolutional(cls=kpg.PerGradModel):
    inputs = keras.Input((6, 6, 2))
    h = layers.Conv2D(4, 3, activation="elu")(inputs)
    h = layers.GroupNormalization(2)(h)
    a = layers.Dense(3, name="a")(layers.GlobalAveragePooling2D()(h))
    b = layers.Conv2D(1, 1, name="b")(h)
    return cls(inputs, {"a": a, "b": b})


def data(model, n=6, seed=0):
    rng = np.random.default_rng(seed)
    if model.input.dtype == "int32":
        x = rng.integers(0, 9, (n, 5))
        x[:, 0] = 1
        return x, {"a": (x + 1) % 9, "b": rng.normal(size=(n, 2))}
    x = rng.normal(size=(n, *model.input.shape[1:]))
    outputs = keras.tree.map_structure(lambda t: t.shape[1:], model.output)
    if isinstance(outputs, dict):
        return x, {k: rng.normal(size=(n, *s)) for k, s in outputs.items()}
    return x, [rng.normal(size=(n, 3)), -rng.normal(size=(n, 2))]


def task_gradients(model, losses, x):
    """One tape a loss: `losses` are functions of the model's outputs."""
    found = []
    for loss in losses:
        with tf.GradientTape() as tape:
            value = loss(model(x, training=True))
        found.append(tape.gradient(value, model.trainable_variables))
    return [
        [None if g is None else np.asarray(tf.convert_to_tensor(g)) for g in t]
        for t in found
    ]


def aggregated(parts, weigh):
    """NumPy: the weights by the Gramian of what is shared, then the sums."""
    shared = [sum(g is not None for g in c) > 1 for c in zip(*parts)]
    rows = np.stack(
        [
            np.concatenate(
                [
                    np.zeros(v.shape).ravel() if g is None else g.ravel()
                    for g, v, s in zip(t, _first(parts), shared)
                    if s
                ]
            )
            for t in parts
        ]
    )
    weights = weigh(rows @ rows.T)
    sums = []
    for column, is_shared in zip(zip(*parts), shared):
        factors = weights if is_shared else np.ones(len(parts))
        sums.append(sum(f * g for f, g in zip(factors, column) if g is not None))
    return sums, weights, rows


def _first(parts):
    return [next(g for g in c if g is not None) for c in zip(*parts)]


def upgrad_of_two(gramian):
    """Each gradient without its part against the other, the mean, times 2."""
    weights = np.ones(2)
    if gramian[0, 1] < 0:
        weights[0] -= gramian[0, 1] / gramian[0, 0]
        weights[1] -= gramian[0, 1] / gramian[1, 1]
    return weights


CASES = {
    "mlp": (mlp, ["mse", "mae"], [0.7, 2.0]),
    "recurrent": (
        recurrent,
        {"a": "sparse_categorical_crossentropy", "b": "mse"},
        {"a": 1.0, "b": 3.0},
    ),
    "convolutional": (convolutional, {"a": "mse", "b": "mae"}, None),
}
ENGINES = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
}


def _compiled(make, loss, weights, mode, cls=kpg.PerGradModel, **how):
    keras.utils.set_random_seed(3)
    model = make(cls)
    extra = {} if mode is None else {"gradient_mode": mode}
    sgd = keras.optimizers.SGD(RATE)
    model.compile(sgd, loss, loss_weights=weights, **how, **extra)
    return model


def _step(model, *batch):
    before = [v.numpy() for v in model.trainable_variables]
    logs = model.train_on_batch(*batch, return_dict=True)
    after = [v.numpy() for v in model.trainable_variables]
    return [(b - a) / RATE for b, a in zip(before, after)], logs


def _loss(name, key, weight, y):
    function = keras.losses.get(name)

    def value(outputs):
        loss = keras.losses.MeanSquaredError()
        if name == "mae":
            loss = keras.losses.MeanAbsoluteError()
        if name.startswith("sparse"):
            loss = keras.losses.SparseCategoricalCrossentropy()
        return weight * loss(y[key], outputs[key])

    assert function is not None
    return value


def _regularised(model):
    values = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(values)
        total = tf.add_n(
            [tf.zeros([], tf.float64)]
            + [
                v.regularizer(v.value)
                for v in model.trainable_variables
                if v.regularizer is not None
            ]
        )
    gradients = tape.gradient(total, values)
    return [0.0 if g is None else g.numpy() for g in gradients]


@pytest.mark.parametrize(
    ("case", "engine"),
    [("mlp", e) for e in ENGINES]
    + [("recurrent", "graph"), ("recurrent", "xla")]
    + [("convolutional", "graph")],
)
def test_update_is_that_of_a_tape_for_each_loss(case, engine):
    make, loss, weights = CASES[case]
    if case == "recurrent" and not hasattr(layers, "ReversibleEmbedding"):
        pytest.skip("this Keras has no ReversibleEmbedding")
    mode = kpg.ByTask(kpg.UPGrad(norm_eps=0.0, reg_eps=1e-13))
    model = _compiled(make, loss, weights, mode, **ENGINES[engine])
    x, y = data(model)
    keys = list(loss) if isinstance(loss, dict) else range(len(loss))
    losses = [
        _loss(loss[k], k, 1.0 if weights is None else weights[k], y)
        for k in keys
    ]
    parts = task_gradients(model, losses, x)
    state = model.get_weights()
    expected, chosen, rows = aggregated(parts, upgrad_of_two)
    penalties = _regularised(model)
    model.set_weights(state)
    update, logs = _step(model, x, y)
    for found, sums, penalty in zip(update, expected, penalties, strict=True):
        np.testing.assert_allclose(found, sums + penalty, rtol=1e-8, atol=1e-8)
    cosine = rows[0] @ rows[1] / np.linalg.norm(rows, axis=1).prod()
    assert logs["task_cosine_a_b"] == pytest.approx(cosine, abs=1e-6)
    assert logs["task_conflicts"] == float(cosine < 0)
    assert logs["task_weight_a"] == pytest.approx(chosen[0], rel=1e-6)
