"""``config.json`` of the synthetic models."""

from __future__ import annotations

from tokgate.models.presets import Preset
from tokgate.models.target import EPSILON


def model_config(preset: Preset, *, draft: bool) -> dict[str, object]:
    """``config.json`` of the target or of the draft."""
    shared: dict[str, object] = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": preset.hidden,
        "intermediate_size": preset.intermediate,
        "num_attention_heads": preset.heads,
        "num_key_value_heads": preset.kv_heads,
        "head_dim": preset.head_dim,
        "max_position_embeddings": preset.max_position,
        "rms_norm_eps": EPSILON,
        "rope_theta": preset.rope_theta,
        "rope_scaling": None,
        "vocab_size": preset.vocab,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": preset.dtype,
        "use_cache": True,
        "initializer_range": 0.02,
    }
    if draft:
        return shared | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "draft_vocab_size": preset.generated,
        }
    return shared | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": preset.layers}
