"""Models of the size that people train on a GPU, apart from any framework."""

import dataclasses
import os

import numpy as np

#: Makes every model small, to try a benchmark itself.
TINY = "BENCH_TINY"


@dataclasses.dataclass(frozen=True)
class Encoder:
    """The sizes of a stack of attention blocks.

    Attributes:
        layers: how many blocks.
        heads: attention heads.
        width: units of the hidden states.
        inner: units inside a feed-forward block.
    """

    layers: int = 12
    heads: int = 12
    width: int = 768
    inner: int = 3072


@dataclasses.dataclass(frozen=True)
class Large:
    """Inputs and targets of a model.

    Attributes:
        inputs: the shape of a sample.
        classes: the number of classes; of a causal model the vocabulary.
        vocabulary: the number of ids where inputs are ids, else None.
        causal: whether there is a target for each position.
        encoder: the sizes of its blocks, or None.
        policy: the dtype policy of its layers.
    """

    inputs: tuple
    classes: int
    vocabulary: int | None = None
    causal: bool = False
    encoder: Encoder | None = None
    policy: str = "float32"


_GPT2 = {
    f"gpt2_{positions}{suffix}": Large(
        (positions,), 50_257, 50_257, causal=True, encoder=Encoder()
    )
    for positions, suffix in ((512, ""), (1024, ""), (512, "_lora"))
}
_FULL = {
    "wrn_16_4": Large((32, 32, 3), 10),
    "resnet50": Large((224, 224, 3), 10),
    "bert": Large((128,), 3, 30_522, encoder=Encoder()),
    **_GPT2,
    "vit": Large((224, 224, 3), 10, encoder=Encoder()),
}
#: Those in mixed precision, as "bert_bfloat16".
HALF = ("bfloat16", "float16")
_FULL |= {
    f"{name}_{half}": dataclasses.replace(_FULL[name], policy=f"mixed_{half}")
    for name in ("bert", "gpt2_512", "vit")
    for half in HALF
}


def tiny(large):
    """Return the same model with the least sizes."""
    images = len(large.inputs) == 3
    return dataclasses.replace(
        large,
        inputs=(32, 32, 3) if images else (16,),
        classes=100 if large.causal else large.classes,
        vocabulary=large.vocabulary and 100,
        encoder=large.encoder and Encoder(1, 2, 8, inner=16),
    )


MODELS = {
    name: tiny(large) if os.environ.get(TINY) else large
    for name, large in _FULL.items()
}


def make_batch(name, n, seed=1):
    """Return a batch of n samples: (x, y), float32 or int32 and int32."""
    large, rng = MODELS[name], np.random.default_rng(seed)
    shape = (n, *large.inputs)
    if large.vocabulary:
        x = rng.integers(3, large.vocabulary, shape, "int32")
    else:
        x = rng.normal(size=shape).astype("float32")
    targets = shape if large.causal else (n,)
    return x, rng.integers(0, large.classes, targets, "int32")
