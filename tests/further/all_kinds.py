"""All further kinds of models, by name."""

import sys

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

__all__ = ["KINDS", "SLOW", "listed"]

_SLOW = """
autoint bart blip2_qformer capsule_net captioning clip_pairs conformer_ctc
convmixer cspnet deeplab depth_anything detr dinov3 edrec efficientnet esm2
falcon flux gemma2 gemma3 gpt_neox gpt_oss gru4rec handwriting_ctc hgnet
linear_attention lstm_language_model metaclip_pairs mit mlp_mixer mmdit
moonshine paligemma parseq perceiver question_answering qwen2 qwen3_5 qwen3_moe
retinanet reversible roformer rwkv7 sam sasrec segformer siglip_pairs
spatial_transformer stable_diffusion_vae state_space t5gemma t5gemma2 tcn
translation variable_selection video_convlstm videoprism vitdet wavenet
xlm_roberta
"""
#: Those that take more than three seconds.
SLOW = frozenset(_SLOW.split())


def listed():
    """The list of docs/types.md."""
    groups = {}
    for kind in KINDS.values():
        groups.setdefault(kind.group, []).append(kind)
    lines = []
    for group, kinds in groups.items():
        about = (sys.modules[f"tests.further.{group}"].__doc__ or "").strip()
        about = about.splitlines()[0].rstrip(".")
        names = [f"`{one.name}` ({one.about})" for one in kinds]
        lines.append(f"- **{about}:** {', '.join(names)}.")
    return "".join(f"{line}\n" for line in lines)
