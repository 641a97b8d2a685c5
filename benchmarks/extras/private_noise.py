"""Correlated noise: accuracy on digits at equal epsilon, and what a step costs.

`accuracy` trains with independent and with correlated noise, with batches drawn
at random and with data in a fixed order, each with the learning rate that is
best for it over all seeds; `step` times private steps of GPT-2.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import statistics
import time

import keras
import numpy as np

import keras_pergrad as kpg
from benchmarks.harness import turns

WAYS = {
    "independent": {},
    "kept": {"noise": "correlated"},
    "redrawn": {
        "noise": "correlated",
        "sampling": "ordered",
        "earlier_noise": "redrawn",
    },
}
#: Ways to draw batches: what they are asked for with either noise.
BATCHES = {
    "at random": {
        "independent": {"sampling": "poisson"},
        "correlated": {"sampling": "cyclic", "noise": "correlated"},
    },
    "in order": {
        "independent": {"sampling": "shuffled"},
        "correlated": {"sampling": "ordered", "noise": "correlated"},
    },
}
RATES = (0.02, 0.05, 0.1, 0.2, 0.4)


def accuracy(epsilon, batch_size, steps, *, seeds, batches):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")

    def trained(arguments, rate, seed):
        x_train, x_test, y_train, y_test = train_test_split(
            x, y, random_state=seed
        )
        private = kpg.PrivateTraining(
            target_epsilon=epsilon,
            delta=1e-4,
            samples=len(x_train),
            batch_size=batch_size,
            steps=steps,
            user_ids="unique",
            seed=seed,
            **arguments,
        )
        keras.utils.set_random_seed(seed)
        inputs = keras.Input((64,))
        hidden = keras.layers.Dense(32, "relu")(inputs)
        model = kpg.PerGradModel(inputs, keras.layers.Dense(10)(hidden))
        model.compile(
            keras.optimizers.SGD(rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            gradient_mode=private.gradient_mode,
            jit_compile=False,
        )
        model.fit(
            private.batches(x_train, y_train),
            epochs=-(-steps // private.steps_per_epoch),
            callbacks=[private.callback],
            verbose=0,
        )
        guesses = model.predict(x_test, verbose=0).argmax(1)
        return 100 * np.mean(guesses == y_test), private

    found = {}
    for noise, arguments in BATCHES[batches].items():
        by_rate = {}
        for rate in RATES:
            results = [trained(arguments, rate, seed) for seed in range(seeds)]
            by_rate[rate] = [accuracy for accuracy, _ in results]
            private = results[0][1]
            print(f"  {noise}, rate {rate}: {np.round(by_rate[rate], 1)}")
        best = max(by_rate, key=lambda rate: np.mean(by_rate[rate]))
        found[noise] = by_rate[best]
        bands = private.mechanism.groups
        print(
            f"{noise}: {np.mean(found[noise]):.1f} % at rate {best}, {bands} "
            f"bands, noise multiplier {private.noise_multiplier:.2f}",
            flush=True,
        )
    wins = np.sum(np.array(found["correlated"]) > found["independent"])
    print(f"correlated noise is better in {wins} of {seeds} seeds")


def step(bands, batch_size, length, *, rounds, layers):
    import keras_hub

    samples = 100 * batch_size
    tokens = np.random.default_rng(0).integers(0, 50257, (samples, length))

    def make(way):
        private = kpg.PrivateTraining(
            noise_multiplier=1.0,
            delta=1e-5,
            samples=samples,
            batch_size=batch_size,
            steps=1000,
            user_ids="unique",
            seed=0,
            **WAYS[way],
            **({} if way == "independent" else {"bands": bands}),
        )
        backbone = keras_hub.models.GPT2Backbone(
            50257, layers, 12, 768, 3072, max_sequence_length=length
        )
        inputs = backbone.input
        logits = backbone.token_embedding(backbone(inputs), reverse=True)
        model = kpg.PerGradModel(inputs, logits)
        model.compile(
            keras.optimizers.SGD(1e-4),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            gradient_mode=private.gradient_mode,
            jit_compile=False,
        )
        x = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
        return model, private, private.batches(x, tokens)

    class Clock(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.times, self.last = [], None

        def on_train_batch_end(self, batch, logs=None):
            now = time.perf_counter()
            if self.last is not None:
                self.times.append(1e3 * (now - self.last))
            self.last = now
            if len(self.times) == rounds + 1:
                self.model.stop_training = True

    times = {}
    for way in WAYS:
        model, private, batches = make(way)
        clock = Clock()
        model.fit(batches, verbose=0, callbacks=[clock, private.callback])
        times[way] = clock.times[1:]
        print(
            f"{way}: {model.count_params() / 1e6:.0f} million weights, "
            f"{statistics.median(times[way]):.0f} ms",
            flush=True,
        )
        keras.backend.clear_session()
        del model, batches
    turns.show(times, "independent")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["accuracy", "step"])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=67)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batches", choices=BATCHES, default="at random")
    parser.add_argument("--bands", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    chosen = parser.parse_args()
    if chosen.what == "accuracy":
        accuracy(
            chosen.epsilon,
            chosen.batch_size,
            chosen.steps,
            seeds=chosen.seeds,
            batches=chosen.batches,
        )
    else:
        step(
            chosen.bands,
            chosen.batch_size,
            chosen.length,
            rounds=chosen.rounds,
            layers=chosen.layers,
        )


if __name__ == "__main__":
    main()
