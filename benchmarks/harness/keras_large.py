"""The models of `large_models.py` in Keras and keras-hub."""

import keras

from benchmarks.harness.large_models import MODELS

layers = keras.layers


def build_model(name, model_class=keras.Model):
    """Return a model of ids or images that returns logits."""
    keras.utils.set_random_seed(0)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(MODELS[name].policy)
    try:
        inputs, outputs = _BODIES[name.split("_")[0]](name, MODELS[name])
        return model_class(inputs, outputs)
    finally:
        keras.config.set_dtype_policy(before)


def make_loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _wrn(name, large):
    """WRN-16-4 with group norms in the place of batch norms."""

    def activated(x):
        return layers.ReLU()(layers.GroupNormalization(16)(x))

    def conv(filters, size=3, strides=1):
        return layers.Conv2D(
            filters, size, strides, padding="same", use_bias=False
        )

    inputs = keras.Input(large.inputs)
    x = conv(16)(inputs)
    for width, strides in ((64, 1), (128, 2), (256, 2)):
        for block in range(2):
            first = strides if block == 0 else 1
            h = activated(x)
            shortcut = x if block else conv(width, 1, strides)(h)
            h = activated(conv(width, 3, first)(h))
            x = layers.Add()([shortcut, conv(width)(h)])
    x = layers.GlobalAveragePooling2D()(activated(x))
    return inputs, layers.Dense(large.classes)(x)


def _resnet50(name, large):
    """ResNet50 with frozen batch norms, as in fine-tuning."""
    base = keras.applications.ResNet50(
        weights=None, include_top=False, input_shape=large.inputs
    )
    for layer in base.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.trainable = False
    x = layers.GlobalAveragePooling2D()(base.output)
    return base.input, layers.Dense(large.classes)(x)


def _bert(name, large):
    from keras_hub.models import BertBackbone

    backbone = BertBackbone(
        large.vocabulary,
        dropout=0.0,
        max_sequence_length=large.inputs[0],
        **_sizes(large.encoder),
    )
    ids = keras.Input(large.inputs, dtype="int32")
    hidden = backbone(
        {
            "token_ids": ids,
            "padding_mask": keras.ops.ones_like(ids),
            "segment_ids": keras.ops.zeros_like(ids),
        }
    )
    return ids, layers.Dense(large.classes)(hidden["pooled_output"])


def _gpt2(name, large):
    """GPT-2 with a head tied to its embedding, with LoRA or without."""
    from keras_hub.models import GPT2Backbone

    backbone = GPT2Backbone(
        large.vocabulary,
        dropout=0.0,
        max_sequence_length=large.inputs[0],
        **_sizes(large.encoder),
    )
    if name.endswith("lora"):
        backbone.enable_lora(8)
    ids = keras.Input(large.inputs, dtype="int32")
    hidden = backbone(
        {"token_ids": ids, "padding_mask": keras.ops.ones_like(ids)}
    )
    return ids, backbone.token_embedding(hidden, reverse=True)


def _vit(name, large):
    from keras_hub.models import ViTBackbone

    sizes = _sizes(large.encoder)
    sizes["mlp_dim"] = sizes.pop("intermediate_dim")
    backbone = ViTBackbone(image_shape=large.inputs, patch_size=16, **sizes)
    x = layers.GlobalAveragePooling1D()(backbone.output)
    return backbone.input, layers.Dense(large.classes)(x)


def _sizes(encoder):
    return {
        "num_layers": encoder.layers,
        "num_heads": encoder.heads,
        "hidden_dim": encoder.width,
        "intermediate_dim": encoder.inner,
    }


_BODIES = {
    "wrn": _wrn,
    "resnet50": _resnet50,
    "bert": _bert,
    "gpt2": _gpt2,
    "vit": _vit,
}
