"""check_gradients: what is right is not accused, what is wrong is found."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.checking import execution, numerics
from keras_pergrad.keras_internals.tensorflow import settings
from tests import zoo
from tests.models.making import assert_equal, compiled, net, normal, weights
from tests.tensor_float import short_products

layers = keras.layers
QUICK = {"settings": ["graph"], "repeats": 1}


class Scale(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, inputs):
        return inputs * self.scale


@tf.custom_gradient
def wrong_on_eight(x):
    """The identity, with a gradient that is off for batches of eight."""

    def gradient(dy):
        return dy * (1.01 if x.shape[0] == 8 else 1.0)

    return tf.identity(x), gradient


def made(*parts, shape=(4,), n=8):
    model = compiled(net(*parts, shape=shape))
    return model, normal(n, *shape), normal(n, 3, seed=1)


def checked(*parts, modes=None, devices=None, **how):
    """What is found of a model with these parts, in a graph."""
    settings = {"gradient_modes": modes, "devices": devices, **QUICK}
    return kpg.check_gradients(*made(*parts, **how), **settings)


def verdicts(found):
    return {(row.mode, row.setting): row.verdict for row in found.rows}


def numbers(model):
    return [np.array(v) for v in (*model.metrics_variables, *weights(model))]


def test_every_way_agrees_and_nothing_is_touched():
    clipped = kpg.Vectorized(aggregation=kpg.ClippedMean(0.1))
    model = zoo.functional(kpg.PerGradModel)
    compiled(
        model,
        clipped,
        loss="sparse_categorical_crossentropy",
        optimizer="adam",
        metrics=["accuracy"],
    )
    data = zoo.data(8)
    model.train_on_batch(*data)
    before = numbers(model)
    found = kpg.check_gradients(model, *data, repeats=2)
    assert found.ok, found
    for mode in ("batch", "vectorized", "vectorized, ClippedMean"):
        for setting in ("eager", "graph"):
            assert verdicts(found)[mode, setting] == "rounding"
    for mode in ("accumulated by 3", "per_sample"):
        assert verdicts(found)[mode, "graph"] == "refused"
    for part in ("microbatch", "sample"):
        assert f"draw afresh for each {part}" in str(found)
    assert_equal(numbers(model), before)
    assert {layer.compute_dtype for layer in model.layers} == {"float32"}
    assert keras.config.floatx() == "float32"
    assert all(row.between_repeats == 0 for row in found.rows if row.verdicts)


def test_a_wrong_rule_is_found_and_named():
    @kpg.extending.register_rule(Scale, replace=True)
    def scale(layer, inputs, dz):
        yield layer.scale, kpg.extending.Product(inputs, 1.001 * dz)

    model, x, y = made(Scale(name="scale"))
    found = kpg.check_gradients(model, x, y, settings=["eager", "graph"])
    assert not found.ok
    assert {row.mode for row in found.wrong} == {"vectorized"}
    assert {tuple(row.wrong) for row in found.wrong} == {
        (model.trainable_variables[0].path,)
    }
    assert "What computes it in mode vectorized is wrong" in found.answer
    assert "scale: not rounding" not in str(found)
    assert "not rounding" in str(found)


def test_a_gradient_that_is_wrong_on_one_batch_size_is_found():
    model, x, y = made(Scale(), layers.Lambda(wrong_on_eight))
    found = kpg.check_gradients(model, x, y, **QUICK)
    wrong = {row.mode for row in found.wrong}
    assert "batch" in wrong
    assert "per_sample" not in wrong
    assert kpg.check_gradients(model, x[:7], y[:7], **QUICK).ok


def test_batch_normalization_is_judged_by_the_batch():
    model, x, y = made(layers.Dense(4), layers.BatchNormalization())
    before = numbers(model)
    found = kpg.check_gradients(model, x, y, **QUICK)
    rows = verdicts(found)
    assert rows["batch", "graph"] == "rounding"
    assert rows["vectorized", "graph"] == rows["per_sample", "graph"]
    assert rows["per_sample", "graph"] == "refused"
    assert rows["accumulated by 3", "graph"] == "refused"
    assert "each microbatch goes through the model alone" in str(found)
    assert found.ok
    whole = kpg.Accumulated(microbatch_size=8)
    assert kpg.check_gradients(model, x, y, gradient_modes=[whole], **QUICK).ok
    assert "(BatchNormalization) makes every" in str(found)
    assert "no sample has a gradient of its own" in str(found)
    assert_equal(numbers(model), before)


def test_a_layer_that_mixes_samples_is_no_wrong_kernel():
    mean = layers.Lambda(lambda t: t - tf.reduce_mean(t, 0, keepdims=True))
    model, x, y = made(layers.Dense(4, activation="tanh"), mean)
    found = kpg.check_gradients(model, x, y, gradient_modes=["batch"], **QUICK)
    assert found.ok
    text = " ".join(str(found).split())
    assert "(layer 'lambda' (Lambda) mixes the samples of a batch in" in text
    assert "the op Sub (" in text
    found = kpg.check_gradients(
        model, x, y, gradient_modes=["per_sample"], settings=["eager", "graph"]
    )
    for row in found.refused:
        assert row.reason.startswith("layer 'lambda")
    assert len(found.refused) == 2


def test_a_zero_by_cancellation_is_rounding():
    # The key's bias has no influence; LayerNormalization hides the other.
    attention = layers.MultiHeadAttention(2, 4)
    parts = layers.Dense(8), layers.LayerNormalization()
    model = net(lambda x: attention(x, x), *parts, shape=(5, 8), units=2)
    x, y = normal(6, 5, 8), normal(6, 5, 2, seed=1)
    found = kpg.check_gradients(compiled(model), x, y, **QUICK)
    assert found.ok, found


def test_an_op_without_float64_is_judged_in_float32():
    narrow = layers.Lambda(lambda t: t * tf.constant(2.0, tf.float32))
    found = checked(layers.Dense(4), narrow)
    assert found.ok
    assert found.reference.endswith("in float32")
    assert "does not run in float64" in str(found)


def test_losses_of_every_kind():
    class Adds(layers.Layer):
        supports_masking = True

        def call(self, inputs):
            self.add_loss(0.1 * keras.ops.sum(inputs**2))
            self.add_loss(0.3 * keras.ops.mean(inputs**4))
            return inputs

    ids = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(ids)
    x = layers.LSTM(4, return_sequences=True)(x)
    named = {"a": layers.Dense(2, activation="softmax", name="a")(x)}
    named["b"] = layers.Dense(1, name="b", kernel_regularizer="l2")(Adds()(x))
    model = keras.Model(ids, named)
    model.compile(
        "sgd",
        {"a": "sparse_categorical_crossentropy", "b": "mae"},
        loss_weights={"a": 0.3, "b": 2.0},
    )
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (6, 5))
    y = {"a": rng.integers(0, 2, (6, 5)), "b": rng.normal(size=(6, 5, 1))}
    found = kpg.check_gradients(model, x, y, **QUICK)
    assert found.ok, found
    assert not found.refused, found
    assert found.reference == "single samples one by one in float64"


@pytest.mark.parametrize(
    ("policy", "error", "least", "most"),
    [("mixed_float16", 1e-6, 1e-2, np.inf), ("float64", -1.0, 0.0, 1e-13)],
)
def test_every_precision_has_a_tolerance_of_its_own(
    policy, error, least, *, most
):
    keras.config.set_dtype_policy(policy)
    if policy == "float64":
        keras.config.set_floatx(policy)
    found = checked(layers.Dense(16, activation="relu"), modes=["batch"])
    assert found.ok
    assert found.rows[0].relative > error
    assert least < found.rows[0].worst[1].tolerance < most
    assert found.reference.endswith("float64")


@pytest.mark.quick
def test_without_a_gradient_of_the_batch_a_mode_is_refused():
    noisy = kpg.ClippedMean(1.0, noise_multiplier=1.0)
    modes = [
        kpg.PerSample(updates="sample"),
        kpg.Vectorized(aggregation=noisy),
        kpg.Accumulated(steps=2),
    ]
    found = checked(modes=modes)
    assert [row.verdict for row in found.rows] == ["refused"] * 3
    assert "calls the optimizer itself" in str(found)
    assert "adds noise" in str(found)
    assert not found.ok
    assert found.answer.startswith("No answer")


def test_a_mode_of_ones_own_says_that_it_changes_gradients():
    class Half(kpg.Vectorized):
        def step(self, model, x, y, sample_weight):
            step = super().step(model, x, y, sample_weight)
            step.gradients = [g / 2 for g in step.gradients]
            return step

    class Declared(Half):
        changes_gradients = True

    found = checked(modes=["batch", Half(), Declared()])
    assert [row.verdict for row in found.rows][1:] == ["wrong", "refused"]
    assert found.rows[0].verdict in ("exact", "rounding")
    (note,) = found.notes
    assert note.startswith("if Half is meant")
    assert "meant to give other" in found.rows[2].reason


UNJUDGED = {
    "draws": (
        lambda: layers.Lambda(lambda t: t + tf.random.normal(tf.shape(t))),
        r"without keras\.random",
    ),
    "writes": (
        lambda: layers.SpectralNormalization(layers.Dense(3)),
        "writes to the trainable variable",
    ),
}


@pytest.mark.parametrize("name", UNJUDGED)
def test_what_cannot_be_judged_is_refused(name):
    make, message = UNJUDGED[name]
    with pytest.raises(ValueError, match=message):
        checked(make())


def test_a_table_that_cannot_be_copied_is_used_where_it_is():
    words = keras.Input((1,), dtype="string")
    ids = layers.StringLookup(vocabulary=["a", "b"])(words)
    flat = layers.Flatten()(layers.Embedding(4, 3)(ids))
    model = compiled(keras.Model(words, layers.Dense(1)(flat)))
    x, y = np.array([["a"], ["b"], ["z"]]), np.ones((3, 1), "float32")
    found = kpg.check_gradients(model, x, y, **QUICK)
    assert found.ok, found


def test_a_gradient_that_is_not_finite_names_the_sample():
    model, x, y = made()
    y[5] = np.nan
    with pytest.raises(ValueError, match="gradient of sample 5 is not finite"):
        kpg.check_gradients(model, x, y, **QUICK)


@pytest.mark.quick
def test_an_error_inside_leaves_the_model_as_it_was(monkeypatch):
    model, x, y = made(layers.Dropout(0.5), layers.BatchNormalization())
    before = numbers(model)

    def fail(*_, **__):
        raise RuntimeError("inside")

    monkeypatch.setattr("keras_pergrad.checking.numerics.judge", fail)
    with pytest.raises(RuntimeError, match="inside"):
        kpg.check_gradients(model, x, y, **QUICK)
    assert_equal(numbers(model), before)
    assert model.losses == []
    assert keras.config.floatx() == "float32"


@pytest.mark.quick
def test_it_shows_as_text_html_and_data(capsys):
    model, x, y = made()
    found = kpg.check_gradients(model, x, y, gradient_modes="batch", **QUICK)
    # What takes long is said before the bar.
    first, bar = capsys.readouterr().out.split("\n", 1)
    assert first.startswith("Gradients of single samples in float64, then in 1")
    assert "0/2" in bar
    assert "2/2" in bar
    [row] = found.rows
    path, verdict = row.worst
    assert (row.device, row.setting) == ("CPU:0", "graph")
    assert row.relative == verdict.relative < verdict.tolerance
    assert path in {v.path for v in model.trainable_variables}
    assert row.step_ms > 0
    assert "Yes: 1 of 1 ways" in str(found)
    assert "<td>batch</td>" in found._repr_html_()
    assert max(map(len, str(found).splitlines())) < 90


def test_modes_that_differ_in_their_settings_have_rows_of_their_own():
    clipped = map(kpg.ClippedMean, (0.1, 1.0, 0.1))
    modes = [kpg.Vectorized(aggregation=each) for each in clipped]
    found = checked(modes=modes)
    assert [row.mode for row in found.rows] == [
        "vectorized, ClippedMean",
        "vectorized, ClippedMean #2",
    ]
    assert found.ok, found


def test_refusals_name_what_came():
    model, x, y = made()
    for wrong, match in (
        ({"repeats": 0}, "repeats=0"),
        ({"settings": "graph"}, "settings='graph'"),
        ({"settings": ["jax"]}, r"eager.*\['jax'\]"),
        ({"gradient_modes": ["fast"]}, "fast"),
        ({"devices": ["GPU:7"]}, "GPU:7"),
        ({"sample_weight": np.ones(len(x) - 1)}, "sample_weight with"),
        ({"sample_weight": np.array(["1"])}, "real numbers.*'1'"),
    ):
        with pytest.raises(ValueError, match=match):
            kpg.check_gradients(model, x, y, **wrong)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    for check in (
        kpg.check_gradients,
        kpg.diagnose.compare_devices,
        kpg.diagnose.predict_placement,
    ):
        with pytest.raises(ValueError, match=r"next\(iter\(dataset\)\)"):
            check(model, data)
        with pytest.raises(ValueError, match=r"Expected `y`\. Received"):
            check(model, x)
    with pytest.raises(ValueError, match="not compiled"):
        kpg.check_gradients(keras.Sequential([layers.Dense(1)]), x, y)


@pytest.mark.quick
def test_half_precision_cannot_tell():
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("mixed_bfloat16")
    found = checked(shape=(100,), n=4, modes=["batch"])
    (row,) = found.rows
    assert row.verdict == "cannot tell"
    assert not found.ok
    assert found.answer.startswith("Cannot tell: rounding alone may be ")


@pytest.mark.parametrize("known", [True, False])
def test_the_ten_bits_of_products_on_a_gpu_are_rounding(known, monkeypatch):
    original = execution.TracedMode._compute

    def shortened(self, data):
        with short_products(nearest=False):
            return original(self, data)

    monkeypatch.setattr(execution.TracedMode, "_compute", shortened)
    if known:  # of the CPU, which is the GPU here
        short = numerics.TENSOR_FLOAT_32
        monkeypatch.setattr(numerics, "on_device", lambda *_: short)
    parts = layers.Conv2D(4, 3, activation="tanh"), layers.Flatten()
    how = {"modes": ["batch"], "devices": "CPU:0"}
    check = checked(*parts, shape=(6, 6, 2), **how)
    assert check.ok is known
    if known:
        assert "to the ten bits of TensorFloat-32 (tf.config" in check.answer
        assert check.rows[0].relative > 1e-5


@pytest.mark.usefixtures("ten_bits")
def test_products_have_ten_bits_on_a_card_that_has_them(monkeypatch):
    details = {"compute_capability": (8, 0)}
    experimental = tf.config.experimental
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [None])
    monkeypatch.setattr(experimental, "get_device_details", lambda _: details)
    short = numerics.TENSOR_FLOAT_32
    assert numerics.on_device("float32", "GPU:0") == short
    assert numerics.on_device("float32", "CPU:0") == "float32"
    assert numerics.on_device("bfloat16", "GPU:0") == "bfloat16"
    with settings.switched_off():
        assert numerics.on_device("float32", "GPU:0") == "float32"
    assert numerics.on_device("float32", "GPU:0") == short
    details["compute_capability"] = (7, 5)
    assert numerics.on_device("float32", "GPU:0") == "float32"
    del details["compute_capability"]  # of a plugin
    assert numerics.on_device("float32", "GPU:0") == "float32"
