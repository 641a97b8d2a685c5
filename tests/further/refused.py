"""Parts of published models that are refused, with the reason and a way out."""

import dataclasses
import typing

import keras
import numpy as np
import tensorflow as tf

from tests.further.hub_mixed import encoders
from tests.further.hub_text import DECODERS, VOCABULARY
from tests.further.kinds import (
    N,
    classified,
    integers,
    labels,
    layers,
    normal,
    ops,
    perturbed,
)


@dataclasses.dataclass(frozen=True)
class Refused:
    """A part that is refused.

    Attributes:
        part: what it is.
        reason: why, as the page says.
        way_out: what to do instead.
        make: a builder of a model with it.
        message: what the error says.
        hub: whether it is of keras-hub.
    """

    part: str
    reason: str
    way_out: str
    make: typing.Callable
    message: str
    hub: bool = False


REFUSED = []


def refused(part, reason, way_out, message, hub=False):
    """Decorate a builder as that of a model that is refused."""

    def register(make):
        REFUSED.append(Refused(part, reason, way_out, make, message, hub))
        return make

    return register


@refused(
    "contrastive losses of CLIP and SigLIP, negatives from the batch",
    "all pairs of samples are compared: `MatMul`",
    "a label for each pair, or negatives of each sample's own "
    "(`clip_pairs`, `two_tower_negatives`)",
    "multiplies all pairs of samples",
    hub=True,
)
def contrastive():
    from keras_hub.models import CLIPBackbone

    backbone = CLIPBackbone(*encoders("CLIP"), projection_dim=6)
    logits = backbone.output["vision_logits"]
    model = keras.Model(backbone.input, logits)
    model.compile("sgd", "mse")
    x = {"images": normal(16, 16, 3), "token_ids": integers(9, 6)}
    return model, x, normal(N)


@refused(
    "the loss for balanced experts of Mixtral and Qwen-MoE",
    "it multiplies means over the tokens of all samples",
    "call the backbone with `training=False` in a layer of your own "
    "(`mixtral`, `qwen_moe`)",
    "SparseMoeBlock.* mixes the samples",
    hub=True,
)
def balanced():
    from keras_hub.models import MixtralBackbone

    backbone = MixtralBackbone(**DECODERS["mixtral"])
    x = {
        "token_ids": integers(VOCABULARY, 6),
        "padding_mask": np.ones((N, 6), "int32"),
    }
    return classified(backbone.input, backbone.output, x)


@refused(
    "`MelSpectrogram` in decibels",
    "they are cut off relative to the loudest of all samples: `Max`",
    "`power_to_db=False` and a logarithm behind it (`spectrogram_net`)",
    "MelSpectrogram.* mixes the samples .*op Max",
)
def decibels():
    inputs = keras.Input((64,))
    x = layers.MelSpectrogram(
        fft_length=16,
        sequence_stride=8,
        sequence_length=16,
        sampling_rate=64,
        num_mel_bins=6,
        min_freq=1,
        max_freq=30,
    )(inputs)
    return classified(inputs, x[..., None], normal(64))


@refused(
    "`BatchNormalization` in training",
    "it divides by the statistics of the batch",
    "`replace_batch_norm`, or freeze it",
    "BatchNormalization",
)
def batch_norm():
    inputs = keras.Input((5,))
    x = layers.BatchNormalization()(layers.Dense(4)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile("sgd", "mse")
    return model, normal(5), normal(2)


class _Numbered(layers.Layer):
    """Puts rows into places of a text that are given by numbers."""

    def call(self, given):
        text, rows, places = given
        n, length = ops.shape(text)[0], text.shape[1]
        flat = ops.reshape(text, (-1, text.shape[2]))
        places = ops.reshape(places + ops.arange(n)[:, None] * length, (-1, 1))
        rows = ops.reshape(rows, (-1, text.shape[2]))
        found = tf.tensor_scatter_nd_update(flat, places, rows)
        return ops.reshape(found, ops.shape(text))


@refused(
    "images put into the places of a text that numbers give (Gemma 3's "
    "`interleave_embeddings`)",
    "a number beyond the text would be of the next sample: "
    "`TensorScatterUpdate`",
    "`vouched=[...]` names the layer, if all numbers are right; or `where` "
    "by a mask",
    "puts entries of all samples together, by their values",
)
def interleaved():
    text, rows = keras.Input((6, 4)), keras.Input((2, 4))
    places = keras.Input((2,), dtype="int32")
    x = _Numbered(name="interleave")([layers.Dense(4)(text), rows, places])
    model, x, y = classified(
        [text, rows, places],
        x,
        [normal(6, 4), normal(2, 4), np.tile([[1, 4]], (N, 1))],
    )
    return model, x, y


@refused(
    "a loss over the number of objects in the batch, as in examples of "
    "RetinaNet",
    "targets of other samples divide the loss of each: `RealDiv`",
    "divide by the number of objects of each sample (`detection_head`)",
    "depend on the whole batch|mixes the samples|compares the samples",
)
def counted():
    inputs = keras.Input((4,))
    model = perturbed(keras.Model(inputs, layers.Dense(3)(inputs)))

    def loss(y, p):
        there = ops.cast(y > 0, p.dtype)
        return ops.sum(there * (y - p) ** 2, -1) / ops.sum(abs(y) * there)

    model.compile("sgd", loss)
    return model, normal(4), normal(3)


@refused(
    "`tf.boolean_mask`, `tf.where` of one argument, `tf.unique`",
    "they give as many entries as the values say: `Where`",
    "multiply by a mask, or `where` of three arguments",
    "gives as many entries as all samples together have",
)
def selected():
    inputs = keras.Input((4,))
    x = layers.Lambda(
        lambda t: tf.reshape(
            tf.boolean_mask(tf.concat([t, t], 1), [True] * 4 + [False] * 4, 1)
            * tf.reduce_sum(tf.boolean_mask(t, t > 0)),
            (-1, 4),
        ),
        output_shape=(4,),
    )(layers.Dense(4)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile("sgd", "mse")
    return model, normal(4), normal(2)


@refused(
    "`tf.scan` and running means over the samples",
    "each sample's turn begins with what the one before has left",
    "`tf.map_fn`, or a scan along the steps of each sample",
    "samples",
)
def scanned():
    inputs = keras.Input((4,))
    x = layers.Lambda(
        lambda t: tf.scan(lambda mean, row: 0.9 * mean + 0.1 * row, t),
        output_shape=(4,),
    )(layers.Dense(4)(inputs))
    return classified(inputs, x, normal(4))


@refused(
    "Python within the step: `tf.py_function`, `tf.numpy_function`",
    "nothing is known of what they do: `PyFunc`",
    "ops of Keras or TensorFlow, `register_type_rule`, or `vouched=[...]`",
    "has no type rule",
)
def python():
    inputs = keras.Input((4,))

    def sort(t):
        found = tf.numpy_function(
            lambda a: np.sort(a, -1), [tf.stop_gradient(t)], t.dtype
        )
        return t + tf.ensure_shape(found, t.shape)

    x = layers.Lambda(sort, output_shape=(4,))(layers.Dense(4)(inputs))
    return classified(inputs, x, normal(4))


class _Centre(keras.losses.Loss):
    """How far the outputs of a class are from each other."""

    def call(self, y_true, y_pred):
        same = ops.equal(y_true[:, None], y_true[None])
        far = ops.sum((y_pred[:, None] - y_pred[None]) ** 2, -1)
        return ops.sum(far * ops.cast(same, far.dtype), 1)


@refused(
    "losses over pairs or triplets within the batch, metric learning",
    "samples are compared with each other",
    "pairs or triplets as samples (`siamese_pairs`, `siamese_triplet`)",
    "compares the samples|mixes the samples",
)
def metric_learning():
    inputs = keras.Input((4,))
    model = perturbed(keras.Model(inputs, layers.Dense(3)(inputs)))
    model.compile("sgd", _Centre())
    return model, normal(4), labels()


def table():
    """The table of docs/types.md."""
    lines = [
        "| part of a model | why it is refused | way out |",
        "|---|---|---|",
    ]
    lines += [f"| {r.part} | {r.reason} | {r.way_out} |" for r in REFUSED]
    return "".join(f"{line}\n" for line in lines)
