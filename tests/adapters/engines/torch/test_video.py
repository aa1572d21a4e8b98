"""Test that videos equal those of diffusers' WanPipeline in any batching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from pytest_mlperf.adapters.engines.torch.diffusion.video import VideoEngine
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.testing import check_engine
from tests.adapters.engines.recording import Tokenless, ask
from tests.adapters.engines.torch.models import broken_but_accepted, json_with, without
from tests.refusals import unrefused

diffusers = pytest.importorskip("diffusers")

pytestmark = [
    pytest.mark.slow,
    # diffusers 0.42 hands tensors to NumPy in a way that it will not take for ever.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

PROMPTS = ["a cat runs", "a dog", "rain"]
SHAPE = (1, 4, 3, 4, 4)
OPTIONS: Mapping[str, Any] = {
    "frames": 9,
    "height": 16,
    "width": 16,
    "steps": 4,
    "prompt_tokens": 6,
    "threads": 1,
    "negative_prompt": "rain",
}
Videos = list[NDArray[np.uint8]]
AXES = {"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WanPipeline as diffusers writes it: both transformers, with random weights."""
    torch.manual_seed(0)
    named = ("<pad>", "<unk>", "a", "cat", "runs", "dog", "rain")
    words = {word: place for place, word in enumerate(named)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    axes = {**AXES, "text_dim": 16, "freq_dim": 16, "ffn_dim": 16, "num_layers": 1}
    pipe = diffusers.WanPipeline(
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>"),
        text_encoder=UMT5EncoderModel(
            UMT5Config(vocab_size=8, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
        ),
        transformer=diffusers.WanTransformer3DModel(**axes, patch_size=(1, 2, 2)),
        transformer_2=diffusers.WanTransformer3DModel(**axes, patch_size=(1, 2, 2)),
        vae=diffusers.AutoencoderKLWan(
            base_dim=4,
            z_dim=4,
            dim_mult=[1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[True, True],
            latents_mean=[0.1] * 4,
            latents_std=[1.5] * 4,
            scale_factor_spatial=4,
        ),
        scheduler=diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        boundary_ratio=0.875,
    )
    target = tmp_path_factory.mktemp("wan")
    pipe.save_pretrained(target)
    return target


NOISE = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)


class Prompts:
    """A data set of prompts with one start for all."""

    digest = "0" * 64

    def __init__(self, latents: Any = NOISE) -> None:
        self._latents = latents

    def __len__(self) -> int:
        return len(PROMPTS)

    def input(self, index: int) -> Any:
        return {"prompt": PROMPTS[index], "latents": self._latents}

    def reference(self, index: int) -> str:
        return PROMPTS[index]


def engine(folder: Path, dataset: Any = None, **options: Any) -> VideoEngine:
    taken = {"precision": "fp32", **OPTIONS, **options}
    return VideoEngine(dataset=dataset or Prompts(), model=str(folder), **taken)


def videos(folder: Path, dataset: Any = None, **options: Any) -> Videos:
    sink = Tokenless(len(PROMPTS))
    with engine(folder, dataset, **options) as opened:
        ask(opened, sink, len(PROMPTS))
    frames = (np.frombuffer(sink.outputs[100 + n], np.uint8) for n in range(len(PROMPTS)))
    return [each.reshape(9, 16, 16, 3) for each in frames]


def by_hand(folder: Path, prompts: Sequence[str], **options: Any) -> Videos:
    """Return what diffusers' pipeline makes of each prompt, called as MLPerf's reference does."""
    pipe = diffusers.WanPipeline.from_pretrained(folder, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    made = [
        pipe(
            prompt=prompt,
            negative_prompt="rain",
            height=16,
            width=16,
            num_frames=9,
            num_inference_steps=4,
            **{"guidance_scale": 4.0, "guidance_scale_2": 3.0, **options},
            latents=torch.from_numpy(NOISE),
            max_sequence_length=6,
        ).frames[0]
        for prompt in prompts
    ]
    return [(each * 255).round().astype(np.uint8) for each in made]


@pytest.fixture(scope="module")
def single(folder: Path) -> Videos:
    """Videos made by the engine, one at a time."""
    return videos(folder)


def test_videos_are_those_of_diffusers_own_pipeline(folder: Path, single: Videos) -> None:
    np.testing.assert_array_equal(single, by_hand(folder, PROMPTS))
    assert len({video.tobytes() for video in single}) == len(PROMPTS)
    for name in ("guidance_scale", "guidance_scale_2"):
        first, *_ = videos(folder, **{name: 9.0})
        np.testing.assert_array_equal(first, by_hand(folder, PROMPTS[:1], **{name: 9.0})[0])
        assert first.tobytes() != single[0].tobytes()


@pytest.mark.process
def test_it_keeps_the_contract_of_engines(folder: Path) -> None:
    options = {**OPTIONS, "batch_size": 2}
    check_engine(
        VideoEngine,
        Prompts(),
        model=str(folder),
        precision="fp32",
        options=options,
        samples=len(PROMPTS),
        same_answers=False,  # sums of floats depend on what is computed together
    )


def test_a_batch_makes_the_videos_of_single_prompts(folder: Path, single: Videos) -> None:
    for video, batched in zip(single, videos(folder, batch_size=3), strict=True):
        assert np.abs(video.astype(int) - batched).max() <= 1


def test_latents_are_of_the_sample_where_the_data_set_gives_none(folder: Path) -> None:
    first, again = videos(folder, Prompts(None)), videos(folder, Prompts(None), batch_size=2)

    assert all(np.abs(a.astype(int) - b).max() <= 1 for a, b in zip(first, again, strict=True))
    assert videos(folder, Prompts(None), seed=1)[0].tobytes() != first[0].tobytes()


def test_the_fingerprint_says_what_decides_the_videos(folder: Path) -> None:
    with engine(folder) as opened:
        facts = opened.describe()

    expected = {
        "generation.size": "9x16x16",
        "generation.boundary": "0.875",
        "generation.scheduler": "UniPCMultistepScheduler",
        "dtype": "float32",
        "vae_dtype": "float32",
    }
    assert facts.items() >= expected.items()


def load(folder: Path, options: Mapping[str, Any] = MappingProxyType({})) -> None:
    with engine(folder, **options) as opened:
        opened.load_samples([0])


def test_another_pipeline_is_refused(folder: Path, tmp_path: Path) -> None:
    assert broken_but_accepted(folder, tmp_path, load, [
        (
            json_with("model_index.json", _class_name="OtherPipeline"),
            "names the pipeline 'OtherPipeline'; this engine runs WanPipeline",
        ),
        (
            json_with("model_index.json", transformer=["own_code", "Own"]),
            "names 'Own' as transformer, which should be WanTransformer3DModel",
        ),
        (without("vae/config.json"), "vae: has no config.json"),
    ]) == []  # fmt: skip


def test_options_and_latents_that_mean_nothing_are_refused(folder: Path, tmp_path: Path) -> None:
    table: list[tuple[dict[str, Any], str]] = [
        ({"height": 20}, "height = 20 is not a multiple of 16 pixels"),
        ({"guidance_scale_2": -1.0}, "guidance_scale_2 = -1.0 is not a number from 0 on"),
        ({"boundary": 1.5}, "boundary = 1.5 is not a noise level"),
        ({"precision": "int8"}, "precision = 'int8' is not one of"),
        ({"steps": 0}, "steps = 0 is not a number of steps"),
        ({"frames": 10}, "frames = 10 .* must be a multiple of 4, plus 1"),
    ]
    assert unrefused(load, SuiteError, [(folder, *row) for row in table]) == []
    cut = {"dataset": Prompts(NOISE[..., :2])}
    shapes = "latents of shape (1, 4, 3, 4, 2), but videos of 9x16x16"
    assert unrefused(load, RunError, [(folder, cut, shapes)]) == []
    with pytest.raises(UnavailableError):
        engine(tmp_path / "nowhere")
