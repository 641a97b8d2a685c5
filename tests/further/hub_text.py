"""Language models of keras-hub with random weights."""

import keras
import numpy as np

from tests.further.kinds import N, classified, integers, kind, normal

VOCABULARY, POSITIONS = 30, 6
#: Values of a sound, for Moonshine.
SOUND = 900
_ENCODER = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
}
_DECODER = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 2,
    "num_query_heads": 2,
    "num_key_value_heads": 1,
    "hidden_dim": 8,
    "intermediate_dim": 12,
}
_PLACED = {**_ENCODER, "dropout": 0.0, "max_sequence_length": 12}
_GEMMA = {**_DECODER, "head_dim": 4}
_SMOLLM = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_layer_enabled_list": [True, False],
    "layer_types": ["full_attention", "full_attention"],
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-6,
    "max_position_embeddings": 16,
    "rope_theta": 1e4,
    "partial_rotary_factor": 1.0,
}
_EXPERTS = {**_DECODER, "num_experts": 3, "top_k": 2}
_T5GEMMA = {
    "vocabulary_size": VOCABULARY,
    **{
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
    "sliding_window": 4,
    "query_pre_attn_scalar": 4.0,
}

#: Name: (class of keras_hub.models, about, settings).
HUB = {
    "bart": ("Bart", "encoder and decoder", _PLACED),
    "xlm_roberta": ("XLMRoberta", "encoder", _PLACED),
    "esm2": ("ESM2", "proteins, rotary positions", {**_ENCODER, "dropout": 0}),
    "roformer": (
        "RoformerV2",
        "rotary positions",
        {**_ENCODER, "head_size": 4, "dropout": 0.0},
    ),
    "gpt_neox": (
        "GPTNeoX",
        "parallel attention",
        {**_ENCODER, "hidden_dim": 16, "max_sequence_length": 12},
    ),
    "falcon": (
        "Falcon",
        "alibi, one head for keys and values",
        {
            "vocabulary_size": VOCABULARY,
            "num_layers": 2,
            "num_attention_heads": 2,
            "hidden_dim": 8,
            "intermediate_dim": 12,
        },
    ),
    "qwen2": ("Qwen", "decoder", _DECODER),
    "gemma2": (
        "Gemma",
        "soft caps, sliding windows",
        {
            **_GEMMA,
            "attention_logit_soft_cap": 5.0,
            "final_logit_soft_cap": 3.0,
            "use_sliding_window_attention": True,
            "sliding_window_size": 4,
            "use_post_ffw_norm": True,
            "use_post_attention_norm": True,
        },
    ),
    "gemma3": (
        "Gemma3",
        "local and global attention",
        {
            **_GEMMA,
            "num_layers": 6,
            "image_size": 16,
            "use_sliding_window_attention": True,
            "sliding_window_size": 4,
        },
    ),
    "gemma4": (
        "Gemma4",
        "sliding windows",
        {**_GEMMA, "image_size": 16, "sliding_window_size": 4},
    ),
    "smollm3": ("SmolLM3", "no positions in some layers", _SMOLLM),
    "gpt_oss": (
        "GptOss",
        "experts, attention sinks",
        {**_EXPERTS, "head_dim": 4},
    ),
    "mixtral": ("Mixtral", "mixture of experts", _EXPERTS),
    "qwen_moe": (
        "QwenMoe",
        "shared and routed experts",
        {
            **_EXPERTS,
            "moe_intermediate_dim": 6,
            "shared_expert_intermediate_dim": 6,
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        "routed experts",
        {**_EXPERTS, "moe_intermediate_dim": 6, "head_dim": 4},
    ),
    "qwen3_5": (
        "Qwen3_5",
        "linear attention by a gated delta rule",
        {
            **_GEMMA,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "partial_rotary_factor": 0.5,
        },
    ),
    "rwkv7": (
        "RWKV7",
        "linear recurrence",
        {
            "vocabulary_size": VOCABULARY,
            "num_layers": 2,
            "hidden_size": 8,
            "head_size": 4,
            "intermediate_dim": 12,
            "gate_lora": 4,
            "mv_lora": 4,
            "aaa_lora": 4,
            "decay_lora": 4,
        },
    ),
    "t5gemma": ("T5Gemma", "encoder and decoder", _T5GEMMA),
    "t5gemma2": ("T5Gemma2", "encoder and decoder", _T5GEMMA),
    "edrec": (
        "EdRec",
        "recommendations by tokens",
        {
            "vocab_size": VOCABULARY,
            "num_layers_enc": 1,
            "num_layers_dec": 1,
            "hidden_dim": 8,
            "intermediate_dim": 12,
            "num_heads": 2,
        },
    ),
    "moonshine": (
        "Moonshine",
        "speech to text",
        {
            "vocabulary_size": VOCABULARY,
            "filter_dim": 8,
            "encoder_num_layers": 1,
            "decoder_num_layers": 1,
            "hidden_dim": 8,
            "intermediate_dim": 12,
            "encoder_num_heads": 2,
            "decoder_num_heads": 2,
        },
    ),
}

#: Those whose loss for balanced experts, in training, mixes the samples.
BALANCED = ("Mixtral", "QwenMoe", "Qwen3Moe")


def values(name, tensor, seed=0):
    """A batch for one input of a model, by its name."""
    if name.endswith("token_ids"):
        return integers(VOCABULARY - 1, POSITIONS, seed=seed) + 1
    if name.endswith(("segment_ids", "token_types")):
        return integers(2, POSITIONS, seed=seed)
    if name == "position_ids":
        return np.tile(np.arange(POSITIONS, dtype="int32"), (N, 1))
    if name.endswith("padding_mask"):
        mask = np.ones((N, POSITIONS), tensor.dtype)
        mask[0, -2:] = 0
        return mask
    shape = [size or SOUND for size in tensor.shape[1:]]
    return normal(*shape, seed=seed)


def features(output):
    """The sequence that a backbone returns."""
    if isinstance(output, dict):
        kinds = ("decoder_sequence_output", "sequence_output")
        return next(output[kind] for kind in kinds if kind in output)
    return output


class AsInUse(keras.layers.Layer):
    """A model without what it does in training alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def call(self, inputs):
        return self.model(inputs, training=False)


def _builder(cls, settings):
    def make():
        import keras_hub

        backbone = getattr(keras_hub.models, cls + "Backbone")(**settings)
        inputs, output = backbone.input, backbone.output
        x = {name: values(name, t) for name, t in inputs.items()}
        if cls == "Moonshine":
            x["encoder_padding_mask"] = np.ones((N, SOUND), bool)
        if cls in BALANCED:
            output = AsInUse(backbone)(inputs)
        return classified(inputs, features(output), x)

    make.__module__ = __name__
    return make


#: Name: settings.
DECODERS = {name: settings for name, (_, _, settings) in HUB.items()}
#: Those that compute nothing in float32; the others have parts that do.
EXACT = ("bart", "xlm_roberta", "esm2", "edrec", "moonshine")

for _name, (_cls, _about, _settings) in HUB.items():
    _float = "float64" if _name in EXACT else "float32"
    kind(_name, _about, dtype=_float)(_builder(_cls, _settings))
