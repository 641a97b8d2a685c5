"""Parts of published models that are refused, with the reason and a way out."""

import dataclasses
import functools
import typing

import numpy as np
import tensorflow as tf

from tests.further import tasks
from tests.further.hub_mixed import IMAGE, WORDS, encoders
from tests.further.hub_text import MIXTRAL
from tests.further.kinds import Own, layers, made, ops
from tests.further.sequences import mel_bands
from tests.real_models import hub_backbone


@dataclasses.dataclass(frozen=True)
class Refused:
    """A part that is refused.

    Attributes:
        part: what it is.
        reason: why, as the page says.
        way_out: what to do instead.
        name: of the builder of a model with it.
        make: returns the model, x and y.
        message: what the error says.
        hub: whether it is of keras-hub.
    """

    part: str
    reason: str
    way_out: str
    name: str
    make: typing.Callable
    message: str
    hub: bool = False


REFUSED = []


def refused(part, reason, way_out, message, *inputs, y=tasks.LABELS, hub=False):
    """Decorate a builder, as one of `kind`, of a model that is refused."""

    def register(build):
        make = functools.partial(made, build, inputs, y)
        case = Refused(
            part,
            reason,
            way_out,
            name=build.__name__,
            make=make,
            message=message,
            hub=hub,
        )
        REFUSED.append(case)
        return build

    return register


@refused(
    "contrastive losses of CLIP and SigLIP, negatives from the batch",
    "all pairs of samples are compared: `MatMul`",
    "use a label for each pair, or give each sample its own negatives "
    "(`clip_pairs`, `two_tower_negatives`)",
    "multiplies all pairs of samples",
    IMAGE,
    WORDS,
    y=(tasks.N,),
    hub=True,
)
def contrastive(images, text):
    backbone = hub_backbone("CLIP", *encoders("CLIP"), projection_dim=6)
    found = backbone({"images": images, "token_ids": text})
    return found["vision_logits"], "mse"


@refused(
    "the loss for balanced experts of Mixtral and Qwen-MoE",
    "it multiplies means over the tokens of all samples",
    "call the backbone with `training=False` in a custom layer "
    "(`mixtral`, `qwen_moe`)",
    "SparseMoeBlock.* mixes the samples",
    WORDS,
    tasks.given(np.ones((tasks.N, 6)), "int32"),
    hub=True,
)
def balanced(text, mask):
    backbone = hub_backbone("Mixtral", **MIXTRAL)
    return backbone({"token_ids": text, "padding_mask": mask})


@refused(
    "`MelSpectrogram` in decibels",
    "decibels are cut off relative to the loudest of all samples: `Max`",
    "use `power_to_db=False`, and take the logarithm afterwards "
    "(`spectrogram_net`)",
    "MelSpectrogram.* mixes the samples .*op Max",
    (64,),
)
def decibels(inputs):
    return mel_bands(inputs)


@refused(
    "`BatchNormalization` in training",
    "it divides by the statistics of the batch",
    "use `replace_batch_norm`, or freeze it",
    "BatchNormalization",
    (5,),
    y=(2,),
)
def batch_norm(inputs):
    x = layers.BatchNormalization()(layers.Dense(4)(inputs))
    return layers.Dense(2)(x), "mse"


def _numbered(text, rows, places):
    """Puts rows into places of a text that are given by numbers."""
    n, length = ops.shape(text)[0], text.shape[1]
    flat = ops.reshape(text, (-1, text.shape[2]))
    places = ops.reshape(places + ops.arange(n)[:, None] * length, (-1, 1))
    rows = ops.reshape(rows, (-1, text.shape[2]))
    found = tf.tensor_scatter_nd_update(flat, places, rows)
    return ops.reshape(found, ops.shape(text))


@refused(
    "images put into a text at positions given by indices (Gemma 3's "
    "`interleave_embeddings`)",
    "an index beyond the text would point into the next sample: "
    "`TensorScatterUpdate`",
    "name the layer in `vouched=[...]` if all indices are valid, or use "
    "`where` with a mask",
    "puts entries of all samples together, by their values",
    (6, 4),
    (2, 4),
    tasks.given([[1, 4]] * tasks.N, "int32"),
)
def interleaved(text, rows, places):
    return Own(_numbered)([layers.Dense(4)(text), rows, places])


@refused(
    "a loss over the number of objects in the batch, as in examples of "
    "RetinaNet",
    "each loss is divided by a sum over the targets of all samples: `RealDiv`",
    "divide by the number of objects of each sample (`detection_head`)",
    "depend on the whole batch|mixes the samples|compares the samples",
    (4,),
    y=(3,),
)
def counted(inputs):
    def loss(y, p):
        there = ops.cast(y > 0, p.dtype)
        return ops.sum(there * (y - p) ** 2, -1) / ops.sum(abs(y) * there)

    return layers.Dense(3)(inputs), loss


def _positive(t):
    twice = tf.concat([t, t], 1)
    first = tf.boolean_mask(twice, [True] * 4 + [False] * 4, 1)
    total = tf.reduce_sum(tf.boolean_mask(t, t > 0))
    return tf.reshape(first * total, (-1, 4))


@refused(
    "`tf.boolean_mask`, `tf.where` with one argument, `tf.unique`",
    "the number of their results depends on the values: `Where`",
    "multiply by a mask, or use `where` with three arguments",
    "gives as many entries as all samples together have",
    (4,),
)
def selected(inputs):
    return Own(_positive)(layers.Dense(4)(inputs))


def _running_mean(t):
    return tf.scan(lambda mean, row: 0.9 * mean + 0.1 * row, t)


@refused(
    "`tf.scan` and running means over the samples",
    "each sample's step starts from the state that the last one left",
    "use `tf.map_fn`, or scan along the steps of each sample",
    "samples",
    (4,),
)
def scanned(inputs):
    return Own(_running_mean)(layers.Dense(4)(inputs))


def _sorted(t):
    found = tf.numpy_function(
        lambda a: np.sort(a, -1), [tf.stop_gradient(t)], t.dtype
    )
    return t + tf.ensure_shape(found, t.shape)


@refused(
    "Python within the step: `tf.py_function`, `tf.numpy_function`",
    "what the functions do is unknown: `PyFunc`",
    "use ops of Keras or TensorFlow, `register_type_rule`, or `vouched=[...]`",
    "has no type rule",
    (4,),
)
def python(inputs):
    return Own(_sorted)(layers.Dense(4)(inputs))


def _centre(y_true, y_pred):
    """How far the outputs of a class are from each other."""
    same = ops.equal(y_true[:, None], y_true[None])
    far = ops.sum((y_pred[:, None] - y_pred[None]) ** 2, -1)
    return ops.sum(far * ops.cast(same, far.dtype), 1)


@refused(
    "losses over pairs or triplets within the batch, metric learning",
    "samples are compared with each other",
    "treat each pair or triplet as one sample (`siamese_pairs`, "
    "`siamese_triplet`)",
    "compares the samples|mixes the samples",
    (4,),
)
def metric_learning(inputs):
    return layers.Dense(3)(inputs), _centre


def table():
    """The table of docs/types.md."""
    lines = [
        "| component of a model | why it is refused | way out |",
        "|---|---|---|",
    ]
    lines += [f"| {r.part} | {r.reason} | {r.way_out} |" for r in REFUSED]
    return "".join(f"{line}\n" for line in lines)
