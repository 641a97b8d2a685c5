"""Models that people train, with random weights and a small head.

Each builder of `MODELS` takes a size, "tiny" for tests or "bench" for the
benchmarks, and returns (model, x, y). The model is not compiled and returns
logits: `loss()` goes with it. Those of keras-hub need that package.
"""

import dataclasses
import functools

import keras
import numpy as np

CLASSES = 3


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a model and its batch are.

    Attributes:
        vocabulary: number of token ids.
        layers: number of transformer blocks.
        width: units of the hidden states.
        heads: attention heads.
        inner: units inside a feed-forward block.
        positions: tokens of a sample.
        batch: samples of the batch.
        mels: channels of audio features.
        image: pixels on each side of an image for a vision transformer.
        photo: the same for a convolutional net.
    """

    vocabulary: int
    layers: int
    width: int
    heads: int
    inner: int
    positions: int
    batch: int
    mels: int = 0
    image: int = 0
    photo: int = 0


SIZES = {
    "tiny": Size(
        50,
        2,
        8,
        heads=2,
        inner=12,
        positions=7,
        batch=3,
        mels=5,
        image=8,
        photo=32,
    ),
    "bench": Size(
        30_522,
        2,
        128,
        heads=2,
        inner=512,
        positions=128,
        batch=16,
        mels=80,
        image=44,
        photo=64,
    ),
}
#: GPT-2's smallest published size: 124 million weights.
GPT2_124M = Size(50_257, 12, 768, heads=12, inner=3072, positions=64, batch=4)


def loss():
    """The loss that fits every model here."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def encoder(s):
    return {
        "vocabulary_size": s.vocabulary,
        "num_layers": s.layers,
        "num_heads": s.heads,
        "hidden_dim": s.width,
        "intermediate_dim": s.inner,
        "dropout": 0.0,
    }


def placed(s):
    """An encoder with learned positions, more of them than a sample has."""
    return {**encoder(s), "max_sequence_length": 4 * s.positions}


def _electra(s):
    settings = placed(s)
    vocabulary = settings.pop("vocabulary_size")
    return {**settings, "vocab_size": vocabulary, "embedding_dim": s.width // 2}


def _albert(s):
    return {**placed(s), "embedding_dim": s.width // 2}


def _fnet(s):
    settings = placed(s)
    del settings["num_heads"]
    return settings


def _whisper(s):
    return {
        **encoder(s),
        "num_mels": s.mels,
        "max_encoder_sequence_length": 2 * s.positions,
        "max_decoder_sequence_length": s.positions,
    }


def _deberta(s):
    return {**placed(s), "bucket_size": 4 * s.positions}


def decoder(s):
    """One head for keys and values, as grouped queries have it."""
    settings = encoder(s)
    heads = settings.pop("num_heads")
    return {**settings, "num_query_heads": heads, "num_key_value_heads": 1}


def decoder_with_head_size(s):
    return {**decoder(s), "head_dim": s.width // s.heads}


def _vision(s, patch=4):
    return {
        "image_shape": (s.image, s.image, 3),
        "patch_size": patch,
        "num_layers": s.layers,
        "num_heads": s.heads,
        "hidden_dim": s.width,
    }


def _vit(s):
    return {**_vision(s, (4, 4)), "mlp_dim": s.inner}


def _deit(s):
    return {**_vision(s), "intermediate_dim": s.inner}


def _dino(s):
    place = (2 * s.image, 2 * s.image, 3)
    return {**_deit(s), "position_embedding_shape": place}


def _swin(s):
    """Windows of 4 × 4 patches in maps of 8 × 8 (bench: 16 × 16), shifted."""
    side = 16 if s.image < 16 else 64
    return {
        "image_shape": (side, side, 3),
        "patch_size": side // (8 if side == 16 else 16),
        "embed_dim": s.width // 2,
        "depths": (2, 2),
        "num_heads": (1, 2),
        "window_size": 4,
        "drop_path": 0.0,
    }


#: Name: the class of keras_hub.models, and its settings by size.
HUB = {
    "gemma": ("Gemma", decoder_with_head_size),
    "llama": ("Llama", decoder),
    "mistral": ("Mistral", decoder),
    "qwen3": ("Qwen3", decoder_with_head_size),
    "opt": ("OPT", placed),
    "bloom": ("Bloom", encoder),
    "phi3": ("Phi3", decoder),
    "bert": ("Bert", placed),
    "gpt2": ("GPT2", placed),
    "roberta": ("Roberta", placed),
    "distilbert": ("DistilBert", placed),
    "electra": ("Electra", _electra),
    "albert": ("Albert", _albert),
    "fnet": ("FNet", _fnet),
    "t5": ("T5", encoder),
    "whisper": ("Whisper", _whisper),
    "deberta": ("DebertaV3", _deberta),
    "xlnet": ("XLNet", encoder),
    "vit": ("ViT", _vit),
    "deit": ("DeiT", _deit),
    "dinov2": ("DINOV2", _dino),
    "swin": ("SwinTransformer", _swin),
}


def hub_backbone(cls, *arguments, **settings):
    """A backbone of keras-hub; settings that are functions are called."""
    import keras_hub

    settings = {k: v() if callable(v) else v for k, v in settings.items()}
    return getattr(keras_hub.models, cls + "Backbone")(*arguments, **settings)


def _backbone(name, s):
    cls, settings = HUB[name]
    return hub_backbone(cls, **settings(s))


#: Classified by their first token, as published.
_CLASS_TOKEN_FIRST = ("vit", "deit", "dinov2")


def _classifier(name, backbone):
    """Logits from the pooled output, the class token, or the mean."""
    output = backbone.output
    if isinstance(output, dict):
        kinds = ("pooled_output", "decoder_sequence_output")
        output = next(output[kind] for kind in kinds if kind in output)
    if name in _CLASS_TOKEN_FIRST:
        output = output[:, 0]
    elif len(output.shape) == 3:
        output = keras.layers.GlobalAveragePooling1D()(output)
    logits = keras.layers.Dense(CLASSES, name="logits")(output)
    return keras.Model(backbone.input, logits)


def _values(name, tensor, s, *, rng, length):
    """A batch for one input, by its name."""
    places = s.batch, s.positions
    if name.endswith("token_ids"):
        return rng.integers(1, s.vocabulary, places, "int32")
    if name.endswith(("segment_ids", "token_types")):
        return rng.integers(0, 2, places, "int32")
    if name == "position_ids":
        return np.tile(np.arange(s.positions, dtype="int32"), (s.batch, 1))
    if name.endswith("padding_mask"):
        mask = np.ones(places, tensor.dtype)
        mask[0, -(s.positions // 4) :] = 0
        return mask
    draw = rng.uniform if name == "images" else rng.normal
    shape = (s.batch, *(size or length for size in tensor.shape[1:]))
    return draw(size=shape).astype(keras.config.floatx())


def batch(inputs, s, rng, length=None):
    """Values for a model's inputs; `length`: of an axis of any length."""
    length = length or 2 * s.positions
    if isinstance(inputs, dict):
        return {
            k: _values(k, t, s, rng=rng, length=length)
            for k, t in inputs.items()
        }
    return _values("images", inputs, s, rng=rng, length=length)


def _perturb(model, size):
    """Makes every trained weight of a small model matter: no zeros, no ones."""
    rng = np.random.default_rng(2)
    for variable in model.trainable_variables if size == "tiny" else ():
        noise = 0.1 * rng.normal(size=variable.shape)
        variable.assign_add(noise.astype(variable.dtype))
    return model


def _finish(model, s):
    rng = np.random.default_rng(0)
    x = batch(model.input, s, rng)
    return model, x, rng.integers(0, CLASSES, s.batch, "int32")


def _hub_classifier(name, size="tiny"):
    s = SIZES[size]
    return _finish(_perturb(_classifier(name, _backbone(name, s)), size), s)


def padded_xlnet():
    """A small XLNet as keras-hub has it: it mixes the samples' padding."""
    return _hub_classifier("xlnet")


def _xlnet(size="tiny"):
    """Without padding, since keras-hub mixes the samples' padding masks."""
    s = SIZES[size]
    model = _classifier("xlnet", _backbone("xlnet", s))
    inputs = {
        name: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=name)
        for name, tensor in model.input.items()
        if name != "padding_mask"
    }
    mask = keras.ops.ones_like(inputs["token_ids"])
    outputs = model({**inputs, "padding_mask": mask})
    return _finish(_perturb(keras.Model(inputs, outputs), size), s)


def _lora(name, size="tiny"):
    """Rank 4 in queries and values; of the rest only the head is trained."""
    s = SIZES[size]
    backbone = _backbone(name, s)
    backbone.enable_lora(4)
    return _finish(_perturb(_classifier(name, backbone), size), s)


def _causal(s, size):
    """A language model whose token table gives the logits, too."""
    backbone = _backbone("gpt2", s)
    logits = backbone.token_embedding(backbone.output, reverse=True)
    model = _perturb(keras.Model(backbone.input, logits), size)
    model, x, _ = _finish(model, s)
    return model, x, np.roll(x["token_ids"], -1, axis=1)


def _gpt2_causal(size="tiny"):
    return _causal(SIZES[size], size)


def _gpt2_124m(size="tiny"):
    s = GPT2_124M if size == "bench" else SIZES[size]
    return _finish(_perturb(_classifier("gpt2", _backbone("gpt2", s)), size), s)


def _gpt2_124m_causal(size="tiny"):
    return _causal(GPT2_124M if size == "bench" else SIZES[size], size)


def _pixels(name):
    """The highest value: some take 0 to 255 and rescale themselves."""
    return 255 if name in ("convnext", "mobilenetv3") else 1


def _photo_classifier(name, base, size):
    logits = keras.layers.Dense(CLASSES, name="logits")(base.output)
    model = keras.Model(base.input, logits)
    model, x, y = _finish(model, SIZES[size])
    return model, x * _pixels(name), y


def _convnext(size="tiny"):
    s = SIZES[size]
    settings = _application(s)
    if size == "bench":
        base = keras.applications.ConvNeXtTiny(**settings)
    else:
        base = keras.src.applications.convnext.ConvNeXt(
            (1, 1, 2, 1), (4, 6, 8, 10), **settings
        )
    return _photo_classifier("convnext", _perturb(base, size), size)


def _application(s):
    return {
        "include_top": False,
        "weights": None,
        "input_shape": (s.photo, s.photo, 3),
        "pooling": "avg",
    }


def _resnet50(s, size):
    if size == "bench":
        return keras.applications.ResNet50(**_application(s))
    resnet = keras.src.applications.resnet

    def stacks(x):
        x = resnet.stack_residual_blocks_v1(x, 2, 2, stride1=1, name="conv2")
        return resnet.stack_residual_blocks_v1(x, 3, 2, name="conv3")

    return resnet.ResNet(stacks, False, True, **_application(s))


def _mobilenet(s, size):
    alpha = 1.0 if size == "bench" else 0.25
    return keras.applications.MobileNetV3Small(alpha=alpha, **_application(s))


def _densenet121(s, size):
    if size == "bench":
        return keras.applications.DenseNet121(**_application(s))
    densenet = keras.src.applications.densenet
    return densenet.DenseNet((1, 2, 1, 1), **_application(s))


_CONVOLUTIONAL = {
    "resnet50": _resnet50,
    "mobilenetv3": _mobilenet,
    "densenet121": _densenet121,
}


def _norms(model):
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
    ]


def _net(name, size):
    """A net whose statistics are those of a batch, as after training.

    With a mean of 0 and a variance of 1 nothing would come out of it.
    """
    base = _perturb(_CONVOLUTIONAL[name](SIZES[size], size), size)
    images = np.random.default_rng(1).uniform(size=(32, *base.input_shape[1:]))
    momenta = [norm.momentum for norm in _norms(base)]
    for norm in _norms(base):
        norm.momentum = 0.0
    base(images * _pixels(name), training=True)
    for norm, momentum in zip(_norms(base), momenta):
        norm.momentum = momentum
    return base


def _frozen(name, size="tiny"):
    """Only the head is trained."""
    base = _net(name, size)
    base.trainable = False
    return _photo_classifier(name, base, size)


def _frozen_norms(name, size="tiny"):
    """All is trained but batch normalisation, which keeps its statistics."""
    base = _net(name, size)
    for norm in _norms(base):
        norm.trainable = False
    return _photo_classifier(name, base, size)


def unfrozen(name, size="tiny"):
    """A net of keras.applications as it is, for `replace_batch_norm`.

    Args:
        name: "resnet50", "mobilenetv3" or "densenet121".
        size: "tiny" or "bench".

    Returns:
        (model, x, y), as of `MODELS`.
    """
    return _photo_classifier(name, _net(name, size), size)


MODELS = {
    **{name: functools.partial(_hub_classifier, name) for name in HUB},
    "xlnet": _xlnet,
    "gpt2_causal": _gpt2_causal,
    "convnext": _convnext,
    **{
        f"{name}_frozen": functools.partial(_frozen, name)
        for name in _CONVOLUTIONAL
    },
    **{
        f"{name}_frozen_norms": functools.partial(_frozen_norms, name)
        for name in _CONVOLUTIONAL
    },
    "gemma_lora": functools.partial(_lora, "gemma"),
    "bert_lora": functools.partial(_lora, "bert"),
    "gpt2_124m": _gpt2_124m,
    "gpt2_124m_causal": _gpt2_124m_causal,
}

#: Those that need keras-hub.
NEED_KERAS_HUB = frozenset(
    name
    for name in MODELS
    if name in HUB or name.endswith("_lora") or name.startswith("gpt2")
)
