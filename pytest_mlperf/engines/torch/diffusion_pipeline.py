"""Stable Diffusion XL from a local folder: each part checked, complete, and never run as code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers.models.attention_processor import AttnProcessor
from diffusers.utils import is_accelerate_available
from diffusers.utils import logging as diffusers_logging

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.engines.files import broken, one_line, sha256, some
from pytest_mlperf.engines.model_folder import load_tokenizer, read_json
from pytest_mlperf.engines.torch import checkpoint, devices, quantising
from pytest_mlperf.engines.torch.folder import quiet_and_offline

ENGINE = "torch-diffusion"
PIPELINE = "StableDiffusionXLPipeline"

MODELS = {
    "text_encoder": transformers.CLIPTextModel,
    "text_encoder_2": transformers.CLIPTextModelWithProjection,
    "unet": diffusers.UNet2DConditionModel,
    "vae": diffusers.AutoencoderKL,
}
"""Parts that have weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A pipeline that is ready to run.

    Attributes:
        pipe: diffusers' StableDiffusionXLPipeline on its device.
        dtype: Of the UNet and the text encoders.
        facts: What belongs to the fingerprint.
    """

    pipe: Any
    dtype: Any
    facts: Mapping[str, str]


def open_pipeline(
    folder: Path,
    scheduler: Path,
    *,
    precision: str,
    vae_dtype: str,
    attention: str,
    device: Any,
    compile_mode: str | None,
) -> Loaded:
    """Load the parts of a pipeline one by one.

    Args:
        folder: Has model_index.json.
        scheduler: Folder with scheduler_config.json.
        precision: One of `options.PRECISIONS`.
        vae_dtype: A key of `devices.DTYPES`, or "auto".
        attention: "sdpa" or "eager".
        device: A torch device.
        compile_mode: Of torch.compile, for each block of the UNet; None leaves them as they are.

    Raises:
        EnvironmentFault: torchao is not installed and needed, or the device has no kernels for the
            precision.
        RunError: The folder holds another pipeline, or a part is broken or missing, or none of the
            UNet's layers can be quantised.
    """
    quantising.check(precision, device, engine=ENGINE)
    check_index(folder)
    variant = _variant(folder)
    files = [file for part in sorted(MODELS) for file in _weights(folder / part, variant)]
    own = _own_dtype(files) if precision in quantising.QUANTISED else None
    dtype = quantising.base_dtype(precision, own, device)
    with quiet_and_offline(), _quiet():
        parts = {name: _load(folder, name, dtype, variant, attention) for name in MODELS}
        tokenizers = {
            name: load_tokenizer("torch-diffusion", folder / name, "CLIPTokenizer")
            for name in ("tokenizer", "tokenizer_2")
        }
        pipe = diffusers.StableDiffusionXLPipeline(
            **parts,
            **{name: tokenizer for name, (tokenizer, _) in tokenizers.items()},
            scheduler=_scheduler(scheduler),
            add_watermarker=False,
        )
    pipe.set_progress_bar_config(disable=True)
    if vae_dtype != "auto":
        pipe.vae.to(devices.DTYPES[vae_dtype])
    elif dtype == torch.float16 and pipe.vae.config.force_upcast:
        # What the pipeline does before it decodes, at every call.
        pipe.vae.to(torch.float32)
    for part in parts.values():
        part.eval().to(device)
    facts = {
        "torch": str(torch.__version__),
        "diffusers": str(diffusers.__version__),
        "transformers": str(transformers.__version__),
        "weights_sha256": sha256(files)[:16],
        "tokenizer_sha256": "+".join(digest for _, digest in tokenizers.values()),
        "dtype": devices.dtype_name(dtype),
        "vae_dtype": devices.dtype_name(pipe.vae.dtype),
        "device": devices.device_name(device),
        "attention": attention,
    }
    if precision in quantising.QUANTISED:
        facts |= quantising.quantise(pipe.unet, precision, device=device, engine=ENGINE)
    _choose(pipe.unet, attention, compile_mode)
    return Loaded(pipe=pipe, dtype=dtype, facts=facts)


def _choose(unet: Any, attention: str, compile_mode: str | None) -> None:
    """Set how a UNet attends, and whether its blocks are compiled."""
    if attention == "eager":
        unet.set_attn_processor(AttnProcessor())
    if compile_mode is not None:
        for block in (*unet.down_blocks, unet.mid_block, *unet.up_blocks):
            block.compile(mode=compile_mode)


def check_index(folder: Path) -> None:
    """Refuse a folder that holds another pipeline.

    Raises:
        RunError: model_index.json cannot be read, names another class, or parts of other kinds.
    """
    file = folder / "model_index.json"
    index = read_json(file)
    named = index.get("_class_name")
    if named != PIPELINE:
        raise broken(
            file,
            f"names the pipeline {named!r}; this engine runs {PIPELINE}, such as Stable Diffusion "
            "XL base 1.0",
        )
    for part, kind in MODELS.items():
        entry = index.get(part)
        found = entry[1] if isinstance(entry, list) and len(entry) == 2 else entry
        if found != kind.__name__:
            raise broken(file, f"names {found!r} as {part}, which should be {kind.__name__}")


def _load(folder: Path, name: str, dtype: Any, variant: str | None, attention: str) -> Any:
    """Return a part with all its weights, on the CPU."""
    place, kind = folder / name, MODELS[name]
    if not (place / "config.json").is_file():
        raise broken(place, "has no config.json; copy this part of the pipeline here again")
    try:
        if name.startswith("text_encoder"):
            config = transformers.CLIPTextConfig.from_pretrained(place)
            given = {"dtype": dtype, "attention": attention, "device": torch.device("cpu")}
            return checkpoint.load(kind, place, config, **given, variant=variant)
        model, info = kind.from_pretrained(
            place,
            dtype=dtype,
            variant=variant,
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            low_cpu_mem_usage=is_accelerate_available(),
        )
    except MlperfError:
        raise
    # What the libraries raise depends on what is wrong; each kind says it well.
    except Exception as error:
        raise broken(place, f"{kind.__name__} cannot be loaded: {one_line(error)}") from error
    if info["missing_keys"]:
        raise broken(place, f"the checkpoint lacks {some(sorted(info['missing_keys']))}")
    if info["mismatched_keys"]:
        names = some(sorted(str(each[0]) for each in info["mismatched_keys"]))
        raise broken(place, f"weights do not fit config.json: {names}")
    return model


def _scheduler(place: Path) -> Any:
    """Return the Euler scheduler, which is MLPerf's whatever the pipeline names."""
    if not (place / "scheduler_config.json").is_file():
        raise broken(place, "has no scheduler_config.json; copy the pipeline's scheduler here")
    try:
        return diffusers.EulerDiscreteScheduler.from_pretrained(place, local_files_only=True)
    except Exception as error:  # as above
        raise broken(place, f"the scheduler cannot be made: {one_line(error)}") from error


def _variant(folder: Path) -> str | None:
    """Return "fp16" where the UNet's weights are there in that variant alone."""
    names = [file.name for file in (folder / "unet").glob("*.safetensors*")]
    return "fp16" if names and all(".fp16" in name for name in names) else None


def _weights(place: Path, variant: str | None) -> list[Path]:
    """Return the weights of a part that are loaded, by name."""
    found = [
        file
        for file in place.glob("*.safetensors")
        if (".fp16" in file.name) is (variant == "fp16")
    ]
    if not found:
        raise broken(
            place,
            f"has no {'' if variant is None else f'{variant} '}safetensors files; copy them here, "
            "or convert the pipeline once with its save_pretrained of diffusers",
        )
    return sorted(found)


def _own_dtype(files: list[Path]) -> Any:
    """Return the type of a checkpoint's weights: that of the UNet's first."""
    import safetensors

    file = next(file for file in files if file.parent.name == "unet")
    with safetensors.safe_open(file, "pt") as opened:
        return opened.get_tensor(next(iter(opened.keys()))).dtype


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep diffusers from advice on how it could load faster."""
    level = diffusers_logging.get_verbosity()
    diffusers_logging.set_verbosity_error()
    try:
        yield
    finally:
        diffusers_logging.set_verbosity(level)
