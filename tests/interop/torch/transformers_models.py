"""Run models of `transformers` and `diffusers`, small and of random weights, compiled, against eager torch.

    python -m tests.interop.torch.transformers_models [--only Llama,T5] [--steps forward,generate,train]

Needs `pip install transformers`; models of `diffusers` are left out unless `pip install diffusers` was run too. Each
model runs forward, generates text where it can, and trains one step (plain gradient descent on the mean of what it
gives). Prints for each model and step whether results are those of eager torch, how many operators ran in torch, and
totals.
"""

from __future__ import annotations

import argparse
import collections
import copy
import importlib
import importlib.util
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tilewright import events
from tilewright.interop.torch import backend

STEPS = ("forward", "generate", "train")
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


@dataclass(frozen=True)
class Case:
    """A model by its classes and configuration, and the inputs of a forward pass."""

    name: str
    model: str
    config: str
    options: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]
    generates: bool = False
    package: str = "transformers"


def _pair() -> dict[str, Any]:
    return {"input_ids": _ids(), "decoder_input_ids": _ids(5)}


def _speech() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": _ids(5)}


def _image() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


def _latent() -> dict[str, Any]:
    return {
        "sample": torch.randn(1, 4, 8, 8),
        "timestep": torch.tensor([3.0]),
        "encoder_hidden_states": torch.randn(1, 5, 16),
    }


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
_UNET = {"sample_size": 8, "in_channels": 4, "out_channels": 4, "layers_per_block": 1, "block_out_channels": (32, 32)}
_UNET |= {"cross_attention_dim": 16, "attention_head_dim": 8, "norm_num_groups": 8}
_UNET |= {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
_UNET |= {"up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}
_VAE = {"block_out_channels": (16, 32), "norm_num_groups": 8, "layers_per_block": 1, "latent_channels": 4}
_VAE |= {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
_DIT = {"num_attention_heads": 4, "attention_head_dim": 8, "in_channels": 4, "num_layers": 2, "sample_size": 8}
_DIT |= {"patch_size": 2, "norm_num_groups": 8, "num_embeds_ada_norm": 10}

CASES = (
    Case("Llama", "LlamaForCausalLM", "LlamaConfig", _DECODER, _text, True),
    Case("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", _DECODER, _text, True),
    Case("Mistral", "MistralForCausalLM", "MistralConfig", _DECODER | {"sliding_window": 6}, _text, True),
    Case("Mixtral", "MixtralForCausalLM", "MixtralConfig", _DECODER | {"num_local_experts": 4}, _text, True),
    Case("GPT-2", "GPT2LMHeadModel", "GPT2Config", _GPT2, _text, True),
    Case("BERT", "BertModel", "BertConfig", _BERT, _text),
    Case("T5", "T5ForConditionalGeneration", "T5Config", _T5, _pair, True),
    Case("Whisper", "WhisperForConditionalGeneration", "WhisperConfig", _WHISPER, _speech),
    Case("ViT", "ViTModel", "ViTConfig", _VISION | {"attention_probs_dropout_prob": 0.0}, _image),
    Case("CLIP", "CLIPModel", "CLIPConfig", _CLIP, lambda: _text() | _image()),
    Case("Mamba", "MambaForCausalLM", "MambaConfig", _MAMBA, _text, True),
    Case("U-Net", "UNet2DConditionModel", "", _UNET, _latent, package="diffusers"),
    Case("VAE", "AutoencoderKL", "", _VAE, lambda: {"sample": torch.randn(1, 3, 16, 16)}, package="diffusers"),
    Case(
        "DiT",
        "DiTTransformer2DModel",
        "",
        _DIT,
        lambda: {
            "hidden_states": torch.randn(1, 4, 8, 8),
            "timestep": torch.tensor([3]),
            "class_labels": torch.tensor([1]),
        },
        package="diffusers",
    ),
)


def _model(case: Case) -> Any:
    torch.manual_seed(0)
    package = importlib.import_module(case.package)
    kind = getattr(package, case.model)
    model = kind(getattr(package, case.config)(**case.options)) if case.config else kind(**case.options)
    return model.eval()


def _tensors(results: Any) -> list[Any]:
    values = results.to_tuple() if hasattr(results, "to_tuple") else results
    leaves = torch.utils._pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def _forward(model: Any, inputs: dict[str, Any]) -> list[Any]:
    with torch.no_grad():
        return _tensors(model(**inputs))


def _generate(model: Any, inputs: dict[str, Any]) -> list[Any]:
    ids = inputs["input_ids"]
    with torch.no_grad():
        return [model.generate(ids[:, :n], max_new_tokens=5, min_new_tokens=5, do_sample=False) for n in (9, 6, 7)]


def _train(model: Any, inputs: dict[str, Any]) -> list[Any]:
    """The parameters after a step."""
    for parameter in model.parameters():
        parameter.grad = None
    first = _tensors(model(**inputs))[0]
    first.float().square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)
    return [p.detach().clone() for p in model.parameters()]


_RUN = {"forward": _forward, "generate": _generate, "train": _train}


def outcome(case: Case, step: str) -> tuple[str, int, str]:
    """Whether a step of a model is "equal", "different" or "fails", how many operators ran in torch, and details."""
    torch.compiler.reset()
    eager = _model(case)
    ours = copy.deepcopy(eager)
    torch.manual_seed(1)
    inputs = case.inputs()
    ours.forward = torch.compile(ours.forward, backend=backend)
    with events.capture() as seen:
        try:
            found = _RUN[step](ours, copy.deepcopy(inputs))
        except Exception as error:  # any is a finding
            return "fails", 0, f"{type(error).__name__}: {str(error).strip()[:200]}"
    expected = _RUN[step](eager, copy.deepcopy(inputs))
    fallbacks: collections.Counter[str] = collections.Counter()
    for record in seen:
        if record["kind"] == "torch.fallback":
            fallbacks.update(record["operators"])  # pyright: ignore[reportArgumentType]  names and counts
    try:
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)
    except AssertionError as error:
        return "different", sum(fallbacks.values()), " ".join(str(error).split())[:200]
    return "equal", sum(fallbacks.values()), ", ".join(f"{name} x {count}" for name, count in fallbacks.items())


def main() -> None:
    """The command: see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of models, with commas")
    parser.add_argument("--steps", default=",".join(STEPS))
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    if importlib.util.find_spec("transformers") is None:
        sys.exit("this command needs the package `transformers`: pip install transformers")
    wanted = [name for name in given.only.split(",") if name]
    counts: collections.Counter[str] = collections.Counter()
    for case in CASES:
        if importlib.util.find_spec(case.package) is None or (wanted and case.name not in wanted):
            continue
        for step in given.steps.split(","):
            if step == "generate" and not case.generates:
                continue
            start = time.perf_counter()
            state, in_torch, details = outcome(case, step)
            counts[state] += 1
            seconds = time.perf_counter() - start
            print(f"{case.name} {step}: {state}, {in_torch} in torch, {seconds:.0f} s {details}", flush=True)
    print(dict(counts))
    raise SystemExit(bool(counts["different"] + counts["fails"]))


if __name__ == "__main__":
    main()
