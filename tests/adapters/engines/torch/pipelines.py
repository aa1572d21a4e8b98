"""A tiny Stable Diffusion XL with random weights, and plain calls of diffusers as its reference.

Importing this skips the module that does so where diffusers is missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from pytest_mlperf.adapters.conventions import NEGATIVE_PROMPT
from pytest_mlperf.adapters.engines.torch.diffusion import DiffusionEngine
from tests.adapters.engines import recording

if TYPE_CHECKING:
    import diffusers
else:
    diffusers = pytest.importorskip("diffusers")

LETTERS = [chr(code) for code in range(33, 127)]
WORDS = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
START, END = len(WORDS), len(WORDS) + 1
SIDE = 16
"""Of latents; images have twice as much."""

PROMPTS = ["a red cat", "two blue dogs on a hill", "rain", "a" + " very" * 90 + " long way"]


def text_config(projection: int) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(WORDS) + 2,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=77,
        projection_dim=projection,
        bos_token_id=START,
        eos_token_id=END,
        pad_token_id=END,
    )


def write_tokenizer(folder: Path, pad: str) -> Any:
    folder.mkdir(parents=True)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    vocabulary |= {"<|startoftext|>": START, "<|endoftext|>": END}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", "utf-8")
    tokenizer = CLIPTokenizer.from_pretrained(folder, model_max_length=77, pad_token=pad)
    tokenizer.save_pretrained(folder)
    return tokenizer


def unet_config(**changes: Any) -> dict[str, Any]:
    return {
        "sample_size": SIDE,
        "in_channels": 4,
        "out_channels": 4,
        "block_out_channels": (32, 48, 64),
        "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": (2, 3, 4),
        "transformer_layers_per_block": (1, 1, 1),
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + 32,
        "cross_attention_dim": 64,
        "norm_num_groups": 8,
        **changes,
    }


def make_unet_of(settings: dict[str, Any]) -> Any:
    """Return a UNet with random weights."""
    return diffusers.UNet2DConditionModel(**settings)


def make_vae() -> Any:
    return diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(16, 32),
        norm_num_groups=8,
        latent_channels=4,
        sample_size=2 * SIDE,
        scaling_factor=0.13025,
    )


def write_pipeline(folder: Path, **unet: Any) -> Path:
    """Write a pipeline of two levels of text, three of the UNet, and 2 pixels per latent."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        pipe = diffusers.StableDiffusionXLPipeline(
            vae=make_vae(),
            text_encoder=CLIPTextModel(text_config(32)),
            text_encoder_2=CLIPTextModelWithProjection(text_config(32)),
            tokenizer=write_tokenizer(folder / "made" / "tokenizer", "<|endoftext|>"),
            tokenizer_2=write_tokenizer(folder / "made" / "tokenizer_2", "!"),
            unet=make_unet_of(unet_config(**unet)),
            # Another than the engine's, which takes the Euler scheduler whatever is named.
            scheduler=diffusers.DDIMScheduler(
                beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1
            ),
            add_watermarker=False,
        )
        with torch.no_grad():
            for encoder in (pipe.text_encoder, pipe.text_encoder_2):
                for name, weight in encoder.named_parameters():
                    weight.mul_(1.0 if "norm" in name else 3.0)
        pipe.save_pretrained(folder)
    return folder


def latents(seed: int = 3) -> NDArray[np.float32]:
    """Return read-only latents, as a data set gives them to all samples."""
    noise = np.random.default_rng(seed).normal(size=(1, 4, SIDE, SIDE)).astype(np.float32)
    noise.setflags(write=False)
    return noise


class Captions:
    """A data set of captions, with one array of latents for all, or none."""

    digest = "0" * 64

    def __init__(self, prompts: Sequence[Any], start: NDArray[np.float32] | None = None) -> None:
        self._prompts = prompts
        self._start = start

    def __len__(self) -> int:
        return len(self._prompts)

    def input(self, index: int) -> Any:
        return {"caption": self._prompts[index], "latents": self._start}

    def reference(self, index: int) -> Any:
        return None


class Gallery(recording.Tokenless):
    """A sink that keeps images, which take long to make."""

    limit_s = 120.0


def open_engine(folder: Path, dataset: Captions, **options: Any) -> DiffusionEngine:
    arguments = {"model": str(folder), "precision": "fp32", "threads": 1, "steps": 4}
    return DiffusionEngine(dataset=dataset, **{**arguments, **options})


def paint(folder: Path, dataset: Captions, **options: Any) -> NDArray[np.uint8]:
    """Return the images of all samples, submitted at once: (samples, height, width, 3)."""
    with open_engine(folder, dataset, **options) as engine:
        return ask(engine, len(dataset))


def ask(engine: DiffusionEngine, samples: int) -> NDArray[np.uint8]:
    sink = Gallery(samples)
    recording.ask(engine, sink, samples)
    height, width = map(int, engine.describe()["generation.size"].split("x"))
    images = [
        np.frombuffer(sink.outputs[100 + index], np.uint8).reshape(height, width, 3)
        for index in range(samples)
    ]
    return np.stack(images)


def plain_pipeline(folder: Path, dtype: Any = torch.float32) -> Any:
    """Return diffusers' pipeline, loaded by its own means, with the Euler scheduler."""
    scheduler = diffusers.EulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler")
    pipe = diffusers.StableDiffusionXLPipeline.from_pretrained(
        folder,
        scheduler=scheduler,
        dtype=dtype,
        add_watermarker=False,
        local_files_only=True,
        low_cpu_mem_usage=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def by_hand(
    pipe: Any, prompts: Sequence[str], start: NDArray[np.float32], **settings: Any
) -> NDArray[np.uint8]:
    """Return the images of one plain call of the pipeline, rounded as MLPerf's reference does."""
    arguments = {
        "prompt": list(prompts),
        "negative_prompt": [NEGATIVE_PROMPT] * len(prompts),
        "num_inference_steps": 4,
        "guidance_scale": 8.0,
        **settings,
    }
    begun = torch.tensor(start).repeat(len(prompts), 1, 1, 1).to(pipe.unet.dtype)
    images = pipe(**arguments, latents=begun, output_type="pt").images
    rounded = (images.permute(0, 2, 3, 1).float().numpy() * 255).round()
    return np.asarray(rounded, np.uint8)
