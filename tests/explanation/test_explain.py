"""The table says before training what training will do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.keras_internals.tensorflow import settings
from tests.models.making import compiled, net

layers = keras.layers


class Scale(layers.Layer):
    """Uses its weight in an op without a rule."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), name="scale")

    def call(self, x):
        return tf.while_loop(
            lambda i, _: i < 1, lambda i, y: (i + 1, y * self.scale), (0, x)
        )[1]


def _model():
    return net(
        layers.Conv2D(4, 3, name="conv"),
        layers.GlobalAveragePooling2D(),
        *[layers.Dense(4, name="shared")] * 2,
        Scale(name="scale"),
        layers.Dense(5, name="out"),
        shape=(8, 8, 3),
        units=None,
    )


def _by_name(explanation):
    return {row.layer: row for row in explanation}


def test_says_how_each_layer_is_served():
    rows = _by_name(kpg.explain(_model(), batch_size=16))
    assert list(rows) == ["conv", "shared", "scale", "out"]
    assert {name: row.served_by for name, row in rows.items()} == {
        "conv": "ops",
        "shared": "ops",
        "scale": "fallback",
        "out": "ops",
    }
    assert rows["scale"].reason == "op While has no rule"
    assert [v.ops for v in rows["conv"].variables] == [
        ("Conv2D",),
        ("BiasAdd",),
    ]
    assert rows["shared"].variables[0].ops == ("MatMul", "MatMul")
    kernel, bias = rows["out"].variables
    assert (kernel.norms, kernel.sum) == ("product", "matmul")
    assert kernel.materialized_bytes == 16 * 4 * 5 * 4
    assert kernel.held_bytes == 16 * (4 + 5) * 4
    assert (bias.norms, bias.sum, bias.shape) == ("full", "held", (5,))
    assert rows["shared"].calls == 2
    assert rows["shared"].variables[0].norms == "gram"
    assert rows["shared"].variables[0].shared
    for method, total in ("taps", "held"), ("tap_norms", "filter gradient"):
        with kpg.factors.convolution_method(method):
            (kernel, _) = _by_name(kpg.explain(_model(), 16))["conv"].variables
        assert (kernel.norms, kernel.sum) == (method, total)


def test_the_batch_size_scales_the_bytes():
    one, two = (kpg.explain(_model(), n) for n in (8, 16))
    assert two.materialized_bytes == 2 * one.materialized_bytes
    assert two.held_bytes == 2 * one.held_bytes
    parameters = sum(np.prod(v.shape) for v in _model().trainable_variables)
    assert one.materialized_bytes == 8 * 4 * parameters


def test_lists_refused_layers_with_their_texts():
    inputs = keras.Input((6,))
    x = layers.Dense(4)(inputs)
    x = layers.BatchNormalization(name="first")(x)
    x = layers.Dense(4)(x)
    x = layers.BatchNormalization(scale=False, center=False, name="second")(x)
    x = layers.Reshape((2, 2, 1))(x)
    x = layers.Flatten()(layers.MixUp(name="third")(x))
    x = keras.ops.reshape(x, (-1, 2))
    x = layers.Dense(2, name="fourth")(x)
    model = keras.Model(inputs, keras.ops.reshape(x, (-1, 4)))
    before = keras.layers.BatchNormalization.call
    found = kpg.explain(model, 8)
    texts = {row.layer: row.reason for row in found.refused}
    assert list(texts) == ["first", "second", "third"]
    assert "depend on the whole batch while training" in texts["first"]
    assert "mixes the images of a batch" in texts["third"]
    assert keras.layers.BatchNormalization.call is before
    assert all("call" not in vars(layer) for layer in model.layers)


def test_behind_a_refusal_no_layer_is_called_a_fallback():
    before = layers.Dense(5, name="before")
    mixes = layers.BatchNormalization(name="mixes")
    model = net(before, mixes, layers.Dense(3, name="behind"), units=None)
    served = {row.layer: row.served_by for row in kpg.explain(model, 8)}
    assert served == {"before": "ops", "mixes": "refused"}


def test_a_frozen_or_unreached_layer():
    inputs = keras.Input((6,))
    frozen = layers.BatchNormalization(trainable=False)
    used = layers.Dense(4, name="used")(frozen(inputs))
    unused = layers.Dense(4, name="unused")(inputs)
    model = keras.Model(inputs, used + tf.constant(0.0) * used)
    rows = _by_name(kpg.explain(model))
    assert list(rows) == ["used"]
    stop = layers.Lambda(keras.ops.stop_gradient)(unused)
    rows = _by_name(kpg.explain(keras.Model(inputs, used + stop)))
    assert rows["unused"].served_by == "unused"
    assert rows["unused"].variables == ()


class Quantizer(layers.Layer):
    """A codebook that only `add_loss` trains, and one that nothing trains."""

    def build(self, shape):
        self.codes = self.add_weight(shape=(6, shape[-1]), name="codes")
        self.idle = layers.Dense(2, name="idle")
        self.idle.build(shape)

    def call(self, x):
        distance = tf.reduce_sum((x[:, None] - self.codes[None]) ** 2, -1)
        near = tf.gather(self.codes.value, tf.argmin(distance, -1))
        error = near - tf.stop_gradient(x)
        self.add_loss(keras.ops.mean(error**2))
        return x + tf.stop_gradient(near - x)


class OwnLoss(keras.Model):
    """A weight that only `compute_loss` trains."""

    def build(self, shape):
        self.head = layers.Dense(1, name="head")
        self.head.build(shape)
        self.used = layers.Dense(2, name="used")
        self.used.build(shape)

    def call(self, x):
        return self.used(x)

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return keras.ops.mean(self.head(x) ** 2 + y_pred**2)


def test_weights_that_a_loss_alone_trains():
    rows = _by_name(kpg.explain(net(Quantizer(name="book"), units=None)))
    assert rows["book"].served_by == "ops"
    assert rows["book"].variables[0].ops == ("ResourceGather",)
    assert rows["idle"].served_by == "unused"
    model = OwnLoss()
    x = np.ones((2, 5), "float32")
    model(x)
    for each in (model, kpg.PerGradModel.from_model(model)):
        rows = _by_name(kpg.explain(each, x))
        assert rows["used"].served_by == "ops"
        assert rows["head"].served_by == "unknown"
        assert "compute_loss or train_step may" in rows["head"].reason


def test_prints_what_is_proved_in_a_terminal_and_a_notebook():
    found = kpg.explain(_model(), batch_size=16)
    assert repr(found) == str(found)
    assert found.verdict == "proved"
    assert {row.verdict for row in found} == {"proved"}
    assert found.ops > 10
    assert f"proved for all {found.ops} ops;" in " ".join(str(found).split())
    lines = str(found).splitlines()
    assert "batch of 16, XLA off" in lines[0]
    assert lines[1].split()[:2] == ["layer", "served"]
    assert any(line.startswith("conv (Conv2D)  ") for line in lines)
    assert any(line.startswith("shared (Dense) ×2 ") for line in lines)
    assert "scale: fallback: op While has no rule" in lines
    assert lines[1].split()[3:6] == ["variable", "used", "in"]
    page = found._repr_html_()
    assert f"all {found.ops} ops" in page
    assert page.count("<tr>") == 1 + sum(len(r.variables) for r in found)
    assert "<td>conv (Conv2D)</td>" in page
    assert found.as_dicts()[0]["variables"][0]["shape"] == (3, 3, 3, 4)


def test_layers_of_one_name_are_told_apart():
    inputs = x = keras.Input((5, 4))
    for name in ("first", "second"):
        attention = layers.MultiHeadAttention(2, 3, name=name)
        x = layers.LayerNormalization(name=f"{name}_norm")(attention(x, x))
    found = kpg.explain(keras.Model(inputs, x), 2)
    # Within a block, as they are called.
    parts = [
        f"{block}/{part}"
        for block in ("first", "second")
        for part in ("query", "key", "value", "attention_output")
    ]
    paths = [*parts[:4], "first_norm", *parts[4:], "second_norm"]
    assert [row.path for row in found] == paths
    heads = [line.split(" (")[0] for line in str(found).splitlines()]
    assert [head for head in heads if head in paths] == paths
    assert "<td>second/key (EinsumDense)</td>" in found._repr_html_()


def test_an_outer_layer_comes_before_those_inside():
    class Block(layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.dense = layers.Dense(4, name="dense")

        def build(self, shape):
            self.dense.build(shape)
            self.scale = self.add_weight(shape=(shape[-1],), name="scale")

        def call(self, x):
            return self.dense(x) * self.scale

    model = net(Block(), layers.Dense(2, name="out"), shape=(4,), units=None)
    names = [row.layer for row in kpg.explain(model, 3)]
    assert names == ["block", "dense", "out"]


def test_lists_a_loss_without_reduction():
    model = _model()
    loss = keras.losses.MeanSquaredError(reduction=None)
    for given in (loss, {"out": loss}):
        model.compile("sgd", given)
        (row,) = kpg.explain(model, 2).refused
        assert row.layer == model.name
        assert "Received: a loss with reduction=None" in row.reason


def test_unknown_lengths_and_examples_of_the_input():
    table = layers.Embedding(100, 4, name="table")
    mean = layers.GlobalAveragePooling1D()
    model = net(table, mean, shape=(None,), dtype="int32", units=2)
    (open_length,) = _by_name(kpg.explain(model, 3))["table"].variables
    assert open_length.held_bytes is None
    assert "?" in str(kpg.explain(model, 3))
    found = kpg.explain(model, 3, x=np.zeros((1, 7), "int32"))
    (known,) = _by_name(found)["table"].variables
    assert known.held_bytes == 2 * 3 * 7 * 4 * 4
    assert known.materialized_bytes == 3 * 100 * 4 * 4


def test_a_subclass_that_is_not_built():
    class Net(kpg.PerGradModel):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3, name="dense")

        def call(self, inputs):
            return self.dense(inputs["a"] + inputs["b"])

    with pytest.raises(ValueError, match="does not know the shapes"):
        kpg.explain(Net())
    x = {"a": np.ones((2, 4), "float32"), "b": np.ones((2, 4), "float32")}
    model = Net()
    model.compile("sgd", "mse", gradient_mode="vectorized", jit_compile=True)
    found = kpg.explain(model, 8, x=x)
    assert found.jit_compile
    assert not kpg.explain(model, 8, x=x, jit_compile=False).jit_compile
    assert found.rows[0].variables[0].materialized_bytes == 8 * 12 * 4


def test_a_batch_in_place_of_its_size_and_bad_arguments():
    model = keras.Sequential([keras.layers.Dense(3)])
    found = kpg.explain(model, np.ones((5, 4), "float32"))
    assert found.batch_size == 5
    assert [row.served_by for row in found] == ["ops"]
    with pytest.raises(ValueError, match="or a batch of inputs"):
        kpg.explain(model, "four")
    with pytest.raises(ValueError, match="`batch_size` expected a positive"):
        kpg.explain(model, batch_size=0)
    with pytest.raises(TypeError, match=r"must be a keras\.Model"):
        kpg.explain(layers.Dense(3))


def test_says_what_is_split():
    model = net(units=2, shape=(3,))
    assert kpg.explain(compiled(model, "vectorized"), 16).split is None
    for how, said in (
        ({"steps": 4}, "stays whole; an update after 4 batches."),
        (
            {"microbatch_size": 8},
            "is split into microbatches of 8; an update after every batch.",
        ),
        ({"microbatch_size": 16}, "stays whole; an update after every batch."),
    ):
        found = kpg.explain(compiled(model, kpg.Accumulated(**how)), 16)
        assert found.split == f"A batch of 16 {said}"
        assert found.split in " ".join(str(found).split())


class Rounded(layers.Layer):
    """Does what no type rule knows, to each sample by itself."""

    def call(self, x):
        found = tf.numpy_function(np.round, [x], tf.float32, stateful=False)
        return x + tf.stop_gradient(tf.ensure_shape(found, x.shape) - x)


def _rounded(**settings):
    own = keras.Sequential([Rounded(name="own")], name="outer")
    model = net(layers.Dense(4, name="before"), own, shape=(3,), units=2)
    return compiled(model, "vectorized", **settings)


def test_says_what_is_refused_and_the_ways_out():
    found = kpg.explain(_rounded(), 4)
    assert found.verdict == "refused"
    (row,) = found.refused
    assert (row.layer, row.verdict) == ("own", "refused")
    for words in (
        "has the op PyFunc",
        "register_type_rule",
        "compile(vouched=['own'])",
        "gradient_mode='batch'",
    ):
        assert words in row.reason
    assert {r.verdict for r in found if r is not row} <= {"open"}
    assert "not kept separate: own refused." in str(found)
    assert "All gradients written out" not in str(found)


def test_says_what_is_vouched_for():
    model = _rounded(vouched=["own"], jit_compile=False)
    found = kpg.explain(model, 4)
    assert found.verdict == "vouched"
    (one,) = found.vouched
    assert one.op.startswith("PyFunc")
    assert one.layer == "own"
    text = " ".join(str(found).split())
    assert f"proved for {found.ops - 1} of {found.ops} ops" in text
    assert f"vouched for: {one.op} in own" in text
    x = np.ones((5, 3), "float32")
    model.fit(x, np.ones((5, 2), "float32"), verbose=0)


def test_a_name_that_may_be_of_two_layers_vouches_for_neither():
    """TensorFlow calls the next call of "own" "own_1"."""
    parts = layers.Dense(3), Rounded(name="own"), Rounded(name="own_1")
    model = net(*parts, shape=(3,), cls=kpg.PerGradModel)
    for names, verdict in [
        (["own_1"], "refused"),
        (["own"], "refused"),
        (["own", "own_1"], "vouched"),
    ]:
        compiled(model, vouched=names)
        assert kpg.explain(model, 4).verdict == verdict


@pytest.mark.parametrize(
    ("aggregation", "more"),
    [
        ("mean", "three digits."),
        (kpg.ClippedMean(1.0), "three digits. A clipped sample may keep more"),
        (
            kpg.ClippedMean(1.0, noise_multiplier=1.0),
            "three digits. fit() switches it off",
        ),
    ],
)
def test_it_says_what_products_on_a_gpu_lose(aggregation, more, monkeypatch):
    model = compiled(net(), kpg.Vectorized(aggregation))
    assert "TensorFloat-32" not in str(kpg.explain(model, 8))
    monkeypatch.setattr(settings, "may_use_tf32", lambda: True)
    said = " ".join(str(kpg.explain(model, 8)).split())
    assert f"(TensorFloat-32), so gradients and norms have {more}" in said
