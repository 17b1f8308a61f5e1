"""Run models of `diffusers`, small and of random weights, compiled, against eager torch.

    python -m tests.interop.torch.diffusers_models [--only U-Net,VAE] [--steps forward,export,train]

Needs `pip install diffusers`. Each model runs forward through `torch.compile` and `tilewright.from_torch`, at batch 1
and at batch 3 with images of other sizes, and trains one step (plain gradient descent on the mean of the squares of its
result). Prints for each model and step whether results are those of eager torch, the largest error, and totals: see
`package_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.interop.torch.package_models import Case, Inputs, command

# Batch, height and width of images.
_SIZES = ((1, 8, 8), (3, 6, 10))
_ODD_SIZES = ((1, 8, 8), (3, 7, 11))


def _each(make: Callable[[int, int, int], Inputs], sizes: Sequence[tuple[int, int, int]]) -> list[Callable[[], Inputs]]:
    return [lambda size=size: make(*size) for size in sizes]


def _noise(batch: int, height: int, width: int) -> Inputs:
    return {"sample": torch.randn(batch, 4, height, width), "timestep": torch.arange(batch) * 7 + 3}


def _conditioned(batch: int, height: int, width: int) -> Inputs:
    return _noise(batch, height, width) | {"encoder_hidden_states": torch.randn(batch, 5, 16)}


def _picture(batch: int, height: int, width: int) -> Inputs:
    return {"sample": torch.randn(batch, 3, 2 * height, 2 * width)}


def _classes(batch: int, height: int, width: int) -> Inputs:
    labels = torch.arange(batch) + 1
    return {"hidden_states": torch.randn(batch, 4, height, width), "timestep": labels * 3, "class_labels": labels}


def _captioned(batch: int, height: int, width: int) -> Inputs:
    return {"hidden_states": torch.randn(batch, 8, height, width), "encoder_hidden_states": torch.randn(batch, 5, 16)}


def _joint(batch: int, height: int, width: int) -> Inputs:
    image = {"hidden_states": torch.randn(batch, 4, height, width), "timestep": torch.arange(batch) * 7 + 3}
    return image | {
        "encoder_hidden_states": torch.randn(batch, 5, 16),
        "pooled_projections": torch.randn(batch, 12),
    }


def _flow(batch: int, height: int, width: int) -> Inputs:
    rows = torch.arange(height).repeat_interleave(width)
    columns = torch.arange(width).repeat(height)
    return {
        "hidden_states": torch.randn(batch, height * width, 8),
        "encoder_hidden_states": torch.randn(batch, 5, 16),
        "pooled_projections": torch.randn(batch, 12),
        "timestep": torch.rand(batch),
        "img_ids": torch.stack([torch.zeros_like(rows), rows, columns], -1).float(),
        "txt_ids": torch.zeros(5, 3),
    }


_BLOCKS: dict[str, Any] = {"block_out_channels": (16, 32), "norm_num_groups": 8, "layers_per_block": 1}
_UNET = _BLOCKS | {"in_channels": 4, "out_channels": 4, "attention_head_dim": 8, "sample_size": 8}
_PLAIN = _UNET | {"down_block_types": ("DownBlock2D", "AttnDownBlock2D")}
_PLAIN |= {"up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
_CONDITIONED = _UNET | {"cross_attention_dim": 16, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
_CONDITIONED |= {"up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}
_VAE = _BLOCKS | {"latent_channels": 4, "down_block_types": ("DownEncoderBlock2D",) * 2}
_VAE |= {"up_block_types": ("UpDecoderBlock2D",) * 2}
_HEADS: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}
_DIT = _HEADS | {"in_channels": 4, "sample_size": 8, "patch_size": 2, "norm_num_groups": 8, "num_embeds_ada_norm": 10}
_TRANSFORMER = _HEADS | {"in_channels": 8, "norm_num_groups": 4, "cross_attention_dim": 16}
_JOINT = _HEADS | {"in_channels": 4, "out_channels": 4, "sample_size": 8, "patch_size": 2, "pos_embed_max_size": 8}
_JOINT |= {"joint_attention_dim": 16, "caption_projection_dim": 16, "pooled_projection_dim": 12}
_FLUX = _HEADS | {"in_channels": 8, "num_layers": 1, "num_single_layers": 1, "axes_dims_rope": (2, 2, 4)}
_FLUX |= {"joint_attention_dim": 16, "pooled_projection_dim": 12}


def _case(name: str, model: str, options: dict[str, Any], inputs: Sequence[Callable[[], Inputs]]) -> Case:
    return Case(name, model, "", options, inputs, package="diffusers")


CASES = (
    _case("U-Net", "UNet2DModel", _PLAIN, _each(_noise, _SIZES)),
    _case("conditioned U-Net", "UNet2DConditionModel", _CONDITIONED, _each(_conditioned, _ODD_SIZES)),
    _case("VAE", "AutoencoderKL", _VAE, _each(_picture, _ODD_SIZES)),
    _case("DiT", "DiTTransformer2DModel", _DIT, _each(_classes, ((1, 8, 8), (3, 8, 8)))),
    _case("transformer", "Transformer2DModel", _TRANSFORMER, _each(_captioned, _ODD_SIZES)),
    _case("SD3", "SD3Transformer2DModel", _JOINT, _each(_joint, _SIZES)),
    _case("Flux", "FluxTransformer2DModel", _FLUX, _each(_flow, _ODD_SIZES)),
)

if __name__ == "__main__":
    command(CASES, __doc__)
