"""Fine-tune a language model privately: Gemma with LoRA.

Only the low-rank adapters and the head are trained, so that clipping and
noise touch little. They learn whether a made-up text is friendly, by the words
in it. The weights are random, so that nothing is downloaded; the line that
loads a preset is in `make_backbone`.

    python examples/private_lora.py

Needs `pip install ".[privacy,examples]"`; under a minute.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import statistics
import time

import keras
import keras_hub
import numpy as np

import keras_pergrad as kpg

VOCABULARY, LENGTH = 200, 16
EXAMPLES, TEST_EXAMPLES, BATCH_SIZE, EPOCHS = 2048, 512, 128, 15


def make_backbone():
    # With weights: keras_hub.models.GemmaBackbone.from_preset("gemma_2b_en")
    return keras_hub.models.GemmaBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=2,
        num_query_heads=4,
        num_key_value_heads=1,
        hidden_dim=128,
        intermediate_dim=256,
        head_dim=32,
    )


def make_model(gradient_mode):
    keras.utils.set_random_seed(1)
    backbone = make_backbone()
    backbone.enable_lora(4)
    pooled = keras.ops.mean(backbone.output, axis=1)
    logits = keras.layers.Dense(2, name="head")(pooled)
    model = kpg.PerGradModel(backbone.input, logits)
    model.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        gradient_mode=gradient_mode,
    )
    return model


def make_data(examples, seed):
    """Texts of plain words, and of four friendly or unfriendly ones."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, examples).astype("int32")
    words = rng.integers(100, VOCABULARY, (examples, LENGTH))
    places = rng.permuted(np.tile(np.arange(LENGTH), (examples, 1)), axis=1)
    telling = rng.integers(0, 50, (examples, 4)) + 50 * y[:, None]
    np.put_along_axis(words, places[:, :4], telling, axis=1)
    words = words.astype("int32")
    return {"token_ids": words, "padding_mask": np.ones_like(words)}, y


class StepTimes(keras.callbacks.Callback):
    """The median of the time that a step takes, but for the first two."""

    def on_train_begin(self, logs=None):
        self.times = []

    def on_train_batch_begin(self, batch, logs=None):
        self.begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter() - self.begin)

    @property
    def milliseconds(self):
        return statistics.median(self.times[2:]) * 1e3


def main():
    x, y = make_data(EXAMPLES, seed=0)
    test = make_data(TEST_EXAMPLES, seed=1)
    private = kpg.PrivateTraining(
        target_epsilon=8.0,
        delta=1e-4,
        clip_norm=1.0,
        samples=EXAMPLES,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        user_ids="unique",
    )
    print(private)
    model, plain = make_model(private.gradient_mode), make_model("batch")
    trained = sum(v.shape.num_elements() for v in _values(model))
    print(f"{trained} of {model.count_params()} weights are trained")
    clipped, ordinary = StepTimes(), StepTimes()
    plain.fit(
        x,
        y,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[ordinary],
    )
    before = accuracy(model, test)
    model.fit(
        private.batches(x, y),
        epochs=EPOCHS,
        verbose=2,
        callbacks=[private.callback, clipped],
    )
    print(
        f"Accuracy on other texts: {before:.2f} before, "
        f"{accuracy(model, test):.2f} after private training, "
        f"{accuracy(plain, test):.2f} without privacy"
    )
    print(
        f"A step takes {clipped.milliseconds:.1f} ms with privacy, "
        f"{ordinary.milliseconds:.1f} ms without"
    )
    print(private.statement())


def accuracy(model, test):
    return model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]


def _values(model):
    return [variable.value for variable in model.trainable_variables]


if __name__ == "__main__":
    main()
