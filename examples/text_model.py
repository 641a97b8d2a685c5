"""A text model: clip every sentence's gradient, find the wrong labels.

Makes up film reviews, labels some of them wrongly, trains an Embedding and a
GRU with masked padding, and ranks the reviews by the size of their gradients.

    python examples/text_model.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pathlib

import keras
import matplotlib
import numpy as np

matplotlib.use("Agg")

import matplotlib.pyplot as plt

import keras_pergrad as kpg

OUTPUT = pathlib.Path(__file__).parent / "output"
REVIEWS, WRONG, LENGTH = 500, 15, 14
GOOD = ["good", "great", "fine", "lovely", "happy", "warm", "bright"]
BAD = ["bad", "awful", "poor", "sad", "cold", "dull", "flat"]
OTHER = ["the", "a", "film", "plot", "was", "very", "and", "so", "story", "it"]


def make_reviews(rng):
    """Texts, their labels, and which of the labels are wrong."""
    right = rng.integers(0, 2, REVIEWS)
    texts = []
    for label in right:
        own = rng.choice(GOOD if label else BAD, rng.integers(1, 4))
        rest = rng.choice(OTHER, rng.integers(3, 10))
        texts.append(" ".join(rng.permutation([*own, *rest])))
    wrong = rng.choice(REVIEWS, WRONG, replace=False)
    given = right.copy()
    given[wrong] = 1 - given[wrong]
    return texts, given, wrong


def make_model(size):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(size, 16, mask_zero=True)(inputs)
    x = keras.layers.GRU(16)(x)
    outputs = keras.layers.Dense(1, activation="sigmoid")(x)
    model = kpg.PerGradModel(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(0.02),
        "binary_crossentropy",
        metrics=["accuracy"],
        # A wrong label cannot pull far, so that it is not learned.
        gradient_mode=kpg.Vectorized(kpg.ClippedMean(0.5)),
    )
    return model


def draw(norms, wrong):
    figure, axis = plt.subplots(figsize=(7, 3.5))
    bins = np.geomspace(max(norms.min(), 1e-4), norms.max(), 30)
    axis.hist(np.delete(norms, wrong), bins, label="right label")
    axis.hist(norms[wrong], bins, label="wrong label")
    axis.set(xscale="log", xlabel="‖gradient‖ of a review", ylabel="reviews")
    axis.legend()
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "text_model.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    return path


def main():
    keras.utils.set_random_seed(0)
    texts, given, wrong = make_reviews(np.random.default_rng(0))
    vectorize = keras.layers.TextVectorization(
        output_sequence_length=LENGTH, vocabulary=[*GOOD, *BAD, *OTHER]
    )
    x = vectorize(texts).numpy()
    model = make_model(vectorize.vocabulary_size())
    model.fit(x, given, batch_size=50, epochs=6, verbose=2)
    norms = kpg.per_sample_norms(model, x, given, training=False).numpy()
    order = norms.argsort()[::-1]
    print("\nThe reviews with the largest gradients:")
    for i in order[:5]:
        label = "good" if given[i] else "bad"
        print(f"{norms[i]:6.2f}  labelled {label:<5} {texts[i]}")
    found = np.isin(order[:WRONG], wrong).sum()
    print(f"{found} of {WRONG} wrong labels are among the {WRONG} largest")
    print(f"Picture: {draw(norms, wrong).relative_to(OUTPUT.parent.parent)}")


if __name__ == "__main__":
    main()
