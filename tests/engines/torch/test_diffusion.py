"""Images are those of diffusers' own pipeline, however samples come; what is wrong is refused."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from tests.engines.recording import unrefused
from tests.engines.torch.models import (
    broken_but_accepted,
    change_weights,
    json_with,
    text_of,
    weights_with,
    without,
)
from tests.engines.torch.pipelines import (
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
    write_pipeline,
)

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
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pipeline that no test changes."""
    return write_pipeline(tmp_path_factory.mktemp("sdxl"))


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


def test_a_prompt_alone_has_the_very_image_of_the_pipeline(tiny: Path, plain: Any) -> None:
    """Bit by bit, and images differ from prompt to prompt; a long prompt is cut as there."""
    start = latents()

    images = paint(tiny, Captions(PROMPTS, start))

    expected = np.concatenate([by_hand(plain, [prompt], start) for prompt in PROMPTS])
    np.testing.assert_array_equal(images, expected)
    apart = [np.abs(images[0].astype(int) - other).mean() for other in images[1:]]
    assert min(apart) > 5


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_narrow_types_are_those_of_the_pipeline(tiny: Path, precision: str) -> None:
    """With fp16 the autoencoder is float32, as its config.json asks for."""
    start = latents()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]

    with open_engine(tiny, Captions(PROMPTS[:1], start), precision=precision, steps=2) as engine:
        images = ask(engine, 1)
        facts = engine.describe()

    plain = by_hand(plain_pipeline(tiny, dtype), PROMPTS[:1], start, num_inference_steps=2)
    np.testing.assert_array_equal(images, plain)
    assert facts["vae_dtype"] == {"bf16": "bfloat16", "fp16": "float32"}[precision]


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
    together = paint(tiny, Captions(PROMPTS, start), batch_size=4, steps=2)
    apart = paint(tiny, Captions(PROMPTS, start), batch_size=3, steps=2)
    with open_engine(tiny, Captions(PROMPTS, start), steps=2) as engine:
        engine.load_samples([3, 1])
        sink = Gallery(expected=2)
        for sample in (3, 1):
            engine.submit([sample], [sample], sink)
        sink.wait()

    assert close(together, apart)
    for sample in (3, 1):
        alone = np.frombuffer(sink.outputs[sample], np.uint8).reshape(apart[0].shape)
        assert close(alone, apart[sample])


def test_drawn_latents_differ_from_sample_to_sample_and_by_seed(tiny: Path) -> None:
    """The same prompt three times; seed 0 again gives the same images."""
    prompts = Captions(["rain"] * 2, None)

    first, again = paint(tiny, prompts, steps=2), paint(tiny, prompts, steps=2)
    other = paint(tiny, prompts, seed=1, steps=2)

    np.testing.assert_array_equal(first, again)
    assert not close(first[:1], first[1:])
    assert not close(first, other)


def test_the_reference_settings_are_the_defaults(tiny: Path, plain: Any) -> None:
    """20 steps, guidance 8, Euler, MLPerf's negative prompt; and describe() says so."""
    start = latents()
    with open_engine(tiny, Captions(PROMPTS[:1], start), steps=20) as engine:
        images, facts = ask(engine, 1), engine.describe()

    assert (
        facts.items()
        >= {
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
        }.items()
    )
    np.testing.assert_array_equal(
        images, by_hand(plain, PROMPTS[:1], start, num_inference_steps=20)
    )


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


def test_blocks_are_compiled_when_the_model_is_loaded(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_compiled_blocks_are_warm_before_time_is_measured(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with reused features, whose steps are no reason to compile anew.

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


def test_what_has_gathered_goes_in_one_batch(tiny: Path) -> None:
    """Samples that come one by one wait for the thread, `batch_size` of them at most."""
    prompts = Captions(["rain"] * 9, latents())
    sink = Gallery(expected=9, wants_output=False)
    with open_engine(tiny, prompts, batch_size=4, steps=2) as engine:
        engine.load_samples(range(9))
        for sample in range(9):
            engine.submit([sample], [sample], sink)
        sink.wait()

    assert sorted(sink.ids) == list(range(9))
    assert max(map(len, sink.batches)) <= 4
    assert len(sink.batches) < 9
    assert sink.outputs == {}


def test_official_folders_are_found(tiny: Path, plain: Any, tmp_path: Path) -> None:
    """MLPerf's checkpoint keeps the Euler scheduler apart from the pipeline."""
    shutil.copytree(tiny, tmp_path / "checkpoint_pipe")
    apart = tmp_path / "checkpoint_scheduler"
    shutil.move(tmp_path / "checkpoint_pipe" / "scheduler", apart / "scheduler")

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


def test_options_out_of_range_are_refused(tiny: Path) -> None:
    rows: list[tuple[str, Any, str]] = [
        ("precision", "fp4", "is not one of fp32, bf16, fp16, int8, int4, fp8"),
        ("device", "tpu", "is not cpu, cuda or cuda:N"),
        ("batch_size", 0, "is not a number of samples, at least 1"),
        ("threads", 0, "is not a number of threads, at least 1"),
        ("steps", 0, "is not a number of steps, at least 1"),
        ("steps", 2.5, "is not a number of steps, at least 1"),
        ("guidance_scale", -1.0, "is not a number from 0 on"),
        ("guidance_scale", float("nan"), "is not a number from 0 on"),
        ("height", 0, "is not a number of pixels, at least 1"),
        ("seed", -1, "is not a number from 0 to 2147483647"),
        ("deepcache", 0, "is not a number of steps; 1 is off"),
        ("vae_dtype", "int8", "is not one of auto, fp32, bf16, fp16"),
        ("attention", "xformers", "is not one of sdpa, eager"),
        ("compile", True, "is not false or one of default, max-autotune-no-cudagraphs"),
        ("compile", "reduce-overhead", "is not false or one of default, max-autotune-no-cu"),
    ]
    single = [
        (name, value, f"engine torch-diffusion: {name} = {value!r} {message}")
        for name, value, message in rows
    ]

    def make(option: str, value: Any) -> None:
        with open_engine(tiny, Captions(["rain"]), **{option: value}):
            pass

    others = [
        ("height", 33, "height = 33 is not a multiple of 2"),
        ("model", None, "no model; set workload.model"),
    ]
    assert unrefused(make, SuiteError, [*single, *others]) == []


def test_a_model_that_is_not_here_is_unavailable(tmp_path: Path) -> None:
    """The suite's case is then skipped, with the path it looked for."""
    with pytest.raises(UnavailableError, match=r"absent: this model folder does not exist; put m"):
        open_engine(tmp_path / "absent", Captions([]))
    with pytest.raises(UnavailableError, match=r"this folder has no model_index\.json"):
        open_engine(tmp_path, Captions([]))


@pytest.mark.parametrize("library", ["diffusers", "torch", "transformers"])
def test_a_missing_library_names_the_extra_to_install(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with (
        pytest.raises(EnvironmentFault, match=re.escape("pip install 'pytest-mlperf[diffusion]'")),
        open_engine(tiny, Captions([])),
    ):
        pass


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
    (text_of(INDEX, "[]"), "is no JSON object"),
    (text_of(INDEX, "{"), "is no JSON object"),
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

    rows = [
        (Captions([7], latents()), 'sample 0 of the data set has no "caption"'),
        (
            Captions(["rain"], np.zeros((1, 4, 8, 8), np.float32)),
            "sample 0 of the data set has latents of shape (1, 4, 8, 8), but images of 32 x 32 "
            "pixels start from (1, 4, 16, 16)",
        ),
    ]
    assert unrefused(load, RunError, rows) == []


def test_an_image_that_is_not_finite_is_an_error_that_names_the_sample(copy: Path) -> None:
    """It would be black: what overflows in a narrow type shows as not a number."""

    def overflow(all_: dict[str, Any]) -> None:
        all_["decoder.conv_in.weight"].mul_(1e30)

    change_weights(copy / "vae/diffusion_pytorch_model.safetensors", overflow)
    with open_engine(copy, Captions(PROMPTS, latents()), steps=1, vae_dtype="fp16") as engine:
        engine.load_samples([2])
        sink = Gallery(expected=1)
        engine.submit([5], [2], sink)
        with pytest.raises(
            RunError,
            match=r"sample 2 of the data set has an image that is not finite, computed in float32 "
            r"and decoded in float16; it would be black",
        ):
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
    assert close(images, paint(tiny, Captions(PROMPTS[:1], None), steps=1, **size))
