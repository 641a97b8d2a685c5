"""All further kinds of models, by name."""

from tests.further import (  # noqa: F401
    dynamics,
    generative,
    hub_mixed,
    hub_text,
    hub_vision,
    images,
    recommenders,
    scenes,
    sequences,
    structured,
)
from tests.further.kinds import KINDS

__all__ = ["KINDS", "SLOW"]

#: Those that take more than three seconds.
SLOW = frozenset(
    """
    autoint bart blip2_qformer capsule_net captioning conformer_ctc
    convmixer cspnet deeplab densenet depth_anything detr edrec efficientnet
    esm2 falcon gemma2 gemma3 gpt_neox gpt_oss gru4rec handwriting_ctc hgnet
    llama3 lstm_language_model mit mlp_mixer mmdit mobilenet moonshine
    paligemma parseq perceiver qwen2 qwen3_5 qwen3_moe resnet retinanet
    roformer rwkv7 sam sasrec segformer spatial_transformer
    stable_diffusion_vae t5gemma t5gemma2 tcn translation variable_selection
    video_convlstm videoprism vitdet wavenet xlm_roberta
    """.split()
)
