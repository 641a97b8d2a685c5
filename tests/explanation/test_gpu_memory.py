"""The memory of a step on a GPU, read from TensorFlow's counter."""

import keras
import pytest

import keras_pergrad as kpg


@pytest.mark.gpu
def test_the_real_counter():
    net = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1024)])
    net.compile("sgd", "mse")
    memory = kpg.explain(net, 4096).memory
    # At least the outputs, their gradient and the kernel's.
    assert memory.rise > 2 * 4096 * 1024 * 4
