"""Test that images equal those of diffusers' pipeline in any batching; bad options are refused."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pytest_mlperf.adapters.engines.torch import _stages
from pytest_mlperf.adapters.engines.torch.diffusion import DiffusionEngine
from pytest_mlperf.core.errors import RunError
from tests.adapters.engines.torch.models import (
    broken_but_accepted,
    json_with,
    text_of,
    weights_with,
    without,
)
from tests.adapters.engines.torch.pipelines import (
    PROMPTS,
    SIDE,
    Captions,
    Gallery,
    ask,
    by_hand,
    latents,
    open_engine,
    paint,
    plain_pipeline,
)
from tests.refusals import unrefused

pytestmark = [
    # diffusers 0.42 hands tensors to NumPy in a way that it will not take for ever.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # Its call decodes through a method that it no longer wants to be called.
    pytest.mark.filterwarnings("ignore:`upcast_vae` is deprecated:FutureWarning"),
    # torch's compiler still imports what torch no longer wants.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
]

UNET = "unet/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def plain(tiny: Path) -> Any:
    """diffusers' own pipeline of it."""
    return plain_pipeline(tiny)


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A folder of the pipeline that a test may break."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def close(images: NDArray[np.uint8], others: NDArray[np.uint8]) -> bool:
    """Within a grey level, and most of them the same."""
    apart = np.abs(images.astype(int) - others)
    return bool(apart.max() <= 1 and (apart == 0).mean() > 0.99)


def test_each_part_of_the_pipeline_is_a_stage(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of two steps: each call of a part takes a time of its own, nothing else does."""
    clock = [0.0]
    monkeypatch.setattr(_stages, "perf_counter", lambda: clock[0])
    with open_engine(tiny, Captions(PROMPTS[:4], latents()), steps=2, batch_size=2) as engine:
        pipe = engine._samples._pipe
        parts = [
            (pipe.text_encoder, "forward", 0.5),
            (pipe.text_encoder_2, "forward", 0.25),
            (pipe.unet, "forward", 8.0),
            (pipe.vae, "decode", 1.0),
        ]
        for part, name, seconds in parts:
            original = getattr(part, name)

            def timed(
                *args: Any, original: Any = original, seconds: float = seconds, **keywords: Any
            ) -> Any:
                clock[0] += seconds
                return original(*args, **keywords)

            monkeypatch.setattr(part, name, timed)
        ask(engine, 4)
        seconds_by_stage = engine.stage_seconds()
        assert engine.stage_seconds() == {}

    assert seconds_by_stage == {"text_encoder": 2 * 0.75, "unet": 2 * 2 * 8.0, "vae": 2 * 1.0}


def test_a_prompt_alone_has_the_very_image_of_the_pipeline(tiny: Path, plain: Any) -> None:
    """Bit by bit, and images differ from prompt to prompt; a long prompt is cut as there."""
    start = latents()

    images = paint(tiny, Captions(PROMPTS, start))

    expected = np.concatenate([by_hand(plain, [prompt], start) for prompt in PROMPTS])
    np.testing.assert_array_equal(images, expected)
    apart = [np.abs(images[0].astype(int) - other).mean() for other in images[1:]]
    assert min(apart) > 5


@pytest.mark.parametrize(
    ("precision", "dtype", "decoder"),
    [("bf16", torch.bfloat16, "bfloat16"), ("fp16", torch.float16, "float32")],
)
def test_narrow_types_are_those_of_the_pipeline(
    tiny: Path, precision: str, dtype: torch.dtype, decoder: str
) -> None:
    """With fp16 the autoencoder is float32, as its config.json asks for."""
    single = Captions(PROMPTS[:1], latents())
    with open_engine(tiny, single, precision=precision, steps=1) as engine:
        images, facts = ask(engine, 1), engine.describe()

    pipe = plain_pipeline(tiny, dtype)
    plain = by_hand(pipe, PROMPTS[:1], latents(), num_inference_steps=1)
    np.testing.assert_array_equal(images, plain)
    assert facts["vae_dtype"] == decoder


def test_a_batch_has_the_very_images_of_the_pipeline(tiny: Path, plain: Any) -> None:
    """Given the negative prompt's embeddings, which are computed once; else within a level."""
    start, prompts = latents(), PROMPTS[:3]

    images = paint(tiny, Captions(prompts, start), batch_size=3)

    _, negative, _, pooled = plain.encode_prompt("any", negative_prompt=NEGATIVE)
    once = by_hand(
        plain,
        prompts,
        start,
        negative_prompt=None,
        negative_prompt_embeds=negative.repeat(3, 1, 1),
        negative_pooled_prompt_embeds=pooled.repeat(3, 1),
    )
    np.testing.assert_array_equal(images, once)
    assert close(images, by_hand(plain, prompts, start))


NEGATIVE = "normal quality, low quality, worst quality, low res, blurry, nsfw, nude"


@pytest.mark.parametrize("start", [latents(), None], ids=["given", "drawn"])
def test_batches_do_not_change_images(tiny: Path, start: Any) -> None:
    """Neither does the order, nor whether latents are given or drawn for each sample."""
    together = paint(tiny, Captions(PROMPTS, start), batch_size=3, steps=2)
    with open_engine(tiny, Captions(PROMPTS, start), steps=2) as engine:
        engine.load_samples([3, 1])
        sink = Gallery(expected=2)
        for sample in (3, 1):
            engine.submit([sample], [sample], sink)
        sink.wait()

    for sample in (3, 1):
        alone = np.frombuffer(sink.outputs[sample], np.uint8).reshape(together[0].shape)
        assert close(alone, together[sample])


def test_drawn_latents_differ_from_sample_to_sample_and_by_seed(tiny: Path) -> None:
    """The same prompt twice; seed 0 again gives the same images."""
    first, again, other = (
        paint(tiny, Captions(["rain"] * 2), steps=2, **options) for options in ({}, {}, {"seed": 1})
    )

    np.testing.assert_array_equal(first, again)
    assert not close(first[:1], first[1:])
    assert not close(first, other)


def test_the_reference_settings_are_the_defaults(tiny: Path) -> None:
    """20 steps, guidance 8, Euler, MLPerf's negative prompt."""
    with DiffusionEngine(dataset=Captions([]), model=str(tiny), precision="fp32") as engine:
        facts = engine.describe()

    expected = {
        "engine": "torch-diffusion",
        "diffusers": version("diffusers"),
        "torch": str(torch.__version__),
        "generation.steps": "20",
        "generation.guidance_scale": "8.0",
        "deepcache": "1",
        "generation.negative_prompt": NEGATIVE,
        "generation.scheduler": "EulerDiscreteScheduler",
        "generation.size": f"{2 * SIDE}x{2 * SIDE}",
        "generation.prompt_tokens": "77, longer prompts are cut",
        "vae_dtype": "float32",
    }
    assert facts.items() >= expected.items()


def test_settings_reach_the_pipeline(tiny: Path, plain: Any) -> None:
    start = latents()
    usual = by_hand(plain, PROMPTS[:1], start, num_inference_steps=2)
    changes: list[dict[str, Any]] = [
        {"guidance_scale": 3.0}, {"guidance_scale": 1.0}, {"negative_prompt": "cat"},
    ]  # fmt: skip
    for settings in changes:
        images = paint(tiny, Captions(PROMPTS[:1], start), steps=2, **settings)
        expected = by_hand(plain, PROMPTS[:1], start, num_inference_steps=2, **settings)
        np.testing.assert_array_equal(images, expected)
        assert not close(images, usual)


def test_ways_to_compute_the_same(tiny: Path) -> None:
    prompts = Captions(PROMPTS[:2], latents())
    usual = paint(tiny, prompts, steps=2)
    with open_engine(tiny, prompts, batch_size=2, steps=2) as engine:
        described = engine.describe()

    for options, apart in (
        ({"precision": "int8"}, 3.0),
        ({"precision": "int4"}, 20.0),
        ({"attention": "eager"}, 0.1),
        ({"vae_slicing": True}, 0.1),
    ):
        with open_engine(tiny, prompts, batch_size=2, steps=2, **options) as engine:
            images = ask(engine, 2)
            assert engine.describe() != described
        assert np.abs(images.astype(int) - usual).mean() < apart, options


def test_blocks_are_compiled_at_loading(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, str]] = []
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda self, mode: compiled.append((type(self).__name__, mode)),
    )
    prompts = Captions(PROMPTS[:1], latents())
    with open_engine(tiny, prompts, compile="default", deepcache=2, steps=2) as engine:
        engine.load_samples([0])
        loaded = list(compiled)
        ask(engine, 1)
        assert engine.describe()["compile"] == "default"

    assert compiled == loaded
    assert {mode for _, mode in compiled} == {"default"}


@pytest.mark.nightly
def test_compiled_blocks_are_warm_at_start(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with reused features, whose steps do not trigger a new compilation.

    Graphs are traced and guarded as always, but run as they are: making code takes minutes.
    """
    compile_with = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, mode: compile_with(self, backend="eager")
    )
    graphs = torch._dynamo.utils.counters["stats"]
    torch._dynamo.reset()
    prompts = Captions(PROMPTS[:1], latents())
    with open_engine(tiny, prompts, compile="default", deepcache=2, steps=5) as engine:
        engine.load_samples([0])
        made = graphs["unique_graphs"]
        images = ask(engine, 1)
    assert graphs["unique_graphs"] == made > 0
    assert close(images, paint(tiny, prompts, deepcache=2, steps=5))


def test_gathered_samples_go_in_one_batch(tiny: Path) -> None:
    """Samples that come one by one wait for the thread, `batch_size` of them at most."""
    sink = Gallery(expected=9, wants_output=False)
    with open_engine(tiny, Captions(["rain"] * 9, latents()), batch_size=4, steps=1) as engine:
        engine.load_samples(range(9))
        for sample in range(9):
            engine.submit([sample], [sample], sink)
        sink.wait()

    assert sorted(sink.ids) == list(range(9))
    assert max(map(len, sink.batches)) <= 4
    assert len(sink.batches) < 9
    assert sink.outputs == {}


def test_official_folders_are_found(copy: Path, plain: Any, tmp_path: Path) -> None:
    """MLPerf's checkpoint keeps the Euler scheduler apart from the pipeline."""
    pipe = Path(shutil.move(copy, tmp_path / "checkpoint_pipe"))
    shutil.move(pipe / "scheduler", tmp_path / "checkpoint_scheduler" / "scheduler")

    images = paint(tmp_path, Captions(PROMPTS[:1], latents()), steps=2)

    expected = by_hand(plain, PROMPTS[:1], latents(), num_inference_steps=2)
    np.testing.assert_array_equal(images, expected)


def test_weights_of_the_variant_fp16_are_taken_where_they_are_alone(copy: Path) -> None:
    """As they are published; int8 leaves the rest in the checkpoint's own type."""
    for part in ("unet", "vae", "text_encoder", "text_encoder_2"):
        (file,) = (copy / part).glob("*.safetensors")
        half = {name: tensor.half() for name, tensor in load_file(file).items()}
        save_file(half, file.with_suffix(".fp16.safetensors"), metadata={"format": "pt"})
        file.unlink()

    with open_engine(copy, Captions(PROMPTS[:1], latents()), precision="int8") as engine:
        assert engine.describe()["dtype"] == "float16"
    with open_engine(copy, Captions(PROMPTS[:1], latents()), precision="fp16", steps=1) as engine:
        ask(engine, 1)


INDEX = "model_index.json"

BROKEN = [
    (
        json_with(INDEX, _class_name="StableDiffusionPipeline"),
        "names the pipeline 'StableDiffusionPipeline'; this engine runs StableDiffusionXLPipeline",
    ),
    (
        json_with(INDEX, unet=["own_code", "OwnUNet"]),
        "names 'OwnUNet' as unet, which should be UNet2DConditionModel",
    ),
    (text_of(INDEX, "[]"), "is not a JSON object"),
    (text_of(INDEX, "{"), "is not a JSON object: Expecting"),
    (without(UNET), "unet: has no safetensors files"),
    (
        lambda folder: (folder / UNET).write_bytes((folder / UNET).read_bytes()[:-999]),
        "unet: UNet2DConditionModel cannot be loaded",
    ),
    (without("vae/config.json"), "vae: has no config.json"),
    (
        weights_with(lambda all_: all_.pop("conv_in.weight"), UNET),
        "unet: the checkpoint lacks conv_in.weight",
    ),
    (
        weights_with(lambda all_: all_.update({"conv_in.weight": torch.zeros(3)}), UNET),
        "unet: weights do not fit config.json: conv_in.weight",
    ),
    (
        weights_with(
            lambda all_: all_.pop(next(name for name in all_ if name.endswith("k_proj.weight"))),
            "text_encoder/model.safetensors",
        ),
        r"text_encoder: the checkpoint lacks .*k_proj\.weight",
    ),
    (without("tokenizer_2"), "tokenizer_2: has no tokenizer"),
    (without("scheduler"), "has no scheduler_config.json"),
]


def test_a_broken_folder_is_refused_when_it_is_loaded(tiny: Path, tmp_path: Path) -> None:
    """diffusers would run some of these, with weights it makes up."""

    def load(folder: Path) -> None:
        with open_engine(folder, Captions(["rain"])):
            pass

    assert broken_but_accepted(tiny, tmp_path, load, BROKEN) == []


def test_a_sample_that_does_not_fit_is_named(tiny: Path) -> None:
    def load(dataset: Captions) -> None:
        with open_engine(tiny, dataset) as engine:
            engine.load_samples([0])

    start = "latents of shape (1, 4, 8, 8), but images of 32 x 32 pixels start from (1, 4, 16, 16)"
    rows = [
        (Captions([7], latents()), 'sample 0 of the data set has no "caption"'),
        (
            Captions(["rain"], np.zeros((1, 4, 8, 8), np.float32)),
            f"sample 0 of the data set has {start}",
        ),
    ]
    assert unrefused(load, RunError, rows) == []


def test_an_image_that_is_not_finite_is_an_error_that_names_the_sample(copy: Path) -> None:
    """It would be black: what overflows in a narrow type shows as not a number."""
    overflow = weights_with(
        lambda all_: all_["decoder.conv_in.weight"].mul_(1e30),
        "vae/diffusion_pytorch_model.safetensors",
    )
    overflow(copy)
    expected = (
        "sample 2 of the data set has an image that is not finite, computed in float32 and decoded "
        "in float16; it would be black"
    )
    with open_engine(copy, Captions(PROMPTS, latents()), steps=1, vae_dtype="fp16") as engine:
        engine.load_samples([2])
        sink = Gallery(expected=1)
        engine.submit([5], [2], sink)
        with pytest.raises(RunError, match=expected):
            sink.wait()


def test_plain_text_is_a_prompt_too_in_any_size_and_threads_are_set_back(tiny: Path) -> None:
    """Latents are then drawn; a data set need not know of them."""

    class Texts(Captions):
        def input(self, index: int) -> Any:
            return PROMPTS[index]

    size = {"height": 16, "width": 24}
    threads = torch.get_num_threads()
    with open_engine(tiny, Texts(PROMPTS[:1]), threads=threads + 1, steps=1, **size) as engine:
        images = ask(engine, 1)
        assert engine.describe()["threads"] == str(torch.get_num_threads()) == str(threads + 1)

    assert torch.get_num_threads() == threads
    assert images.shape == (1, 16, 24, 3)
    assert close(images, paint(tiny, Captions(PROMPTS[:1]), steps=1, **size))
