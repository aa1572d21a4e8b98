"""Load Stable Diffusion XL from a local folder, and generate images for prompts in batches.

Each part is checked for completeness; no code of the folder is run.

Reference: text_to_image/backend_pytorch.py of https://github.com/mlcommons/inference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import diffusers
import numpy as np
import torch
import transformers
from diffusers.models.attention_processor import AttnProcessor
from diffusers.utils import is_accelerate_available
from diffusers.utils import logging as diffusers_logging

from pytest_mlperf import Dataset, MlperfError, Sink, SuiteError
from pytest_mlperf.adapters.engines import broken, refused_sample
from pytest_mlperf.adapters.engines.llm.model_folder import TORCHAO, load_tokenizer, read_json
from pytest_mlperf.adapters.engines.torch import _base
from pytest_mlperf.adapters.engines.torch import _checkpoint as checkpoint
from pytest_mlperf.adapters.engines.torch import _devices as devices
from pytest_mlperf.adapters.engines.torch._checkpoint import quiet_and_offline
from pytest_mlperf.adapters.engines.torch._devices import dtype_name
from pytest_mlperf.adapters.engines.torch._stages import StageTimes, Stopwatch
from pytest_mlperf.adapters.engines.torch.diffusion._convolutions import unet_class
from pytest_mlperf.adapters.engines.torch.diffusion._options import DiffusionOptions, MediaOptions
from pytest_mlperf.extension import sha256, text_of

ENGINE = "torch-diffusion"
PIPELINE = "StableDiffusionXLPipeline"

MODELS = {
    "text_encoder": transformers.CLIPTextModel,
    "text_encoder_2": transformers.CLIPTextModelWithProjection,
    "unet": diffusers.UNet2DConditionModel,
    "vae": diffusers.AutoencoderKL,
}
"""Class in transformers or diffusers of each part with weights."""


def open_pipeline(
    folder: Path, scheduler: Path, options: DiffusionOptions, precision: str
) -> tuple[Any, Mapping[str, str]]:
    """Load a pipeline part by part, compile its UNet if asked; return (pipeline, facts on it)."""
    device = devices.find_device(options.device, engine=ENGINE)
    check_index(folder)
    unet_config = read_json(folder / "unet" / "config.json")
    kinds = {**MODELS, "unet": unet_class(unet_config)}
    names = [file.name for file in (folder / "unet").glob("*.safetensors*")]
    variant = "fp16" if names and all(".fp16" in name for name in names) else None
    files = [file for part in sorted(MODELS) for file in weights_of(folder / part, variant)]
    checkpoint_dtype = _own_dtype(files) if precision in _base.QUANTISED_PRECISIONS else None
    dtype = devices.base_dtype(precision, checkpoint_dtype, device)
    with quiet_and_offline(), quiet():
        parts = {
            name: load_part(
                folder / name, kind, dtype, variant, **load_arguments(name, options.attention)
            )
            for name, kind in kinds.items()
        }
        tokenizers = {
            name: load_tokenizer("torch-diffusion", folder / name, "CLIPTokenizer")
            for name in ("tokenizer", "tokenizer_2")
        }
        pipe = diffusers.StableDiffusionXLPipeline(
            **parts,
            **{name: tokenizer for name, (tokenizer, _) in tokenizers.items()},
            scheduler=load_scheduler(scheduler, diffusers.EulerDiscreteScheduler),
            add_watermarker=False,
        )
    pipe.set_progress_bar_config(disable=True)
    if options.vae_dtype != "auto":
        pipe.vae.to(devices.TORCH_DTYPES[options.vae_dtype])
    elif dtype == torch.float16 and pipe.vae.config.force_upcast:
        # The pipeline would do so before it decodes, at every call.
        pipe.vae.to(torch.float32)
    for part in parts.values():
        part.eval().to(device)
    digest = "+".join(digest for _, digest in tokenizers.values())
    facts = facts_of(pipe, files, digest, dtype, device, options.attention)
    if unet_config.get("quantization_config"):
        facts |= _base.quantised_facts(TORCHAO, pipe.unet)
    elif precision in _base.QUANTISED_PRECISIONS:
        facts |= devices.quantise(pipe.unet, precision, device=device, engine=ENGINE)
    if options.attention == "eager":
        pipe.unet.set_attn_processor(AttnProcessor())
    if options.compile:
        for block in (*pipe.unet.down_blocks, pipe.unet.mid_block, *pipe.unet.up_blocks):
            block.compile(mode=options.compile)
    return pipe, facts


def load_arguments(part: str, attention: str) -> dict[str, Any]:
    """Return extra arguments to load a pipeline part; `attention` is for text encoders only."""
    if part.startswith("text_encoder"):
        return {"attn_implementation": attention}
    return {"low_cpu_mem_usage": is_accelerate_available()}


def facts_of(
    pipe: Any, files: Sequence[Path], tokenizers: str, dtype: Any, device: Any, attention: str
) -> dict[str, str]:
    return {
        "torch": str(torch.__version__),
        "diffusers": str(diffusers.__version__),
        "transformers": str(transformers.__version__),
        "weights_sha256": sha256(files)[:16],
        "tokenizer_sha256": tokenizers,
        "dtype": devices.dtype_name(dtype),
        "vae_dtype": devices.dtype_name(pipe.vae.dtype),
        "device": devices.device_name(device),
        "attention": attention,
    }


def check_index(
    folder: Path,
    pipeline: str = PIPELINE,
    models: Mapping[str, Any] = MODELS,
    example: str = "Stable Diffusion XL base 1.0",
) -> None:
    file = folder / "model_index.json"
    index = read_json(file)
    pipeline_name = index.get("_class_name")
    if pipeline_name != pipeline:
        raise broken(
            file,
            f"names the pipeline {pipeline_name!r}; this engine runs {pipeline}, such as {example}",
        )
    for part, kind in models.items():
        entry = index.get(part)
        class_name = entry[1] if isinstance(entry, list) and len(entry) == 2 else entry
        if class_name != kind.__name__:
            fault = f"names {class_name!r} as {part}, which should be {kind.__name__}"
            raise broken(file, f"{fault}; set model to a pipeline such as {example}")


def load_part(path: Path, kind: Any, dtype: Any, variant: str | None = None, **more: Any) -> Any:
    with _loading_part(path, kind.__name__):
        model, info = kind.from_pretrained(
            path,
            dtype=dtype,
            variant=variant,
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **more,
        )
    checkpoint.check_loaded(info, path)
    return model


@contextlib.contextmanager
def _loading_part(path: Path, name: str, file: str = "config.json") -> Iterator[None]:
    """Check that a folder has `file`; report errors of the `with` block as RunError with `name`."""
    if not (path / file).is_file():
        raise broken(path, f"has no {file}; copy this part of the pipeline here again")
    try:
        yield
    except MlperfError:
        raise
    # The libraries raise many types, all with good texts.
    except Exception as error:
        raise broken(path, f"{name} cannot be loaded: {text_of(error)}") from error


def load_scheduler(path: Path, kind: Any) -> Any:
    with _loading_part(path, "the scheduler", "scheduler_config.json"):
        return kind.from_pretrained(path, local_files_only=True)


def weights_of(path: Path, variant: str | None = None) -> list[Path]:
    files = [
        file for file in path.glob("*.safetensors") if (".fp16" in file.name) is (variant == "fp16")
    ]
    if not files:
        raise broken(
            path,
            f"has no {'' if variant is None else f'{variant} '}safetensors files; copy them here, "
            "or write the pipeline again with its method save_pretrained of diffusers",
        )
    return sorted(files)


def _own_dtype(files: list[Path]) -> Any:
    import safetensors

    file = next(file for file in files if file.parent.name == "text_encoder")
    with safetensors.safe_open(file, "pt") as opened:
        return opened.get_tensor(next(iter(opened.keys()))).dtype


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    level = diffusers_logging.get_verbosity()
    diffusers_logging.set_verbosity_error()
    try:
        yield
    finally:
        diffusers_logging.set_verbosity(level)


class DeepCache:
    """Count denoising steps; store the deep features of the last step at which all blocks ran."""

    def __init__(self, every: int) -> None:
        """Run the deep blocks at the first step and then at every `every`-th step."""
        self._every = every
        self._steps = 0
        # A boolean, since torch.compile would recompile for each step number.
        self.reuses = False
        self.features: Any = None

    def start(self) -> None:
        self._steps = 0
        self.features = None

    def step(self, *_: object) -> None:
        """Decide whether the deep blocks run; called before each call of the UNet."""
        self.reuses = self._steps % self._every != 0
        self._steps += 1


class _SkippableBlock(torch.nn.Module):
    """Run a block at full steps of DeepCache; at other steps skip it and return its input."""

    def __init__(self, block: Any, cache: DeepCache) -> None:
        super().__init__()
        self.block = block
        self._cache = cache
        self.has_cross_attention = getattr(block, "has_cross_attention", False)

    @property
    def resnets(self) -> Sequence[Any]:
        resnets: Sequence[Any] = self.block.resnets
        return resnets

    def forward(self, hidden_states: Any, *rest: Any, **named: Any) -> Any:
        if self._cache.reuses:
            return self._skipped(hidden_states)
        return self.block(hidden_states, *rest, **named)

    def _skipped(self, hidden_states: Any) -> Any:
        return hidden_states


class _DeepDown(_SkippableBlock):
    """Skip a UNet's down block at steps that reuse features; pass its input on instead."""

    def _skipped(self, hidden_states: Any) -> Any:
        layers = len(self.block.resnets) + len(self.block.downsamplers or ())
        return hidden_states, (hidden_states,) * layers


class _LastDeepUp(_SkippableBlock):
    """Store the last deep up block's output at full steps; return it at steps that skip blocks."""

    def forward(self, hidden_states: Any, *rest: Any, **named: Any) -> Any:
        if not self._cache.reuses:
            self._cache.features = super().forward(hidden_states, *rest, **named)
        return self._cache.features


def has_deep_blocks(unet: Any) -> bool:
    """Return whether a UNet has deep blocks, i.e. at least two resolution levels."""
    return len(unet.down_blocks) > 1 and len(unet.up_blocks) > 1


def install_deep_cache(unet: Any, every: int) -> DeepCache:
    """Make a UNet reuse deep features for `every` steps; call the result's `start` per image."""
    cache = DeepCache(every)
    outer = unet.down_blocks[0]
    for number, downsampler in enumerate(outer.downsamplers or ()):
        outer.downsamplers[number] = _SkippableBlock(downsampler, cache)
    for number in range(1, len(unet.down_blocks)):
        unet.down_blocks[number] = _DeepDown(unet.down_blocks[number], cache)
    if unet.mid_block is not None:
        unet.mid_block = _SkippableBlock(unet.mid_block, cache)
    last = len(unet.up_blocks) - 2
    for number in range(last):
        unet.up_blocks[number] = _SkippableBlock(unet.up_blocks[number], cache)
    unet.up_blocks[last] = _LastDeepUp(unet.up_blocks[last], cache)
    unet.register_forward_pre_hook(cache.step)
    return cache


def _cache(unet: Any, every: int) -> DeepCache | None:
    if every > 1 and not has_deep_blocks(unet):
        raise SuiteError(
            f"engine torch-diffusion: deepcache = {every} needs a UNet of two levels or more, "
            "which this is not; set deepcache = 1",
            option="deepcache",
        )
    return install_deep_cache(unet, every) if every > 1 else None


def _size(pipe: Any, options: DiffusionOptions) -> tuple[int, int]:
    factor, latents = pipe.vae_scale_factor, pipe.unet.config.sample_size
    high, wide = (latents, latents) if isinstance(latents, int) else latents
    size = (options.height or high * factor, options.width or wide * factor)
    for name, value in zip(("height", "width"), size, strict=True):
        if value % factor:
            raise SuiteError(
                f"engine torch-diffusion: {name} = {value} is not a multiple of {factor}, the "
                "pixels per latent of this model",
                option=name,
            )
    return size


class MediaBatches:
    """Keep loaded prompts and their latents, and make images or videos of them in batches.

    Only one thread may call `run`.

    Attributes:
        field: Name of the prompt in a sample, which may be text alone.
        source: Name of a data set with such samples.
        sizes: Options of the engine that decide the shape of latents.
    """

    field: ClassVar[str]
    source: ClassVar[str]
    sizes: ClassVar[str]

    def __init__(
        self, dataset: Dataset, options: MediaOptions, shape: tuple[int, ...], size: str
    ) -> None:
        """Store arguments; `shape` is that of latents, `size` describes the media in errors."""
        self._dataset, self._options = dataset, options
        self._shape, self._size = shape, size
        self._samples: dict[int, tuple[Any, Any]] = {}
        # Data sets share one array among all samples; it is kept once.
        self._shared: tuple[Any, Any] = (None, None)

    def load(self, indices: Sequence[int]) -> None:
        for index in indices:
            if index not in self._samples:
                value = self._dataset.input(index)
                fields = value if isinstance(value, dict) else {self.field: value}
                prompt = fields.get(self.field)
                if not isinstance(prompt, str):
                    problem = f'has no "{self.field}"; use the data set {self.source}'
                    raise refused_sample(index, problem)
                latents = self._latents(index, fields.get("latents"))
                self._samples[index] = self._prepare(prompt), latents

    def unload(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._samples.pop(index, None)

    def run(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        size = self._options.batch_size
        for start in range(0, len(ids), size):
            batch = slice(start, start + size)
            media = self._generate(indices[batch], self._options.steps)
            outputs = [medium.tobytes() for medium in media] if sink.wants_output else None
            sink.done(ids[batch], outputs)

    def _prepare(self, prompt: str) -> Any:
        return prompt

    def _generate(self, indices: Sequence[int], steps: int) -> Any:
        """Generate samples in `steps` denoising steps; return one uint8 array each."""
        raise NotImplementedError

    def _latents(self, index: int, data_set_latents: Any) -> Any:
        if data_set_latents is None:
            # They depend on the sample alone, not on its batch.
            drawing = np.random.default_rng((self._options.seed, index))
            return torch.from_numpy(drawing.standard_normal(self._shape, np.float32))
        if data_set_latents is not self._shared[0]:
            latents = torch.tensor(data_set_latents, dtype=torch.float32)
            if tuple(latents.shape) not in {self._shape, self._shape[1:]}:
                raise refused_sample(
                    index,
                    f"has latents of shape {tuple(latents.shape)}, but {self._size} start from "
                    f"{self._shape}; set the data set's latents, or the engine's {self.sizes}",
                )
            self._shared = (data_set_latents, latents.reshape(self._shape))
        return self._shared[1]


class Images(MediaBatches):
    """Keep loaded prompts as tokens for each text encoder, and make their images."""

    field, source, sizes = "caption", "coco_captions", "height and width"
    _options: DiffusionOptions

    def __init__(
        self, pipe: Any, dataset: Dataset, options: DiffusionOptions, stages: StageTimes
    ) -> None:
        self._height, self._width = _size(pipe, options)
        factor = pipe.vae_scale_factor
        sides = self._height // factor, self._width // factor
        size = f"images of {self._height} x {self._width} pixels"
        super().__init__(dataset, options, (1, pipe.unet.config.in_channels, *sides), size)
        self._pipe = pipe
        self._stages = stages
        self._dtype = pipe.text_encoder.dtype
        self._cache = _cache(pipe.unet, options.deepcache)
        if options.vae_slicing:
            pipe.vae.enable_slicing()
        self._device = pipe.unet.device
        tokenizers = pipe.tokenizer, pipe.tokenizer_2
        encoders = pipe.text_encoder, pipe.text_encoder_2
        self._texts = tuple(zip(tokenizers, encoders, strict=True))
        with torch.inference_mode():
            self._negative = self._encode([self._prepare(options.negative_prompt)])

    def describe(self) -> Mapping[str, str]:
        options = self._options
        return {
            "generation.steps": str(options.steps),
            "generation.guidance_scale": str(float(options.guidance_scale)),
            "generation.negative_prompt": options.negative_prompt,
            "generation.size": f"{self._height}x{self._width}",
            "generation.seed": str(options.seed),
            "compile": str(options.compile or "false"),
            "vae_slicing": str(options.vae_slicing).lower(),
            "deepcache": str(options.deepcache),
            "generation.scheduler": type(self._pipe.scheduler).__name__,
            "generation.prompt_tokens": f"{self.prompt_tokens}, longer prompts are cut",
        }

    @property
    def prompt_tokens(self) -> int:
        """Maximum tokens of a prompt; longer prompts are truncated, as in MLPerf's reference."""
        return min(
            int(min(tokenizer.model_max_length, encoder.config.max_position_embeddings))
            for tokenizer, encoder in self._texts
        )

    def warm_up(self, sizes: Sequence[int], steps: int) -> None:
        """Generate images in batches of these sizes, so that torch.compile compiles for them."""
        indices = list(self._samples)
        for size in sizes:
            self._generate([indices[n % len(indices)] for n in range(size)], steps)

    def _generate(self, indices: Sequence[int], steps: int) -> Any:
        prompts, latents = zip(*(self._samples[index] for index in indices), strict=True)
        if self._cache is not None:
            self._cache.start()
        advice = "lower batch_size, or set vae_slicing = true"
        watch = Stopwatch(self._stages, self._device)
        with devices.enough_memory(self._options.batch_size, advice), torch.inference_mode():
            embeds, pooled = self._encode(prompts)
            watch.end("text_encoder")
            negative, negative_pooled = self._negative
            generated = self._pipe(
                prompt_embeds=embeds,
                pooled_prompt_embeds=pooled,
                negative_prompt_embeds=negative.expand(len(prompts), -1, -1),
                negative_pooled_prompt_embeds=negative_pooled.expand(len(prompts), -1),
                guidance_scale=float(self._options.guidance_scale),
                num_inference_steps=steps,
                height=self._height,
                width=self._width,
                latents=torch.cat(latents).to(self._device, self._dtype),
                output_type="latent",
            ).images
            watch.end("unet")
            images = self._decode(generated, indices)
            watch.end("vae")
        return images.cpu().numpy()

    def _encode(self, tokens: Sequence[tuple[Any, ...]]) -> tuple[Any, Any]:
        """Return hidden states (prompts, tokens, features) and pooled ones (prompts, features)."""
        hidden, pooled = [], None
        for (_, encoder), ids in zip(self._texts, zip(*tokens, strict=True), strict=True):
            encoded = encoder(torch.cat(ids).to(self._device), output_hidden_states=True)
            hidden.append(encoded.hidden_states[-2])
            pooled = encoded[0]
        return torch.cat(hidden, dim=-1), pooled

    def _prepare(self, prompt: str) -> tuple[Any, ...]:
        """Return the tokens for each encoder, shape (1, tokens): padded or cut."""
        return tuple(
            tokenizer(
                self._convert(prompt, tokenizer),
                padding="max_length",
                max_length=self.prompt_tokens,
                truncation=True,
                return_tensors="pt",
            ).input_ids
            for tokenizer, _ in self._texts
        )

    def _convert(self, prompt: str, tokenizer: Any) -> str:
        """Expand a textual inversion's token into its several tokens, as the pipeline does."""
        added = tokenizer.added_tokens_encoder
        if not any(f"{token}_1" in added for token in added):
            return prompt
        return str(self._pipe.maybe_convert_prompt(prompt, tokenizer))

    def _decode(self, latents: Any, indices: Sequence[int]) -> Any:
        """Return images for latents, uint8, channels last; raise if values are not finite."""
        vae = self._pipe.vae
        latents = latents.to(vae.dtype)
        mean, std = (getattr(vae.config, f"latents_{name}", None) for name in ("mean", "std"))
        scaled = latents / vae.config.scaling_factor
        if mean is not None and std is not None:
            mean, std = (latents.new_tensor(v).view(1, -1, 1, 1) for v in (mean, std))
            scaled = latents * std / vae.config.scaling_factor + mean
        decoded = vae.decode(scaled, return_dict=False)[0]
        finite = decoded.flatten(1).isfinite().all(dim=1).tolist()
        if not all(finite):
            raise refused_sample(
                indices[finite.index(False)],
                f"has an image that is not finite, computed in {dtype_name(self._dtype)} and "
                f'decoded in {dtype_name(vae.dtype)}; it would be black. Set precision = "bf16" '
                'or "fp32", or vae_dtype = "fp32"',
            )
        pixels = (decoded * 0.5 + 0.5).clamp(0, 1).float() * 255
        return pixels.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
