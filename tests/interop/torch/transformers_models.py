"""Run models of `transformers`, small and of random weights, compiled, against eager torch.

    python -m tests.interop.torch.transformers_models [--only Llama,T5] [--steps forward,generate,static,train]

Needs `pip install transformers`. Each model runs forward and trains one step (plain gradient descent on the mean of the
squares of its first result); those that generate text give tokens with a cache that grows and with a static one.
`--backend inductor` shows whether another backend fails alike. Prints for each model and step whether results are those
of eager torch, the largest error, the operators that ran in torch, and totals: see `package_models`.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.interop.torch.package_models import Case, command

_DECODER = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENCODER = {key: value for key, value in _DECODER.items() if key not in ("num_key_value_heads",)}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "hidden_dropout_prob": 0.0,
}


def _ids(length: int = 9) -> Any:
    return torch.randint(3, 99, (2, length))


def _text() -> dict[str, Any]:
    return {"input_ids": _ids()}


def _pair() -> dict[str, Any]:
    return {"input_ids": _ids(), "decoder_input_ids": _ids(5)}


def _speech() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": _ids(5)}


def _image() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


_T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
_T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
_GPT2 = {
    "vocab_size": 99,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
_GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_WHISPER = {"vocab_size": 99, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
_WHISPER |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
_WHISPER |= {"max_source_positions": 16, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1}
_WHISPER |= {"eos_token_id": 2, "decoder_start_token_id": 1, "dropout": 0.0, "suppress_tokens": None}
_WHISPER |= {"begin_suppress_tokens": None}
_CLIP = {
    "text_config": _ENCODER | {"projection_dim": 16},
    "vision_config": {key: v for key, v in _VISION.items() if key != "hidden_dropout_prob"} | {"projection_dim": 16},
    "projection_dim": 16,
}
_MAMBA = {
    "vocab_size": 99,
    "hidden_size": 32,
    "state_size": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
_BERT = _ENCODER | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_GENERATES = ("forward", "generate", "static", "train")

CASES = (
    Case("Llama", "LlamaForCausalLM", "LlamaConfig", _DECODER, (_text,), _GENERATES),
    Case("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", _DECODER, (_text,), _GENERATES),
    Case("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", _DECODER | {"head_dim": 8}, (_text,), _GENERATES),
    Case("Mistral", "MistralForCausalLM", "MistralConfig", _DECODER | {"sliding_window": 6}, (_text,), _GENERATES),
    Case("Mixtral", "MixtralForCausalLM", "MixtralConfig", _DECODER | {"num_local_experts": 4}, (_text,), _GENERATES),
    Case("GPT-2", "GPT2LMHeadModel", "GPT2Config", _GPT2, (_text,), _GENERATES),
    Case("BERT", "BertModel", "BertConfig", _BERT, (_text,)),
    Case("T5", "T5ForConditionalGeneration", "T5Config", _T5, (_pair,), _GENERATES),
    Case("Whisper", "WhisperForConditionalGeneration", "WhisperConfig", _WHISPER, (_speech,), _GENERATES),
    Case("ViT", "ViTModel", "ViTConfig", _VISION | {"attention_probs_dropout_prob": 0.0}, (_image,)),
    Case("CLIP", "CLIPModel", "CLIPConfig", _CLIP, (lambda: _text() | _image(),)),
    Case("Mamba", "MambaForCausalLM", "MambaConfig", _MAMBA, (_text,), ("forward", "generate", "train")),
)


if __name__ == "__main__":
    command(CASES, __doc__)
