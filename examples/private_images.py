"""A private training that is resumed in pieces: a wide residual net on images.

The net is a small one of the kind that De et al. trained privately (arXiv
2204.13650): convolutions with standardised kernels, GroupNormalization, some
augmented views of each image, and momentum. Its images are made: ellipses,
bars, crosses and corners, at any place, in noise. Each piece of the training
is a process of its own that loads the model, trains for some epochs and saves
it, as on a cluster with a time limit. Epsilon is counted on.

    python examples/private_images.py

Needs `pip install . --group examples`; some minutes.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np

import keras_pergrad as kpg

SIZE, CLASSES = 16, 4
EXAMPLES, TEST_EXAMPLES, BATCH_SIZE, VIEWS = 4096, 1024, 256, 2
PIECES, EPOCHS_OF_A_PIECE = 3, 2
layers = keras.layers


def make_data(examples, seed):
    """Images (examples, SIZE, SIZE, 1) of one shape each, and its class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, examples).astype("int32")
    places = rng.uniform(6, SIZE - 6, (2, examples, 1, 1))
    sizes = rng.uniform(3.5, 5.5, (2, examples, 1, 1))
    rows, columns = np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij")
    down, across = (
        (rows - places[0]) / sizes[0],
        (columns - places[1]) / sizes[1],
    )
    is_inside = np.maximum(abs(down), abs(across)) < 1
    shapes = np.stack(
        [
            down**2 + across**2 < 1,
            is_inside & (abs(across) < 0.35),
            is_inside & (np.minimum(abs(down), abs(across)) < 0.25),
            is_inside & (np.maximum(down, across) > 0.3),
        ]
    )[y, np.arange(examples)]
    images = shapes + rng.normal(0, 0.25, shapes.shape)
    return images[..., None].astype("float32"), y


@keras.saving.register_keras_serializable("private_images")
class StandardisedConv2D(layers.Conv2D):
    """A convolution whose kernel has mean 0 and variance 1 over its inputs."""

    def convolution_op(self, inputs, kernel):
        mean, variance = keras.ops.moments(kernel, [0, 1, 2], keepdims=True)
        fan_in = np.prod(kernel.shape[:3])
        kernel = (kernel - mean) / keras.ops.sqrt(fan_in * variance + 1e-4)
        return super().convolution_op(inputs, kernel)


def block(x, filters, strides):
    """Two convolutions beside a shortcut."""
    h = keras.ops.relu(layers.GroupNormalization(8)(x))
    if strides > 1 or x.shape[-1] != filters:
        x = StandardisedConv2D(filters, 1, strides)(h)
    h = StandardisedConv2D(filters, 3, strides, "same")(h)
    h = keras.ops.relu(layers.GroupNormalization(8)(h))
    return x + StandardisedConv2D(filters, 3, padding="same")(h)


def make_model():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((SIZE, SIZE, 1))
    x = StandardisedConv2D(16, 3, padding="same")(inputs)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        x = block(x, filters, strides)
    x = keras.ops.relu(layers.GroupNormalization(8)(x))
    x = layers.GlobalAveragePooling2D()(x)
    return kpg.PerGradModel(inputs, layers.Dense(CLASSES)(x))


def make_plan():
    """Make the same plan in each piece: it is what epsilon is counted for."""
    return kpg.PrivateTraining(
        target_epsilon=4.0,
        delta=1e-5,
        clip_norm=1.0,
        samples=EXAMPLES,
        batch_size=BATCH_SIZE,
        epochs=PIECES * EPOCHS_OF_A_PIECE,
        user_ids="unique",
        augmentations=VIEWS,
        augment=keras.Sequential(
            [
                layers.RandomFlip("horizontal"),
                layers.ZeroPadding2D(2),
                layers.RandomCrop(SIZE, SIZE),
            ]
        ),
    )


def train_piece(path, piece):
    """Go on with the model of a file, or begin; save it there."""
    private, x_and_y = make_plan(), make_data(EXAMPLES, seed=0)
    model = keras.saving.load_model(path) if piece else make_model()
    if not piece:
        print(private)
        model.compile(
            keras.optimizers.SGD(0.5, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            gradient_mode=private.gradient_mode,
            jit_compile=False,
        )
    begin = piece * EPOCHS_OF_A_PIECE
    history = model.fit(
        private.batches(*x_and_y),
        initial_epoch=begin,
        epochs=begin + EPOCHS_OF_A_PIECE,
        callbacks=[private.callback],
        verbose=0,
    )
    model.save(path)
    test = make_data(TEST_EXAMPLES, seed=1)
    accuracy = model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]
    epsilon = history.history["epsilon"][-1]
    print(f"piece {piece + 1}: accuracy {accuracy:.3f}, epsilon {epsilon:.2f}")
    if piece == PIECES - 1:
        print(private.statement(model))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", type=pathlib.Path)
    parser.add_argument("--piece", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.path:
        return train_piece(chosen.path, chosen.piece)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        for piece in range(PIECES):
            subprocess.run(
                [
                    sys.executable,
                    __file__,
                    f"--path={path}",
                    f"--piece={piece}",
                ],
                check=True,
            )


if __name__ == "__main__":
    main()
