import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.placement import kernels
from keras_pergrad.placement.prediction import predict_placement
from tests.metal_stub import models, session
from tests.models.making import assert_equal, net, weights

layers = keras.layers

# What TensorFlow folds away differs a little between fit and the copy, and
# only for host code that describes shapes or keeps lists.
_DESCRIBING = "EmptyTensorList", "ReadVariableOp", "ShapeN", "TensorListReserve"


@pytest.fixture(scope="module")
def lookups():
    """model → the prediction, and the kernels that it counted on."""
    serving = kernels.Table.serving
    counted_on = set()

    def noted(table, definition, op=None):
        kind = serving(table, definition, op)
        if kind == kernels.DEVICE:
            name = op or definition.op
            dtype = kernels.data_type(definition)
            counted_on.add(f"{name}:{dtype}" if dtype else name)
        return kind

    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels.Table, "serving", noted)
        for name in models.BENCHMARKS:
            counted_on.clear()
            model, x, y = models.make(name)
            report = predict_placement(model, x, y)
            found[name] = report, sorted(counted_on)
    return found


@pytest.mark.slow
def test_agrees_with_a_stand_in_that_has_just_those_kernels(lookups):
    found = session.run_each(
        "tests.placement.stand_in_checks:agreement",
        {
            # TensorFlow ties a Cast to the embedding's variable when it
            # places the step, before that Cast is optimised away.
            name: {"ONLY_OPS": ",".join([*served, "Cast"]), "ASSIGN": 1}
            for name, (_, served) in lookups.items()
        },
    )
    for name, (predicted, reported, here) in found.items():
        others = {k for k in here if not k.startswith("Cast:")}
        assert others.issubset(lookups[name][1])
        if name == "transformer":
            predicted, reported = map(_alike, (predicted, reported))
        assert predicted["device"] == reported["device"], name
        assert predicted["cpu"] == reported["cpu"], name
        differing = predicted["generic"].items() ^ reported["generic"].items()
        assert {op.split()[0] for op, _ in differing} <= set(_DESCRIBING), name


def _alike(side):
    """In fit, TensorFlow writes one addition of each LayerNormalization as
    AddN, in the copy as AddV2, kernel for kernel, and reshapes less there."""
    device = collections.Counter(side["device"])
    device["AddV2 float32"] += device.pop("AddN float32")
    generic = dict(side["generic"])
    del generic["Reshape float32 int32"]
    return {**side, "device": dict(device), "generic": generic}


def test_reports_of_dense_stacks_say_that_they_are_predictions(lookups):
    predictions = {name: report for name, (report, _) in lookups.items()}
    text = str(predictions["mnist"])
    assert "predicted for Metal, tensorflow-metal 1.2.0" in text
    assert "Nothing was run there" in text
    assert max(map(len, text.splitlines())) <= 80
    assert predictions["mnist"].device_copies is None
    for name in ("logreg", "ffnn", "mnist", "cifar10"):
        # They fall back for the step number only.
        assert {row[0] for row in predictions[name].fallbacks()} == {"AddV2"}
        assert predictions[name].errors == []


def test_the_model_is_left_as_it_is_and_float64_becomes_what_fit_makes_of_it():
    model, x, y = models.make("ffnn")
    model.optimizer.build(model.trainable_variables)
    before = weights(model)
    plain = predict_placement(model, x, y)
    assert_equal(model, before)
    wide = predict_placement(model, x.astype("float64"), y)
    assert wide.counts("cpu") == plain.counts("cpu")


def test_fallbacks_say_what_to_change():
    model, x, y = models.make("attention")
    rows = {row[0]: row for row in predict_placement(model, x, y).fallbacks()}
    assert "Dense layers and matmul run on Metal" in rows["Einsum"][1]


@pytest.mark.quick
def test_an_op_without_kernel_on_a_variable_is_an_error():
    model, x, y = models.make("embedding", optimizer="sgd")
    table = {"MatMul": ["float32"]}
    report = predict_placement(model, x, y, kernels_table=table)
    assert any(e.startswith("ResourceScatter") for e in report.errors)
    assert "tf.device('/CPU:0')" in report.errors[0]
    on_device = {o.op for o in report.operations if o.kind == "device"}
    assert on_device == {"MatMul"}
    assert report.prediction == "a table of your own"
    assert "1.2.0" not in str(report)


def test_hazards_of_the_step_are_those_of_the_plugin():
    hidden = layers.Dense(8, "relu", name="hidden")
    noise = layers.Lambda(lambda x: x + tf.random.uniform(tf.shape(x)))
    elu = layers.Dense(8, "elu", name="elu")
    step = models.stack(
        hidden, layers.Dropout(0.5), noise, elu, jit_compile=True
    )
    apple, community = (
        predict_placement(*step, platform=platform)
        for platform in ("metal", "metal-community")
    )
    found = {hazard.code: hazard for hazard in apple.hazards}
    always = {"int64_counter", "xla"}
    assert set(found) == {*always, "random", "fused_activation"}
    assert found["fused_activation"].layers == ("hidden", "elu")
    assert "jit_compile=False" in found["xla"].message
    found = {hazard.code: hazard for hazard in community.hazards}
    assert set(found) == {*always, "variable_race"}
    assert found["variable_race"].severity == "wrong"
    assert "check_gradients" in found["variable_race"].message
    assert community.prediction == "tensorflow-metal-plugin 0.4.1"
    kinds = [{o.op: o.kind for o in r.operations} for r in (apple, community)]
    assert [kind["Elu"] for kind in kinds] == ["cpu", "device"]
    assert [kind["RandomUniform"] for kind in kinds] == ["device", "device"]
    plain = predict_placement(*models.stack())
    assert [hazard.code for hazard in plain.hazards] == ["int64_counter"]


def test_an_rnn_that_may_pick_cudnn_is_noted():
    report = predict_placement(*models.stack(layers.LSTM(4), shape=(5, 3)))
    assert any("CudnnRNNV3" in note for note in report.notes)


def turns(x):
    """Sines in a loop, a cosine in a branch, a logarithm after both."""
    _, y = tf.while_loop(
        lambda i, _: i < 4, lambda i, x: (i + 1, tf.sin(x)), (0, x)
    )
    y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.cos(y), lambda: y)
    return tf.math.log1p(tf.exp(y))


def test_ops_in_loops_and_branches_are_counted_once_and_it_is_said():
    parts = layers.Dense(3), layers.Lambda(turns, name="turns")
    report = predict_placement(*models.stack(*parts))
    found = collections.Counter(
        o.op for o in report.operations if o.layer == "turns"
    )
    assert 0 < found["Sin"] < 4
    said = "in a loop or branch are counted once"
    assert said in " ".join(str(report).split())
    plain = predict_placement(*models.stack(layers.Dense(3)))
    assert said not in " ".join(str(plain).split())


def test_ops_are_given_to_their_layers():
    attention = layers.MultiHeadAttention(2, 4, name="attention")
    inputs = keras.Input((5, 8))
    hidden = layers.Dense(8, name="dense")(attention(inputs, inputs))
    hidden = keras.ops.erf(layers.Dense(8, name="dense_1")(hidden))
    model = keras.Model(inputs, hidden, name="net")
    model.compile("adam", "mse", jit_compile=False)
    x = np.ones((4, 5, 8), "float32")
    ops = predict_placement(model, x, x).operations
    assert {"dense", "dense_1"} <= {o.layer for o in ops if o.op == "BiasAdd"}
    assert "attention/query" in {o.layer for o in ops}
    assert {o.layer for o in ops if o.op == "Erf"} == {"net"}
    assert {o.layer for o in ops if o.op == "Sqrt"} == {"optimizer"}
    assert "loss" in {o.layer for o in ops}


def test_refusals():
    model, x, y = models.make("dense")
    with pytest.raises(ValueError, match=r"'metal'.*platform='cuda'"):
        predict_placement(model, x, y, platform="cuda")
    with pytest.raises(ValueError, match="not compiled"):
        predict_placement(net(shape=(4,)), x, y)
