"""One of several workers, as test_multi_worker.py starts them.

Prints one line of JSON in the end. What it is compared with is trained in
the same process without the strategy, on the same batches.
"""

import json
import os
import signal
import sys
import tempfile
import traceback

import tensorflow as tf

# Before anything else of TensorFlow runs.
strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402

import keras_pergrad as kpg  # noqa: E402
from tests.modes import big_batch  # noqa: E402

INDEX = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
X, Y = (a.astype("float32") for a in (big_batch.X, big_batch.TARGETS))
# Global batches of 11, 11 and 1: the last one leaves workers without samples.
FIT = {"batch_size": 11, "shuffle": False, "verbose": 0}


def clipped(**arguments):
    return kpg.ClippedMean(0.3, **arguments)


MODES = {
    "batch": (kpg.Batch, "outputs-mixed"),
    "per_sample": (
        lambda: kpg.PerSample(clipped(), statistics=True),
        "class_weight",
    ),
    "vectorized": (
        lambda: kpg.Vectorized(
            clipped(noise_multiplier=0.5, seed=3), statistics=True
        ),
        "sum_over_batch_size-weighted",
    ),
    "accumulated": (
        lambda: kpg.Accumulated(steps=2, microbatch_size=2),
        "masked-sum_over_batch_size-weighted",
    ),
}


def train(names):
    """Whether each mode trains as alone; None, or what went wrong."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    results = {}
    for name in names:
        mode, case = MODES[name]
        arguments = {"batch_size": 11, "jit_compile": False}

        def run(mode=mode, case=case, arguments=arguments):
            return big_batch.train(
                case, kpg.PerGradModel, gradient_mode=mode(), **arguments
            )

        with strategy.scope():
            together = run()
        results[name] = failure(
            lambda together=together, run=run: big_batch.assert_same(
                together, run()
            )
        )
    return results


def dense(cls=kpg.PerGradModel, **arguments):
    keras.utils.set_random_seed(3)
    model = big_batch.dense(cls)
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "mse",
        metrics=["mae"],
        jit_compile=False,
        **arguments,
    )
    return model


def use():
    """evaluate, predict, save and load; and fit of plain Keras, last."""
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    with strategy.scope():
        model = dense(gradient_mode="vectorized")
    alone = dense(keras.Model)

    def compare():
        arguments = {"batch_size": 11, "verbose": 0}
        np.testing.assert_allclose(
            model.evaluate(X, Y, **arguments),
            alone.evaluate(X, Y, **arguments),
            rtol=1e-5,
        )
        found = model.fit(X, Y, **FIT, validation_data=(X, Y)).history
        right = alone.fit(X, Y, **FIT, validation_data=(X, Y)).history
        assert set(found) == set(right)
        for key, values in right.items():
            np.testing.assert_allclose(found[key], values, rtol=1e-5)
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            with strategy.scope():
                again = keras.saving.load_model(f"{folder}/model.keras")
        again.fit(X, Y, **FIT)
        alone.fit(X, Y, **FIT)
        np.testing.assert_allclose(
            again.predict(X, **arguments),
            alone.predict(X, **arguments),
            rtol=1e-5,
            atol=1e-6,
        )

    results = {"use": failure(compare)}
    with strategy.scope():
        plain = dense(keras.Model)
    results["plain"] = failure(lambda: plain.fit(X, Y, **FIT))
    return results


class Stays(keras.callbacks.Callback):
    """Tells which epoch begins; the last worker waits in one to be killed."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        if INDEX and epoch == self.epoch:
            signal.pause()


def resume(folder, epochs, stay_in):
    """Trains with a backup that the first worker writes and all read."""
    with strategy.scope():
        model = dense(gradient_mode=kpg.Vectorized(clipped()))
    # Else one worker could begin an epoch before another.
    reads_only = {"save_freq": 10**9, "delete_checkpoint": False}
    backup = keras.callbacks.BackupAndRestore(
        folder, **(reads_only if INDEX else {})
    )
    model.fit(X, Y, **FIT, epochs=epochs, callbacks=[backup, Stays(stay_in)])
    alone = dense(gradient_mode=kpg.Vectorized(clipped()))
    alone.fit(X, Y, **FIT, epochs=epochs)

    def compare():
        for a, b in zip(model.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    return {"resume": failure(compare)}


def failure(function):
    """What the function raises, or None."""
    try:
        function()
    except Exception:
        return traceback.format_exc()[-2000:]
    return None


def main(names, folder=None, epochs=0, stay_in=None, last=False):
    results = resume(folder, epochs, stay_in) if folder else {}
    results |= train(names)
    return results | use() if last else results


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
