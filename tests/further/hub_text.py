"""Language models of keras-hub with random weights."""

import keras
import numpy as np

from tests.further.kinds import added, classified
from tests.real_models import (
    SIZES,
    batch,
    decoder,
    decoder_with_head_size,
    encoder,
    hub_backbone,
    placed,
)

TINY = SIZES["tiny"]
#: tasks.Values of a sound, for Moonshine.
SOUND = 900
#: Those whose loss for balanced experts, in training, mixes the samples.
BALANCED = ("Mixtral", "QwenMoe", "Qwen3Moe")
_SMALL = {
    "vocabulary_size": TINY.vocabulary,
    "num_layers": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
}
_GEMMA = decoder_with_head_size(TINY)
MIXTRAL = {**decoder(TINY), "num_experts": 3, "top_k": 2}
_WINDOWS = {"use_sliding_window_attention": True, "sliding_window_size": 4}


def inputs_of(model):
    """A batch for a model, by the names of its inputs."""
    return batch(model.input, TINY, np.random.default_rng(0), SOUND)


class AsInUse(keras.layers.Layer):
    """A model without what it does in training alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def call(self, inputs):
        return self.model(inputs, training=False)


def _hub(name, cls, about, *, settings, dtype="float32", **more):
    """A classifier by what a backbone returns.

    In float64 are those that compute nothing in float32.
    """

    @added(name, about, __name__, dtype=dtype)
    def make():
        backbone = hub_backbone(cls, **settings, **more)
        output, x = backbone.output, inputs_of(backbone)
        if cls == "Moonshine":
            x["encoder_padding_mask"] = np.ones((TINY.batch, SOUND), bool)
        if cls in BALANCED:
            output = AsInUse(backbone)(backbone.input)
        if isinstance(output, dict):
            kinds = ("decoder_sequence_output", "sequence_output")
            output = next(output[kind] for kind in kinds if kind in output)
        return classified(backbone.input, output, x)


_hub(
    "bart",
    "Bart",
    "encoder and decoder",
    settings=placed(TINY),
    dtype="float64",
)
_hub(
    "xlm_roberta",
    "XLMRoberta",
    "encoder",
    settings=placed(TINY),
    dtype="float64",
)
_hub(
    "esm2",
    "ESM2",
    "proteins, rotary positions",
    settings=encoder(TINY),
    dtype="float64",
)
_hub(
    "roformer",
    "RoformerV2",
    "rotary positions",
    settings=encoder(TINY),
    head_size=4,
)
_hub(
    "gpt_neox",
    "GPTNeoX",
    "parallel attention",
    settings={**placed(TINY), "hidden_dim": 16},
)
_hub(
    "falcon",
    "Falcon",
    "alibi, one head for keys and values",
    settings=_SMALL,
    num_attention_heads=2,
)
_hub("qwen2", "Qwen", "decoder", settings=decoder(TINY))
_hub(
    "gemma2",
    "Gemma",
    "soft caps, sliding windows",
    settings={**_GEMMA, **_WINDOWS},
    attention_logit_soft_cap=5.0,
    final_logit_soft_cap=3.0,
    use_post_ffw_norm=True,
    use_post_attention_norm=True,
)
_hub(
    "gemma3",
    "Gemma3",
    "local and global attention",
    settings={**_GEMMA, **_WINDOWS, "num_layers": 6},
    image_size=16,
)
_hub(
    "gemma4",
    "Gemma4",
    "sliding windows",
    settings=_GEMMA,
    image_size=16,
    sliding_window_size=4,
)
_hub(
    "smollm3",
    "SmolLM3",
    "no positions in some layers",
    settings=_SMALL,
    num_attention_heads=2,
    num_key_value_heads=1,
    attention_bias=False,
    attention_dropout=0.0,
    rope_layer_enabled_list=[True, False],
    layer_types=["full_attention", "full_attention"],
    mlp_bias=False,
    layer_norm_epsilon=1e-6,
    max_position_embeddings=16,
    rope_theta=1e4,
    partial_rotary_factor=1.0,
)
_hub(
    "gpt_oss",
    "GptOss",
    "experts, attention sinks",
    settings=MIXTRAL,
    head_dim=4,
)
_hub("mixtral", "Mixtral", "mixture of experts", settings=MIXTRAL)
_hub(
    "qwen_moe",
    "QwenMoe",
    "shared and routed experts",
    settings=MIXTRAL,
    moe_intermediate_dim=6,
    shared_expert_intermediate_dim=6,
)
_hub(
    "qwen3_moe",
    "Qwen3Moe",
    "routed experts",
    settings=MIXTRAL,
    moe_intermediate_dim=6,
    head_dim=4,
)
_hub(
    "qwen3_5",
    "Qwen3_5",
    "linear attention by a gated delta rule",
    settings=_GEMMA,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    linear_key_head_dim=4,
    linear_value_head_dim=4,
    layer_types=["linear_attention", "full_attention"],
    partial_rotary_factor=0.5,
)
_hub(
    "rwkv7",
    "RWKV7",
    "linear recurrence",
    settings={
        "vocabulary_size": TINY.vocabulary,
        "num_layers": 2,
        "hidden_size": 8,
        "head_size": 4,
        "intermediate_dim": 12,
        **dict.fromkeys(("gate_lora", "mv_lora", "aaa_lora", "decay_lora"), 4),
    },
)
for _name, _cls in (("t5gemma", "T5Gemma"), ("t5gemma2", "T5Gemma2")):
    _hub(
        _name,
        _cls,
        "encoder and decoder",
        settings={
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in {
                "hidden_dim": 8,
                "intermediate_dim": 12,
                "num_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 4,
                "layer_types": ["sliding_attention", "full_attention"],
            }.items()
        },
        vocabulary_size=TINY.vocabulary,
        sliding_window=4,
        query_pre_attn_scalar=4.0,
    )
_hub(
    "edrec",
    "EdRec",
    "recommendations by tokens",
    settings={"hidden_dim": 8, "intermediate_dim": 12, "num_heads": 2},
    dtype="float64",
    vocab_size=TINY.vocabulary,
    num_layers_enc=1,
    num_layers_dec=1,
)
_hub(
    "moonshine",
    "Moonshine",
    "speech to text",
    settings={"hidden_dim": 8, "intermediate_dim": 12},
    dtype="float64",
    vocabulary_size=TINY.vocabulary,
    filter_dim=8,
    encoder_num_layers=1,
    decoder_num_layers=1,
    encoder_num_heads=2,
    decoder_num_heads=2,
)
