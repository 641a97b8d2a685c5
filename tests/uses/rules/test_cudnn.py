"""Recurrent layers where Keras would call cuDNN, as it does with a GPU."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

import keras_pergrad as kpg
from keras_pergrad.keras_internals.tensorflow import cudnn
from keras_pergrad.uses import TracedStep, refusals
from tests.marks import few
from tests.models.making import compiled, net
from tests.uses.rules.exact import (
    Unmasked,
    assert_draws_of_the_batch,
    assert_exact,
    normal,
    randomized,
    stack,
)

layers = keras.layers
LAYERS = {"lstm": layers.LSTM, "gru": layers.GRU}


@pytest.fixture
def traced_gpu(monkeypatch):
    """Keras and the rule find an NVIDIA card; a list of calls of its op."""
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")
    monkeypatch.setattr(rnn, "_is_gpu_available", lambda: True)
    monkeypatch.setattr(cudnn, "has_cuda_card", lambda: True)
    calls, op = [], tf.raw_ops.CudnnRNNV3

    def noting(**arguments):
        calls.append(arguments)
        return op(**arguments)

    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", noting)
    return calls


@pytest.fixture
def gpu(traced_gpu, monkeypatch):
    """As `traced_gpu`; without a GPU the op's numbers come from others."""
    if not tf.config.list_physical_devices("GPU"):

        def noting(**arguments):
            traced_gpu.append(arguments)
            return as_documented(**arguments)

        monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", noting)
    return traced_gpu


def _by_keras(calls):
    """Those of Keras: the rule gives cuDNN all gates for its features."""
    return [call for call in calls if call["input"].shape[-1] == 2]


def as_documented(
    *,
    input,
    input_h,
    input_c,
    params,
    is_training,
    rnn_mode,
    sequence_lengths,
    time_major,
):
    """Computes `CudnnRNNV3` by NVIDIA's formulas, batch first.

    `params` are the matrices of x for each gate, as (units, features), then
    those of h, the biases of x and of h. An LSTM has the gates i, f, g, o; a
    GRU r, z, h (Keras keeps z, r, h where TensorFlow is not built for CUDA).
    """
    assert is_training
    assert not time_major
    steps, features = input.shape[1:]
    units, count = input_h.shape[-1], {"lstm": 4, "gru": 3}[rnn_mode]
    sizes = [features * units, units * units, units, units]
    parts = tf.split(params, [s for s in sizes for _ in range(count)])
    w, u, b, c = (parts[k : k + count] for k in range(0, 4 * count, count))
    if rnn_mode == "gru" and not tf.test.is_built_with_cuda():
        w, u, b, c = ([p[1], p[0], p[2]] for p in (w, u, b, c))
    w = [tf.reshape(p, [units, features]) for p in w]
    u = [tf.reshape(p, [units, units]) for p in u]
    h = input_h[:, 0]
    cell = input_c[:, 0] if rnn_mode == "lstm" else None
    outputs = []
    for t in range(steps):
        now = input[:, t]
        x = [tf.matmul(now, m, transpose_b=True) + p for m, p in zip(w, b)]
        r = [tf.matmul(h, m, transpose_b=True) + p for m, p in zip(u, c)]
        if rnn_mode == "lstm":
            i, f, o = (tf.sigmoid(x[k] + r[k]) for k in (0, 1, 3))
            new_cell = f * cell + i * tf.tanh(x[2] + r[2])
            new = o * tf.tanh(new_cell)
        else:
            reset, update = (tf.sigmoid(x[k] + r[k]) for k in (0, 1))
            candidate = tf.tanh(x[2] + reset * r[2])
            new = (1 - update) * candidate + update * h
        counts = (t < sequence_lengths)[:, None]
        outputs.append(tf.where(counts, new, 0))
        h = tf.where(counts, new, h)
        if cell is not None:
            cell = tf.where(counts, new_cell, cell)
    # cuDNN fails without a step, and where there are not as many.
    checks = [
        tf.debugging.assert_positive(sequence_lengths),
        tf.debugging.assert_less_equal(sequence_lengths, steps),
    ]
    with tf.control_dependencies(checks):
        output = tf.stack(outputs, 1)
    cell = input_c if cell is None else cell[:, None]
    return output, h[:, None], cell, None, None


SETTINGS = {
    "last": {},
    "sequence": {"return_sequences": True},
    "backwards": {"return_sequences": True, "go_backwards": True},
    "frozen": {"trainable": False},
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("setting", few(SETTINGS, ["backwards", "frozen"]))
@pytest.mark.parametrize("name", LAYERS)
def test_is_exact(gpu, name, setting):
    layer = LAYERS[name](3, **SETTINGS[setting])
    model = stack((4, 2), layers.Dense(2), layer, layers.Dense(2))
    gpu.clear()
    assert_exact(model, normal(3, 4, 2))
    # A frozen one is left to Keras alone.
    assert len(gpu) == (2 if layer.trainable else 1)
    assert len(_by_keras(gpu)) == 1
    assert layer.use_cudnn == "auto"


@pytest.mark.usefixtures("float64", "gpu")
def test_states_of_several_layers_are_exact():
    x, start = keras.Input((4, 2)), keras.Input((2,))
    first = [layers.Dense(3)(start) for _ in range(2)]
    sequence, *states = layers.Bidirectional(
        layers.LSTM(3, return_sequences=True, return_state=True)
    )(x, initial_state=2 * first)
    last = layers.GRU(3)(sequence, initial_state=states[:1])
    joined = layers.Concatenate()([last, *states])
    model = randomized(keras.Model([x, start], joined))
    assert_exact(model, [normal(3, 4, 2), normal(3, 2)])


def test_is_exact_in_float32(gpu):
    layer = layers.GRU(3, return_sequences=True)
    assert_exact(stack((12, 2), layer), normal(3, 12, 2))
    assert gpu


@pytest.mark.usefixtures("float64", "gpu")
@pytest.mark.parametrize("name", LAYERS)
def test_dropout_in_training_is_the_batchs_own(name):
    layer = LAYERS[name](3, dropout=0.4, seed=3)
    model = stack((4, 2), layer, layers.Dense(2))
    assert_draws_of_the_batch(model, normal(3, 4, 2), normal(3, 2))


def _step(layer, masked=False, jit_compile=False):
    """The graph of a clipped step, traced for any number of samples."""
    x, mask = keras.Input((4, 2)), keras.Input((4,), dtype="bool")
    outputs = layers.Dense(1)(layer(x, mask=mask if masked else None))
    inputs = [x, mask] if masked else x
    model = kpg.PerGradModel(inputs, outputs)
    mode = kpg.Vectorized(kpg.ClippedMean(0.1))
    model.compile("sgd", "mse", gradient_mode=mode, jit_compile=False)
    specs = tf.nest.map_structure(
        lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype),
        (inputs, outputs),
    )
    step = tf.function(
        lambda x, y: model.train_step((x, y)),
        autograph=False,
        jit_compile=jit_compile,
    )
    return step.get_concrete_function(*specs).graph


def _op_types(graph):
    nodes = list(graph.as_graph_def().node)
    for function in graph.as_graph_def().library.function:
        nodes += function.node_def
    return {node.op for node in nodes}


@pytest.mark.usefixtures("traced_gpu")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_clipped_steps_with_the_op_itself_are_proved(name, masked):
    """Else the step would be refused while it is traced."""
    found = _op_types(_step(layers.Bidirectional(LAYERS[name](3)), masked))
    assert {"CudnnRNNV3", "CudnnRNNBackpropV3"} <= found
    assert not found & {"While", "StatelessWhile"}
    if tf.test.is_built_with_cuda():
        host = {"Placeholder", "PartitionedCall", "StatefulPartitionedCall"}
        assert not [op for op in found - host if not _has_gpu_kernel(op)]


def _has_gpu_kernel(op):
    registered = get_registered_kernels_for_op(op).kernel
    return {k.device_type for k in registered} & {"GPU", "DEFAULT"}


@pytest.mark.usefixtures("traced_gpu")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lstm", {"activation": "relu"}),
        ("gru", {"recurrent_activation": "hard_sigmoid"}),
        ("gru", {"reset_after": False}),
        ("lstm", {"recurrent_dropout": 0.3}),
        ("lstm", {"unroll": True}),
        ("gru", {"use_bias": False}),
        ("lstm", {"use_cudnn": False}),
    ],
)
def test_what_cudnn_does_not_serve_takes_its_steps(name, settings):
    found = _op_types(_step(LAYERS[name](3, **settings)))
    assert not any(op.startswith("Cudnn") for op in found)


@pytest.mark.usefixtures("traced_gpu")
@pytest.mark.parametrize("place", ["CPU:0", "xla"])
def test_on_a_cpu_and_under_xla_a_layer_takes_its_steps(place):
    device = None if place == "xla" else place
    with tf.device(device):
        graph = _step(layers.LSTM(3), jit_compile=place == "xla")
    assert "CudnnRNNBackpropV3" not in _op_types(graph)


def _raw(x, **options):
    """An LSTM of one unit by the op, for three steps of two features."""
    given = {
        "input": x,
        "input_h": tf.zeros_like(x[:, :1, :1]),
        "input_c": tf.zeros_like(x[:, :1, :1]),
        "params": tf.ones([20]),
        "sequence_lengths": tf.fill(tf.shape(x)[:1], 3),
        "time_major": False,
    }
    return tf.raw_ops.CudnnRNNV3(**given | options).output


MIXED = {
    "takes its input `params`": lambda x: _raw(x, params=tf.reshape(x, [-1])),
    "for steps or features": lambda x: _raw(
        x,
        time_major=True,
        input_h=tf.zeros([1, 3, 1]),
        input_c=tf.zeros([1, 3, 1]),
        sequence_lengths=tf.fill([3], 2),
    ),
}


@pytest.mark.parametrize("why", [None, *MIXED])
def test_the_op_is_refused_where_it_mixes_samples(why):
    raw = layers.Lambda(MIXED.get(why, _raw), (3, 1))
    model = compiled(net(layers.Dense(2), raw, shape=(3, 2), units=1))
    x, y = (tf.TensorSpec([None, 3, k], tf.float32) for k in (2, 1))
    found = list(map(str, refusals(TracedStep(model, (x, y, None)))))
    assert bool(found) is (why is not None)
    assert all(why in text for text in found)


#: Padded behind, padded before, with holes, nothing, everything.
MASKS = np.array(
    [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]],
    bool,
)


def _model(layer, cls=keras.Model, masked=True):
    """A model, and a batch for it."""
    x, mask = keras.Input((4, 2)), keras.Input((4,), dtype="bool")
    outputs = Unmasked()(layer(x, mask=mask if masked else None))
    model = randomized(cls([x, mask] if masked else x, outputs))
    samples = normal(5, 4, 2)
    return model, [samples, MASKS] if masked else samples


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lstm", {}),
        ("lstm", {"zero_output_for_mask": True}),
        ("gru", {"return_sequences": True}),
        ("gru", {"return_sequences": True, "go_backwards": True}),
        ("lstm", {"return_sequences": True, "zero_output_for_mask": True}),
    ],
)
def test_masks_are_those_of_the_loop(gpu, name, settings):
    model, batch = _model(LAYERS[name](3, **settings))
    gpu.clear()
    assert_exact(model, batch)
    assert len(gpu) == 1
    assert not _by_keras(gpu)


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("mode", ["batch", "per_sample", "accumulated"])
def test_modes_that_call_the_model_leave_cudnn_out_with_a_mask(
    gpu, mode, masked, *, wrap
):
    layer = layers.LSTM(3, return_sequences=True)
    layer = layers.Bidirectional(layer) if wrap else layer
    model, x = _model(layer, kpg.PerGradModel, masked)
    if mode == "accumulated":
        mode = kpg.Accumulated(microbatch_size=2)
    model.compile("sgd", "mse", gradient_mode=mode, jit_compile=False)
    y = normal(5, 24 if wrap else 12)
    gpu.clear()
    model.train_on_batch(x, y)
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    assert bool(_by_keras(gpu)) is not masked
    inner = layer.forward_layer if wrap else layer
    assert inner.use_cudnn == "auto"
    assert "inner_loop" not in vars(inner)


@pytest.mark.parametrize("use_cudnn", ["auto", True])
def test_the_check_runs_the_loop_as_its_reference(gpu, use_cudnn):
    layer = layers.GRU(3, return_sequences=True)
    model, x = _model(layer, kpg.PerGradModel)
    layer.use_cudnn = use_cudnn
    model.compile("sgd", "mse", jit_compile=False)
    gpu.clear()
    how = {"gradient_modes": ["batch", "vectorized"], "settings": ["graph"]}
    how |= {"repeats": 1, "devices": "CPU:0"}
    check = kpg.check_gradients(model, x, normal(5, 12), **how)
    assert check.ok
    assert not _by_keras(gpu)
