"""Models of keras-hub for several kinds of inputs, or of parts of these."""

import keras
import numpy as np

from tests.further.hub_text import VOCABULARY
from tests.further.hub_vision import SIDE, vitdet
from tests.further.kinds import (
    CLASSES,
    N,
    classified,
    crossentropy,
    integers,
    kind,
    labels,
    layers,
    normal,
    ops,
    perturbed,
)

_SIDE, _WORDS = 16, 6
_VISION = {
    "patch_size": 8,
    "hidden_dim": 8,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_dim": 12,
    "image_shape": (_SIDE, _SIDE, 3),
}
_TEXT = {
    "vocabulary_size": VOCABULARY,
    "embedding_dim": 8,
    "hidden_dim": 8,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_dim": 12,
    "max_sequence_length": _WORDS,
}


def _both(images=True):
    x = {"token_ids": integers(VOCABULARY - 1, _WORDS) + 1}
    if images:
        x["images"] = normal(_SIDE, _SIDE, 3)
    return x


def _matched(backbone):
    """Whether an image goes with its text: a pair is a sample.

    The contrastive loss compares all pairs of a batch: it mixes samples.
    """
    image = keras.Input((_SIDE, _SIDE, 3), name="images")
    text = keras.Input((_WORDS,), dtype="int32", name="token_ids")
    pair = [
        ops.normalize(backbone.get_vision_embeddings(image)),
        ops.normalize(backbone.get_text_embeddings(text)),
    ]
    match = ops.sum(pair[0] * pair[1], -1, keepdims=True)
    logits = layers.Dense(1, name="scale")(match)
    model = keras.Model({"images": image, "token_ids": text}, logits)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    perturbed(model).compile("sgd", loss)
    return model, _both(), np.array([[1.0], [0.0], [1.0]])


def encoders(family):
    """The two encoders of a family."""
    from keras_hub.src.models.clip import clip_text_encoder, clip_vision_encoder
    from keras_hub.src.models.metaclip_2 import (
        metaclip_2_text_encoder,
        metaclip_2_vision_encoder,
    )
    from keras_hub.src.models.siglip import (
        siglip_text_encoder,
        siglip_vision_encoder,
    )

    images, text = {
        "CLIP": (
            clip_vision_encoder.CLIPVisionEncoder,
            clip_text_encoder.CLIPTextEncoder,
        ),
        "MetaCLIP2": (
            metaclip_2_vision_encoder.MetaCLIP2VisionEncoder,
            metaclip_2_text_encoder.MetaCLIP2TextEncoder,
        ),
        "SigLIP": (
            siglip_vision_encoder.SigLIPVisionEncoder,
            siglip_text_encoder.SigLIPTextEncoder,
        ),
    }[family]
    return images(**_VISION), text(**_TEXT)


@kind("clip_pairs", "two encoders; a label for each pair")
def clip():
    from keras_hub.models import CLIPBackbone

    return _matched(CLIPBackbone(*encoders("CLIP"), projection_dim=6))


@kind("metaclip_pairs", "two encoders; a label for each pair")
def metaclip():
    from keras_hub.models import MetaCLIP2Backbone

    return _matched(MetaCLIP2Backbone(*encoders("MetaCLIP2"), projection_dim=6))


@kind("siglip_pairs", "two encoders; a label for each pair")
def siglip():
    from keras_hub.models import SigLIPBackbone

    return _matched(SigLIPBackbone(*encoders("SigLIP")))


@kind("paligemma", "images and text in one decoder", dtype="float32")
def paligemma():
    from keras_hub.models import PaliGemmaBackbone

    backbone = PaliGemmaBackbone(
        vocabulary_size=VOCABULARY,
        image_size=_SIDE,
        num_layers=2,
        num_query_heads=2,
        num_key_value_heads=1,
        hidden_dim=8,
        intermediate_dim=12,
        head_dim=4,
        vit_patch_size=8,
        vit_num_heads=2,
        vit_hidden_dim=8,
        vit_num_layers=2,
        vit_intermediate_dim=12,
    )
    x = {
        **_both(),
        "padding_mask": np.ones((N, _WORDS), "int32"),
        "response_mask": np.tile([0, 0, 0, 1, 1, 1], (N, 1)).astype("int32"),
    }
    return classified(backbone.input, backbone.output, x)


@kind("parseq", "text in images", dtype="float64")
def parseq():
    from keras_hub.models import PARSeqBackbone, ViTBackbone

    encoder = ViTBackbone(
        image_shape=(_SIDE, _SIDE, 3),
        patch_size=(8, 8),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=12,
        use_class_token=False,
    )
    backbone = PARSeqBackbone(
        encoder,
        vocabulary_size=VOCABULARY,
        max_label_length=_WORDS,
        decoder_hidden_dim=8,
        num_decoder_layers=1,
        num_decoder_heads=2,
        decoder_mlp_dim=12,
        dropout_rate=0.0,
        attention_dropout=0.0,
    )
    x = {**_both(), "padding_mask": np.ones((N, _WORDS), "int32")}
    return classified(backbone.input, backbone.output, x)


@kind("mmdit", "Stable Diffusion 3's transformer", dtype="float32")
def mmdit():
    from keras_hub.src.models.stable_diffusion_3.mmdit import MMDiT

    backbone = MMDiT(
        patch_size=2,
        hidden_dim=8,
        num_layers=2,
        num_heads=2,
        position_size=8,
        latent_shape=(8, 8, 4),
        context_shape=(_WORDS, 8),
        pooled_projection_shape=(6,),
        qk_norm="rms_norm",
        dual_attention_indices=(0,),
    )
    x = {
        "latent": normal(8, 8, 4),
        "context": normal(_WORDS, 8),
        "pooled_projection": normal(6),
        "timestep": normal(1) ** 2,
    }
    perturbed(backbone).compile("sgd", "mse")
    return backbone, x, normal(8, 8, 4, seed=1)


@kind("stable_diffusion_vae", "VAE of images", draws=True, dtype="float32")
def vae():
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    backbone = VAEBackbone(
        [32, 32], [1, 1], [32, 32], [1, 1], sample_channels=4
    )
    inputs = keras.Input((8, 8, 3))
    model = keras.Model(inputs, backbone(inputs))
    perturbed(model).compile("sgd", "mse")
    return model, normal(8, 8, 3), normal(8, 8, 3, seed=1)


@kind("flux", "Flux's transformer", dtype="float32")
def flux():
    from keras_hub.models import FluxBackbone

    backbone = FluxBackbone(
        input_channels=4,
        hidden_size=8,
        mlp_ratio=2.0,
        num_heads=1,
        depth=1,
        depth_single_blocks=1,
        axes_dim=[2, 2, 4],
        theta=10_000,
        use_bias=True,
        image_shape=(4, 4),
        text_shape=(_WORDS, 8),
        image_ids_shape=(4, 3),
        text_ids_shape=(_WORDS, 3),
        y_shape=(6,),
    )
    x = {
        name: normal(*tensor.shape[1:])
        for name, tensor in backbone.input.items()
    }
    perturbed(backbone).compile("sgd", "mse")
    return backbone, x, normal(*backbone.output.shape[1:], seed=1)


@kind("sam", "masks of an image by prompts")
def sam():
    from keras_hub.models import SAMBackbone
    from keras_hub.src.models.sam.sam_mask_decoder import SAMMaskDecoder
    from keras_hub.src.models.sam.sam_prompt_encoder import SAMPromptEncoder

    backbone = SAMBackbone(
        vitdet(8),
        SAMPromptEncoder(
            hidden_size=8,
            image_embedding_size=(4, 4),
            input_image_size=(SIDE, SIDE),
            mask_in_channels=4,
        ),
        SAMMaskDecoder(
            num_layers=2,
            hidden_size=8,
            intermediate_dim=12,
            num_heads=2,
            embedding_dim=8,
            iou_head_hidden_dim=8,
        ),
    )
    x = {
        "images": normal(SIDE, SIDE, 3),
        "points": abs(normal(2, 2)) * 5,
        "labels": np.tile([[1.0, 0.0]], (N, 1)).astype("float32"),
        "boxes": abs(normal(1, 2, 2)) * 5,
        "masks": normal(1, 16, 16, 1),
    }
    masks = backbone.mask_decoder(**backbone.output)["masks"]
    return classified(backbone.input, ops.transpose(masks, (0, 2, 3, 1)), x)


@kind("blip2_qformer", "queries to an image", dtype="float64")
def qformer():
    from keras_hub.src.models.blip2.blip2_qformer import BLIP2QFormer

    former = BLIP2QFormer(
        num_query_tokens=4,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=12,
        vision_dim=8,
        cross_attention_frequency=2,
        dropout=0.0,
        layer_norm_epsilon=1e-6,
    )
    inputs = keras.Input((5, 8))
    logits = layers.Dense(CLASSES)(ops.mean(former(inputs), 1))
    model = perturbed(keras.Model(inputs, logits))
    model.compile("sgd", crossentropy())
    return model, normal(5, 8), labels()
