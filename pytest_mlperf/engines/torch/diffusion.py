"""Make images from text with Stable Diffusion XL through diffusers, as MLPerf's reference does."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pytest_mlperf.core.errors import EnvironmentFault, SuiteError
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.engines.model_folder import find_model
from pytest_mlperf.engines.queueing import WorkQueue
from pytest_mlperf.engines.torch.module_options import (
    BLOCK_MODES,
    Rules,
    check,
    common_rules,
    compile_rule,
    whole,
)
from pytest_mlperf.engines.torch.requirements import require_device

if TYPE_CHECKING:
    from pytest_mlperf.engines.torch.diffusion_images import Settings

ENGINE = "torch-diffusion"

NEGATIVE_PROMPT = "normal quality, low quality, worst quality, low res, blurry, nsfw, nude"
"""What MLPerf's reference steers away from."""

OFFICIAL = ("checkpoint_pipe", "checkpoint_scheduler")
"""Folders of MLPerf's checkpoint: the pipeline, and the Euler scheduler beside it."""

INDEX = "model_index.json"
ATTENTIONS = ("sdpa", "eager")
VAE_DTYPES = ("auto", "fp32", "bf16", "fp16")


class DiffusionEngine(Engine):
    """Answers each prompt with its image: uint8, shape (height, width, 3).

    Defaults are those of MLPerf's reference: 20 steps of the Euler scheduler, guidance 8, its
    negative prompt, and prompts cut at the tokens that CLIP takes (77). Samples wait in a queue for
    one thread, which makes images of as many as have gathered, `batch_size` at most.
    """

    libraries: ClassVar[tuple[str, ...]] = ("diffusers", "torch", "transformers")

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,
        device: str = "cpu",
        batch_size: int = 1,
        threads: int | None = None,
        steps: int = 20,
        guidance_scale: float = 8.0,
        negative_prompt: str = NEGATIVE_PROMPT,
        height: int | None = None,
        width: int | None = None,
        seed: int = 0,
        deepcache: int = 1,
        vae_dtype: str = "auto",
        vae_slicing: bool = False,
        attention: str = "sdpa",
        compile: bool | str = False,  # noqa: A002 - what torch calls it
    ) -> None:
        """Keep the options and check that the model is there.

        Args:
            dataset: Its inputs are a dict of "caption", text, and "latents", an array or None; or
                text alone.
            model: Folder of the pipeline: model_index.json, unet, vae, text_encoder,
                text_encoder_2, tokenizer, tokenizer_2, scheduler; or MLPerf's, with
                checkpoint_pipe and checkpoint_scheduler. Nothing is downloaded and no code of the
                folder is run.
            precision: "fp32", "bf16" or "fp16"; "int8" or "int4": weights of the UNet's linear
                layers as such (torchao), the rest in the checkpoint's own type, or with int4 on
                GPUs in bfloat16; "fp8": these weights and their inputs, the rest in bfloat16, on
                GPUs of compute capability 8.9 and later.
            device: "cpu", "cuda" or "cuda:N".
            batch_size: Images made together at most.
            threads: Threads of the CPU's operators; None leaves torch's own choice.
            steps: Denoising steps.
            guidance_scale: Weight of the prompt against the negative prompt.
            negative_prompt: What images should not be like; encoded once.
            height: Pixels; None is what the UNet is made for.
            width: Pixels; None is what the UNet is made for.
            seed: Of latents, where the data set gives none; each sample has its own.
            deepcache: Run the UNet's deep blocks every so many steps only, and reuse their
                features in between; 1 runs all blocks at every step. Changes the images.
            vae_dtype: Type the images are decoded in: "fp32", "bf16", "fp16"; "auto" is that of
                `precision`, or fp32 where that is fp16 and the model asks for it, as SDXL does.
            vae_slicing: Decode images one by one, which needs less memory.
            attention: "sdpa" or "eager".
            compile: False, or a mode of torch.compile without CUDA graphs, for each block of the
                UNet; compiled for batches of 1 and of `batch_size` before time is measured.

        Raises:
            SuiteError: An option is out of range, or there is no model.
            UnavailableError: The model's folder is not here.
        """
        check(
            ENGINE,
            (
                *common_rules(
                    precision=precision,
                    device=device,
                    weights="checkpoint",
                    batch_size=batch_size,
                    threads=threads,
                ),
                *_image_rules(steps, guidance_scale, negative_prompt, height, width, seed),
                *_way_rules(deepcache, vae_dtype, vae_slicing, attention),
                *compile_rule(compile, BLOCK_MODES),
            ),
        )
        self._folder, self._scheduler = _find_pipeline(model)
        self._dataset = dataset
        self._precision = precision
        self._device = device
        self._batch_size = batch_size
        self._threads = threads
        self._steps = steps
        self._guidance_scale = float(guidance_scale)
        self._negative_prompt = negative_prompt
        self._height = height
        self._width = width
        self._seed = seed
        self._deepcache = deepcache
        self._vae_dtype = vae_dtype
        self._vae_slicing = vae_slicing
        self._attention = attention
        self._compile = None if compile is False else str(compile)
        self._cold = self._compile is not None

    def require(self) -> None:
        """Look for the device and for what the options need; nothing is loaded.

        Raises:
            EnvironmentFault: A library or the device is not here, or it has no kernels.
        """
        require_device(ENGINE, device=self._device, precision=self._precision)

    def __enter__(self) -> Self:
        """Load the pipeline, encode the negative prompt, and start the thread.

        Raises:
            SuiteError: Height or width does not fit the model.
            EnvironmentFault: A library or the device is not here.
            RunError: The folder has no complete pipeline.
        """
        try:
            import diffusers  # noqa: F401 - all are used by the modules below
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as error:
            raise EnvironmentFault(
                f"engine {ENGINE} needs {error.name}, which is not installed; "
                "try: pip install 'pytest-mlperf[diffusion]'"
            ) from error
        self.require()
        from pytest_mlperf.engines.torch import devices

        with contextlib.ExitStack() as undo:
            self._facts = {
                "engine": ENGINE,
                "batch_size": str(self._batch_size),
                "threads": devices.use_threads(self._threads, undo),
                "compile": self._compile or "false",
                "vae_slicing": str(self._vae_slicing).lower(),
            }
            undo.callback(devices.release_memory)
            undo.callback(self._open())
            queue = WorkQueue(self._images.run, max_batch=self._batch_size)
            undo.callback(queue.close)
            self._queue = queue
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the thread and free the pipeline and the samples."""
        self._undo.close()

    def load_samples(self, indices: Sequence[int]) -> None:
        """Tokenise prompts and check latents.

        Raises:
            RunError: A sample is no prompt, or its latents do not fit.
        """
        self._images.load(indices)
        if self._cold and indices:
            self._cold = False
            self._images.warm_up(sorted({self._batch_size, 1}, reverse=True), self._deepcache + 1)

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget these samples."""
        self._images.unload(indices)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Hand the samples to the thread."""
        self._queue.put(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
        """Return versions, weights, and what decides images and speed; needs a loaded model."""
        return dict(self._facts)

    def _open(self) -> Any:
        """Load the pipeline; return what lets go of it."""
        from pytest_mlperf.engines.torch import deepcache, devices, diffusion_pipeline
        from pytest_mlperf.engines.torch.diffusion_images import Images

        loaded = diffusion_pipeline.open_pipeline(
            self._folder,
            self._scheduler,
            precision=self._precision,
            vae_dtype=self._vae_dtype,
            attention=self._attention,
            device=devices.find_device(self._device, engine=ENGINE),
            compile_mode=self._compile,
        )
        if self._vae_slicing:
            loaded.pipe.vae.enable_slicing()
        cache = None
        if self._deepcache > 1:
            if not deepcache.fits(loaded.pipe.unet):
                raise SuiteError(
                    f"engine {ENGINE}: deepcache = {self._deepcache} needs a UNet of two levels or "
                    "more, which this is not; set deepcache = 1"
                )
            cache = deepcache.install(loaded.pipe.unet, self._deepcache)
        settings = self._settings(loaded.pipe)
        self._images = Images(
            loaded.pipe,
            self._dataset,
            settings,
            dtype=loaded.dtype,
            batch_size=self._batch_size,
            cache=cache,
        )
        self._facts |= {
            **loaded.facts,
            **settings.describe(),
            "deepcache": str(self._deepcache),
            "generation.scheduler": type(loaded.pipe.scheduler).__name__,
            "generation.prompt_tokens": f"{self._images.prompt_tokens}, longer prompts are cut",
        }
        return self._forget

    def _settings(self, pipe: Any) -> Settings:
        """Return what decides an image, with height and width in pixels."""
        from pytest_mlperf.engines.torch.diffusion_images import Settings

        factor = pipe.vae_scale_factor
        own = pipe.unet.config.sample_size
        height, width = (own, own) if isinstance(own, int) else own
        height, width = self._height or height * factor, self._width or width * factor
        for name, value in (("height", height), ("width", width)):
            if value % factor:
                raise SuiteError(
                    f"engine {ENGINE}: {name} = {value} is not a multiple of {factor}, the pixels "
                    "per latent of this model"
                )
        return Settings(
            steps=self._steps,
            guidance_scale=self._guidance_scale,
            negative_prompt=self._negative_prompt,
            height=height,
            width=width,
            seed=self._seed,
        )

    def _forget(self) -> None:
        """Let go of all that refers to the pipeline."""
        del self._images


def _image_rules(
    steps: int,
    guidance_scale: float,
    negative_prompt: str,
    height: int | None,
    width: int | None,
    seed: int,
) -> Rules:
    scale = type(guidance_scale) in {int, float} and 0 <= guidance_scale < float("inf")
    return (
        ("steps", steps, whole(steps, 1), "a number of steps, at least 1"),
        ("guidance_scale", guidance_scale, scale, "a number from 0 on"),
        ("negative_prompt", negative_prompt, isinstance(negative_prompt, str), "text"),
        ("height", height, height is None or whole(height, 1), "a number of pixels, at least 1"),
        ("width", width, width is None or whole(width, 1), "a number of pixels, at least 1"),
        ("seed", seed, whole(seed, 0) and seed < 1 << 31, "a number from 0 to 2147483647"),
    )


def _way_rules(deepcache: int, vae_dtype: str, vae_slicing: bool, attention: str) -> Rules:
    return (
        ("deepcache", deepcache, whole(deepcache, 1), "a number of steps; 1 is off"),
        ("vae_dtype", vae_dtype, vae_dtype in VAE_DTYPES, f"one of {', '.join(VAE_DTYPES)}"),
        ("vae_slicing", vae_slicing, type(vae_slicing) is bool, "true or false"),
        ("attention", attention, attention in ATTENTIONS, f"one of {', '.join(ATTENTIONS)}"),
    )


def _find_pipeline(model: str | None) -> tuple[Path, Path]:
    """Return the folders of the pipeline and of its scheduler."""
    pipe, scheduler = OFFICIAL
    if model is not None and (Path(model) / pipe / INDEX).is_file():
        own = Path(model) / scheduler / "scheduler"
        return Path(model) / pipe, own if own.is_dir() else Path(model) / pipe / "scheduler"
    folder = find_model(ENGINE, model, file=INDEX, parts=f"{INDEX} and the safetensors files")
    return folder, folder / "scheduler"
