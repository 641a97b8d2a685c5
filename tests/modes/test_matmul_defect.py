"""The oneDNN batch-matmul defect of TensorFlow on CPU (tensorflow#117700).

A matmul of shapes [B, 1, T, K] and [K, N] can corrupt the heap and abort the
process at exit, so values *and* exit code are checked in a subprocess.
"""

import subprocess
import sys

CODE = """
import keras, numpy as np
import keras_pergrad as kpg
from tests import oracle

layers = keras.layers
rng = np.random.default_rng(0)
inputs = keras.Input((16, 32))
attended = layers.MultiHeadAttention(4, 8)(inputs, inputs)
x = layers.EinsumDense("abc,cd->abd", (16, 32), bias_axes="d")(attended)
x = Custom()(x)
model = keras.Model(inputs, layers.Dense(8)(x))
model.compile("sgd", "mse")
x = rng.normal(size=(8, 16, 32)).astype("float32")
y = rng.normal(size=(8, 16, 8)).astype("float32")
for method in ("vectorized", "per_sample"):
    found = kpg.per_sample_gradients(model, x, y, method=method)
    oracle.check(found, model, x, y)
print("right")
"""

CUSTOM = """
import keras

class Custom(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        return keras.ops.matmul(x, self.kernel)
"""


def test_no_matmul_of_the_broken_shape():
    done = subprocess.run(
        [sys.executable, "-c", CUSTOM + CODE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == "right"
