"""Multimodal models of keras-hub, or components of these."""

import importlib

import numpy as np

from tests.further import tasks
from tests.further.hub_text import TINY, inputs_of
from tests.further.hub_vision import BLOCKS, SIDE, VITDET
from tests.further.kinds import added, classified, kind, layers, ops, perturbed
from tests.real_models import hub_backbone

IMAGE, WORDS = (16, 16, 3), tasks.integers(TINY.vocabulary, 6)


def _part(model, name):
    """A class of keras-hub that is not public: by its module and name."""
    module = importlib.import_module(f"keras_hub.src.models.{model}")
    return getattr(module, name)


def encoders(family):
    """The two encoders of a family."""
    folder = {"MetaCLIP2": "metaclip_2"}.get(family, family.lower())
    path = f"{folder}.{folder}_{{}}_encoder"
    images = _part(path.format("vision"), f"{family}VisionEncoder")
    text = _part(path.format("text"), f"{family}TextEncoder")
    blocks = {k: v for k, v in BLOCKS.items() if k != "patch_size"}
    return [
        images(image_shape=IMAGE, **BLOCKS),
        text(
            vocabulary_size=TINY.vocabulary,
            embedding_dim=8,
            max_sequence_length=6,
            **blocks,
        ),
    ]


def _matched(family, **settings):
    """Whether an image goes with its text: a pair is a sample.

    The contrastive loss compares all pairs of a batch: it mixes samples.
    """

    def build(image, text):
        backbone = hub_backbone(family, *encoders(family), **settings)
        pair = [
            ops.normalize(backbone.get_vision_embeddings(image)),
            ops.normalize(backbone.get_text_embeddings(text)),
        ]
        match = ops.sum(pair[0] * pair[1], -1, keepdims=True)
        return layers.Dense(1, name="scale")(match), tasks.BINARY()

    return build


for _name, _family, _settings in (
    ("clip_pairs", "CLIP", {"projection_dim": 6}),
    ("metaclip_pairs", "MetaCLIP2", {"projection_dim": 6}),
    ("siglip_pairs", "SigLIP", {}),
):
    kind(
        IMAGE,
        WORDS,
        y=tasks.given([[1], [0], [1]]),
        name=_name,
        about="two encoders; a label for each pair",
    )(_matched(_family, **_settings))


@added("paligemma", "images and text in one decoder", __name__, dtype="float32")
def paligemma():
    backbone = hub_backbone(
        "PaliGemma",
        vocabulary_size=TINY.vocabulary,
        image_size=16,
        num_layers=2,
        num_query_heads=2,
        num_key_value_heads=1,
        hidden_dim=8,
        intermediate_dim=12,
        head_dim=4,
        **{f"vit_{name}": value for name, value in BLOCKS.items()},
    )
    response = np.arange(TINY.positions) >= 3
    x = inputs_of(backbone)
    x["response_mask"] = np.tile(response, (tasks.N, 1)).astype("int32")
    return classified(backbone.input, backbone.output, x)


@added("parseq", "text in images", __name__)
def parseq():
    encoder = hub_backbone(
        "ViT",
        image_shape=IMAGE,
        patch_size=(8, 8),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=12,
        use_class_token=False,
    )
    backbone = hub_backbone(
        "PARSeq",
        encoder,
        vocabulary_size=TINY.vocabulary,
        max_label_length=TINY.positions,
        decoder_hidden_dim=8,
        num_decoder_layers=1,
        num_decoder_heads=2,
        decoder_mlp_dim=12,
        dropout_rate=0.0,
        attention_dropout=0.0,
    )
    return classified(backbone.input, backbone.output, inputs_of(backbone))


def _regressed(model, *shape):
    """Against normal numbers; `shape`: of outputs whose own has gaps."""
    perturbed(model).compile("sgd", "mse")
    y = tasks.normals(*(shape or model.output.shape[1:]))
    return model, inputs_of(model), y.batch(1)


@added("mmdit", "Stable Diffusion 3's transformer", __name__, dtype="float32")
def mmdit():
    net = _part("stable_diffusion_3.mmdit", "MMDiT")
    return _regressed(
        net(
            patch_size=2,
            hidden_dim=8,
            num_layers=2,
            num_heads=2,
            position_size=8,
            latent_shape=(8, 8, 4),
            context_shape=(6, 8),
            pooled_projection_shape=(6,),
            qk_norm="rms_norm",
            dual_attention_indices=(0,),
        ),
        *(8, 8, 4),
    )


@kind((8, 8, 3), y=(8, 8, 3), draws=True, dtype="float32")
def stable_diffusion_vae(inputs):
    """VAE of images."""
    net = _part("vae.vae_backbone", "VAEBackbone")
    sizes = [32, 32], [1, 1], [32, 32], [1, 1]
    return net(*sizes, sample_channels=4)(inputs), "mse"


@added("flux", "Flux's transformer", __name__, dtype="float32")
def flux():
    return _regressed(
        hub_backbone(
            "Flux",
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
            text_shape=(6, 8),
            image_ids_shape=(4, 3),
            text_ids_shape=(6, 3),
            y_shape=(6,),
        )
    )


@added("sam", "masks of an image by prompts", __name__)
def sam():
    prompts = _part("sam.sam_prompt_encoder", "SAMPromptEncoder")
    masks = _part("sam.sam_mask_decoder", "SAMMaskDecoder")
    backbone = hub_backbone(
        "SAM",
        hub_backbone("ViTDet", num_output_channels=8, **VITDET),
        prompts(
            hidden_size=8,
            image_embedding_size=(4, 4),
            input_image_size=(SIDE, SIDE),
            mask_in_channels=4,
        ),
        masks(
            num_layers=2,
            hidden_size=8,
            intermediate_dim=12,
            num_heads=2,
            embedding_dim=8,
            iou_head_hidden_dim=8,
        ),
    )
    x = {
        "images": tasks.normals(SIDE, SIDE, 3).batch(0),
        "points": abs(tasks.normals(2, 2).batch(0)) * 5,
        "labels": np.tile([[1.0, 0.0]], (tasks.N, 1)).astype("float32"),
        "boxes": abs(tasks.normals(1, 2, 2).batch(0)) * 5,
        "masks": tasks.normals(1, 16, 16, 1).batch(0),
    }
    found = backbone.mask_decoder(**backbone.output)["masks"]
    return classified(backbone.input, ops.transpose(found, (0, 2, 3, 1)), x)


@kind((5, 8))
def blip2_qformer(inputs):
    """Queries to an image."""
    former = _part("blip2.blip2_qformer", "BLIP2QFormer")
    return former(
        num_query_tokens=4,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=12,
        vision_dim=8,
        cross_attention_frequency=2,
        dropout=0.0,
        layer_norm_epsilon=1e-6,
    )(inputs)
