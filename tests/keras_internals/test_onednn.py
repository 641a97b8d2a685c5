"""The oneDNN defect of test_matmul_defect.py, found without a run."""

import subprocess
import sys

import pytest
import tensorflow as tf

from keras_pergrad.keras_internals.tensorflow import onednn

# In a process of its own: should it be run after all, it may end there.
CODE = """
import keras, numpy as np, tensorflow as tf
import keras_pergrad as kpg

class Trap(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        kernel = tf.convert_to_tensor(self.kernel)
        return tf.matmul(x[:, None], kernel)[:, 0]

inputs = keras.Input((16, 32))
model = keras.Model(inputs, Trap()(inputs))
model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(8, 16, 32)).astype("float32")
settings = ["eager", "graph", "xla"]
found = kpg.check_gradients(
    model, x, x, gradient_modes=["batch"], settings=settings, repeats=1
)
print(found)
print([row.verdict for row in found.rows], found.ok)
"""


@pytest.fixture
def product():
    @tf.function(autograph=False)
    def step(x, kernel):
        # Inside a loop, where a step's ops are not seen at once.
        return tf.while_loop(
            lambda i, _: i < 2,
            lambda i, s: (i + 1, s + tf.reduce_sum(x @ kernel)),
            (0, 0.0),
        )

    def trace(left, right, dtype="float32"):
        specs = [tf.TensorSpec(shape, dtype) for shape in (left, right)]
        if dtype != "float32":
            return tf.function(tf.matmul).get_concrete_function(*specs).graph
        return step.get_concrete_function(*specs).graph

    return trace


def test_only_that_shape_is_tried(product, monkeypatch):
    tried = []

    def harm(*shape):
        tried.append(shape)
        return "crashes"

    monkeypatch.setattr(onednn, "_harm", harm)
    assert onednn.defect(product([8, 3, 4], [4, 5])) is None
    assert onednn.defect(product([8, 2, 3, 4], [4, 5])) is None
    assert onednn.defect(product([8, 1, 3, 4], [4, 5], "float64")) is None
    assert tried == []
    found = onednn.defect(product([8, 1, 3, 4], [4, 5]))
    assert tried == [(8, 3, 4, 5)]
    assert "[8, 1, 3, 4] and [4, 5]" in found
    assert "TF_ENABLE_ONEDNN_OPTS=0" in found


@pytest.mark.slow
def test_the_trap_is_caught_and_the_process_lives():
    # Where the build has no such defect, the step is run, and right.
    expected = "wrong" if onednn._harm(8, 16, 32, 32) else "rounding"
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    last = done.stdout.splitlines()[-1]
    rows = [expected, expected, "rounding"]
    assert last == f"{rows} {expected == 'rounding'}"
    assert ("defect of oneDNN" in done.stdout) == (expected == "wrong")
