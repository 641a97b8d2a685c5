"""Fine-tune a language model privately: GPT-2 with LoRA.

A small GPT-2 learns a made language without privacy, as from public texts.
Then its low-rank adapters alone learn the private texts of other people, who
use some words in another way, so that clipping and noise touch little.
The perplexity on private texts that it has not seen says how much it learned.
Nothing is downloaded; the line that loads a preset is in `make_backbone`.

    python examples/private_lora.py

Needs `pip install . --group examples`; about two minutes.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import math
import statistics
import time

import keras
import keras_hub
import numpy as np

import keras_pergrad as kpg

VOCABULARY, LENGTH, RANK = 64, 24, 4
EXAMPLES, TEST_EXAMPLES, BATCH_SIZE, EPOCHS = 4096, 512, 256, 12
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_backbone():
    # With weights: keras_hub.models.GPT2Backbone.from_preset("gpt2_base_en")
    return keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        intermediate_dim=256,
        dropout=0.0,
        max_sequence_length=LENGTH,
    )


class Language:
    """Texts in which each word is followed by one of four, by chance."""

    def __init__(self, changed=0):
        rng = np.random.default_rng(0)
        self._next = rng.integers(0, VOCABULARY, (VOCABULARY, 4))
        # The private texts go on differently after some words.
        self._next[:changed] = rng.integers(0, VOCABULARY, (changed, 4))

    def texts(self, count, seed):
        """Return the tokens of texts, and the token after each of them."""
        rng = np.random.default_rng(seed)
        words = [rng.integers(0, VOCABULARY, count)]
        for _ in range(LENGTH):
            choice = rng.choice(4, count, p=[0.7, 0.1, 0.1, 0.1])
            words.append(self._next[words[-1], choice])
        tokens = np.stack(words, axis=1).astype("int32")
        x = {
            "token_ids": tokens[:, :-1],
            "padding_mask": np.ones_like(tokens[:, :-1]),
        }
        return x, tokens[:, 1:]


def make_model(backbone, gradient_mode="batch", rate=3e-3):
    logits = backbone.token_embedding(backbone.output, reverse=True)
    model = kpg.PerGradModel(backbone.input, logits)
    model.compile(
        keras.optimizers.Adam(rate), loss, gradient_mode=gradient_mode
    )
    return model


def with_lora(public, gradient_mode):
    """A model with the weights of another and new adapters, to be trained."""
    backbone = make_backbone()
    backbone.set_weights(public.get_weights())
    keras.utils.set_random_seed(2)
    backbone.enable_lora(RANK)
    return make_model(backbone, gradient_mode, rate=0.01)


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


def perplexity(model, test):
    return math.exp(model.evaluate(*test, verbose=0, return_dict=True)["loss"])


def main():
    keras.utils.set_random_seed(1)
    public = make_backbone()
    make_model(public).fit(
        *Language().texts(EXAMPLES, seed=0),
        batch_size=64,
        epochs=8,
        verbose=0,
    )
    people = Language(changed=VOCABULARY // 3)
    x, y = people.texts(EXAMPLES, seed=1)
    test = people.texts(TEST_EXAMPLES, seed=2)
    private = kpg.PrivateTraining(
        target_epsilon=8.0,
        delta=1e-5,
        clip_norm=1.0,
        samples=EXAMPLES,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        user_ids="unique",
    )
    print(private)
    model = with_lora(public, private.gradient_mode)
    plain = with_lora(public, "batch")
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
    before = perplexity(model, test)
    model.fit(
        private.batches(x, y),
        epochs=EPOCHS,
        verbose=2,
        callbacks=[private.callback, clipped],
    )
    print(
        f"Perplexity of other people's texts: {before:.2f} before, "
        f"{perplexity(model, test):.2f} after private training, "
        f"{perplexity(plain, test):.2f} without privacy"
    )
    print(
        f"A step takes {clipped.milliseconds:.1f} ms with privacy, "
        f"{ordinary.milliseconds:.1f} ms without"
    )
    print(private.statement())


def _values(model):
    return [variable.value for variable in model.trainable_variables]


if __name__ == "__main__":
    main()
