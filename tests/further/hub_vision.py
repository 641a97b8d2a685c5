"""Vision models of keras-hub with random weights, batch norms frozen."""

import functools

import tensorflow as tf

from tests.further import tasks
from tests.further.kinds import added, classified
from tests.real_models import hub_backbone

SIDE = 32
IMAGE, LARGE = (SIDE, SIDE, 3), (64, 64, 3)
#: Of a vision transformer.
BLOCKS = {
    "patch_size": 8,
    "hidden_dim": 8,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_dim": 12,
}
RESNET = functools.partial(
    hub_backbone,
    "ResNet",
    input_conv_filters=[64],
    input_conv_kernel_sizes=[3],
    stackwise_num_filters=[64, 8, 8, 8],
    stackwise_num_blocks=[1, 1, 1, 1],
    stackwise_num_strides=[1, 2, 2, 2],
    block_type="basic_block",
)
MIT = {
    "layerwise_depths": [1, 1],
    "num_layers": 2,
    "layerwise_num_heads": [1, 2],
    "layerwise_sr_ratios": [2, 1],
    "max_drop_path_rate": 0.0,
    "layerwise_patch_sizes": [7, 3],
    "layerwise_strides": [4, 2],
    "hidden_dims": [4, 8],
    "image_shape": IMAGE,
}
#: A transformer with windows.
VITDET = {
    "hidden_size": 8,
    "num_layers": 2,
    "intermediate_dim": 12,
    "num_heads": 2,
    "global_attention_layer_indices": [1],
    "patch_size": 8,
    "window_size": 2,
    "image_shape": IMAGE,
}

D_FINE = {
    "backbone": functools.partial(
        hub_backbone,
        "HGNetV2",
        stem_channels=[3, 4, 4],
        stackwise_stage_filters=[
            [4, 4, 8, 1, 3, 3],
            [8, 4, 16, 1, 3, 3],
            [16, 8, 32, 1, 3, 5],
            [32, 16, 64, 1, 3, 5],
        ],
        apply_downsample=[False, True, True, True],
        use_lightweight_conv_block=[False, False, True, True],
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 32, 64],
        embedding_size=4,
        use_learnable_affine_block=True,
        hidden_act="relu",
        image_shape=LARGE,
        out_features=["stage3", "stage4"],
    ),
    "decoder_in_channels": [16, 16],
    "encoder_hidden_dim": 16,
    "num_denoising": 0,
    "num_labels": 5,
    "hidden_dim": 16,
    "learn_initial_query": False,
    "num_queries": 6,
    "anchor_image_size": (64, 64),
    "feat_strides": [16, 32],
    "num_feature_levels": 2,
    "encoder_in_channels": [32, 64],
    "encode_proj_layers": [1],
    "num_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "num_encoder_layers": 1,
    "hidden_expansion": 0.34,
    "depth_multiplier": 0.5,
    "eval_idx": -1,
    "num_decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 32,
    "decoder_n_points": [2, 2],
    "lqe_hidden_dim": 8,
    "num_lqe_layers": 2,
    "out_features": ["stage3", "stage4"],
    "image_shape": LARGE,
    "seed": 0,
}


def _hub(
    name, cls, about, *, dtype="float64", draws=False, output=None, **settings
):
    """A classifier by an output of a backbone, by default the last one.

    In float32 are those with such parts; `draws` says of those with dropout
    that nothing switches off.
    """

    @added(name, about, __name__, dtype=dtype, draws=draws)
    def make():
        backbone = hub_backbone(cls, **settings)
        found = backbone.output
        if isinstance(found, dict):
            found = found[output or list(found)[-1]]
        if isinstance(found, (list, tuple)):
            found = found[0]
        x = tf.nest.map_structure(
            lambda t: tasks.normals(
                *[size or SIDE for size in t.shape[1:]]
            ).batch(0),
            backbone.input,
        )
        return classified(backbone.input, found, x)


_hub(
    "cspnet",
    "CSPNet",
    "cross stage partial net",
    stem_filters=4,
    stem_kernel_size=3,
    stem_strides=1,
    stackwise_depth=[1, 1],
    stackwise_strides=[2, 2],
    stackwise_num_filters=[8, 12],
    block_type="dark_block",
    stage_type="dark",
    bottle_ratio=[0.5],
    block_ratio=[1.0],
    expand_ratio=[1.0],
    output_strides=8,
    image_shape=IMAGE,
)
_hub(
    "efficientnet",
    "EfficientNet",
    "inverted bottlenecks",
    stackwise_width_coefficients=[1.0] * 3,
    stackwise_depth_coefficients=[1.0] * 3,
    stackwise_kernel_sizes=[3, 3, 5],
    stackwise_num_repeats=[1, 1, 1],
    stackwise_input_filters=[8, 8, 8],
    stackwise_output_filters=[8, 8, 8],
    stackwise_expansion_ratios=[1, 2, 2],
    stackwise_strides=[1, 2, 2],
    stackwise_squeeze_and_excite_ratios=[0.25] * 3,
    stackwise_block_types=["v1", "unfused", "fused"],
    stackwise_force_input_filters=[0] * 3,
    stackwise_nores_option=[False] * 3,
    dropout=0.0,
    num_features=16,
    input_shape=IMAGE,
)
_hub(
    "hgnet",
    "HGNetV2",
    "lightweight net",
    depths=[1, 1],
    embedding_size=8,
    hidden_sizes=[8, 12],
    stem_channels=[3, 4, 8],
    hidden_act="relu",
    use_learnable_affine_block=True,
    stackwise_stage_filters=[[8, 4, 8, 1, 2, 3], [8, 4, 12, 1, 2, 5]],
    apply_downsample=[False, True],
    use_lightweight_conv_block=[False, True],
    image_shape=IMAGE,
)
_hub("mit", "MiT", "mix transformer", draws=True, **MIT)
_hub(
    "vgg",
    "VGG",
    "plain net",
    stackwise_num_repeats=[1, 2],
    stackwise_num_filters=[4, 6],
    image_shape=IMAGE,
)
_hub(
    "xception",
    "Xception",
    "separable convolutions",
    stackwise_conv_filters=[[4, 6], [8, 8], [8, 12]],
    stackwise_pooling=[False, True, False],
    image_shape=IMAGE,
)
_hub(
    "vitdet",
    "ViTDet",
    "windows, relative positions",
    num_output_channels=6,
    **VITDET,
)
_hub(
    "dinov3",
    "DINOV3",
    "vision transformer with registers",
    num_register_tokens=2,
    use_mask_token=False,
    image_shape=IMAGE,
    **BLOCKS,
)
_hub(
    "deeplab",
    "DeepLabV3",
    "segmentation by dilated convolutions",
    dtype="float32",
    image_encoder=functools.partial(RESNET, image_shape=IMAGE),
    spatial_pyramid_pooling_key="P4",
    upsampling_size=4,
    dilation_rates=[2, 3],
    low_level_feature_key="P2",
    projection_filters=4,
    image_shape=IMAGE,
)
_hub(
    "segformer",
    "SegFormer",
    "segmentation by a transformer",
    dtype="float32",
    draws=True,
    image_encoder=functools.partial(hub_backbone, "MiT", **MIT),
    projection_filters=6,
)
_hub(
    "retinanet",
    "RetinaNet",
    "feature pyramid for detection",
    image_encoder=functools.partial(RESNET, image_shape=LARGE),
    min_level=3,
    max_level=5,
    use_p5=False,
    image_shape=LARGE,
)
_hub(
    "d_fine",
    "DFine",
    "detection by deformable attention",
    dtype="float32",
    **D_FINE,
)
_hub(
    "d_fine_decoder",
    "DFine",
    "detection by deformable attention, with its decoder",
    dtype="float32",
    output="intermediate_logits",
    **D_FINE,
)
_hub(
    "videoprism",
    "VideoPrism",
    "video transformer",
    dtype="float32",
    num_frames=2,
    patch_size=8,
    hidden_dim=8,
    intermediate_dim=12,
    num_heads=2,
    num_spatial_layers=1,
    num_temporal_layers=1,
    num_auxiliary_layers=0,
    image_shape=(16, 16, 3),
)
_hub(
    "depth_anything",
    "DepthAnything",
    "depth from one image",
    dtype="float32",
    image_encoder=functools.partial(
        hub_backbone,
        "DINOV2",
        image_shape=LARGE,
        **{**BLOCKS, "num_layers": 4},
    ),
    reassemble_factors=[4, 2, 1, 0.5],
    neck_hidden_dims=[4, 4, 6, 6],
    fusion_hidden_dim=4,
    head_hidden_dim=4,
    head_in_index=-1,
    feature_keys=["stage1", "stage2", "stage3", "stage4"],
)
