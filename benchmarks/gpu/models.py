"""Shapes of real models with random weights: ResNet-50 v1.5 in plain torch, and configurations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESNET50_PARAMETERS = 25_557_032
BERT_LARGE_PARAMETERS = 334_094_338
SDXL_UNET_PARAMETERS = 2_567_463_684
LLAMA_PARAMETERS = {"7B": 6_738_415_616, "13B": 13_015_864_320}

LLAMA: Mapping[str, Mapping[str, int]] = {
    "7B": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
    },
    "13B": {
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "vocab_size": 32000,
    },
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 512,
    },
}
"""Llama 2, from its papers and configurations; "tiny" for a CPU."""

BERT: Mapping[str, Mapping[str, int]] = {
    "large": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "vocab_size": 30522,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 512,
    },
}

SDXL_UNET: Mapping[str, Any] = {
    "sample_size": 128,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "cross_attention_dim": 2048,
    "attention_head_dim": (5, 10, 20),
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
"""Stable Diffusion XL 1.0 base; latents of 128 x 128 make an image of 1024 x 1024."""

SDXL_VAE: Mapping[str, Any] = {
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "latent_channels": 4,
    "sample_size": 1024,
    "scaling_factor": 0.13025,
}

TINY_UNET = {
    **SDXL_UNET,
    "sample_size": 16,
    "block_out_channels": (32, 64, 64),
    "attention_head_dim": (2, 4, 4),
    "transformer_layers_per_block": (1, 1, 2),
}
TINY_VAE = {**SDXL_VAE, "block_out_channels": (32, 32, 32, 32), "sample_size": 128}


def write_llama(folder: Path, size: str) -> Path:
    """Write the config.json of a Llama 2 of this size; return its folder."""
    about = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}
    return _write(folder, {**about, **LLAMA[size], "max_position_embeddings": 4096})


def write_bert(folder: Path, size: str) -> Path:
    """Write the config.json of a BERT of this size; return its folder."""
    about = {"model_type": "bert", "architectures": ["BertForQuestionAnswering"]}
    return _write(folder, {**about, **BERT[size], "max_position_embeddings": 512})


def _write(folder: Path, config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def resnet50(*, model: str | None = None, classes: int = 1000) -> Any:
    """Return ResNet-50 v1.5 with random weights, for inputs (batch, 3, height, width).

    Version 1.5 halves the size in the 3 x 3 convolution of a block, not in its first 1 x 1.

    Args:
        model: What the engine gives every factory; not used.
        classes: Of the output layer.
    """
    del model
    from torch import nn

    def convolution(inside: int, outside: int, size: int, stride: int = 1) -> list[Any]:
        layer = nn.Conv2d(inside, outside, size, stride, padding=size // 2, bias=False)
        return [layer, nn.BatchNorm2d(outside)]

    class Block(nn.Module):  # type: ignore[misc]  # torch is Any here
        def __init__(self, inside: int, width: int, stride: int) -> None:
            super().__init__()
            outside = 4 * width
            self.body = nn.Sequential(
                *convolution(inside, width, 1),
                nn.ReLU(inplace=True),
                *convolution(width, width, 3, stride),
                nn.ReLU(inplace=True),
                *convolution(width, outside, 1),
            )
            fits = inside == outside and stride == 1
            self.shortcut = (
                nn.Identity() if fits else nn.Sequential(*convolution(inside, outside, 1, stride))
            )
            self.end = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            return self.end(self.body(x) + self.shortcut(x))

    layers: list[Any] = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for number in range(blocks):
            layers.append(Block(inside, width, 2 if stage and not number else 1))
            inside = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)]
    return nn.Sequential(*layers).eval()


def flop(call: Callable[[], object]) -> float:
    """Return the FLOP of matrix products and convolutions in a call, two for each pair.

    Of modules and inputs on the device "meta" nothing is computed.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return float(counter.get_total_flops())


def sdxl_flop(unet: Mapping[str, Any], vae: Mapping[str, Any]) -> tuple[float, float]:
    """Return the FLOP of one call of the UNet for one latent, and of the decoder for an image."""
    import diffusers
    import torch

    side = int(unet["sample_size"])
    with torch.device("meta"):
        once, latent = unet_inputs(torch, 1, side), torch.empty(1, 4, side, side)
        return (
            flop(lambda: diffusers.UNet2DConditionModel(**unet)(**once)),
            flop(lambda: diffusers.AutoencoderKL(**vae).decode(latent)),
        )


def parameters(module: Any) -> int:
    """Return how many parameters a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def unet_inputs(torch: Any, batch: int, side: int, **where: Any) -> dict[str, Any]:
    """Return what the SDXL UNet takes: latents, a step, 77 tokens, pooled text and sizes."""
    return {
        "sample": torch.randn(batch, 4, side, side, **where),
        "timestep": torch.ones((), **where),
        "encoder_hidden_states": torch.randn(batch, 77, 2048, **where),
        "added_cond_kwargs": {
            "text_embeds": torch.randn(batch, 1280, **where),
            "time_ids": torch.ones(batch, 6, **where),
        },
    }
