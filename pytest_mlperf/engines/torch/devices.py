"""What torch engines share: the device, the types of weights, threads, memory."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import Any

import torch

from pytest_mlperf.core.errors import EnvironmentFault

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def find_device(name: str, *, engine: str = "torch") -> Any:
    """Return the torch device of this name.

    Raises:
        EnvironmentFault: It is not here.
    """
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise EnvironmentFault(
                f"engine {engine}: device = {name!r}, but torch {torch.__version__} sees no CUDA "
                f"device: {_why_not()}"
            )
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise EnvironmentFault(
                f"engine {engine}: device = {name!r}, but there are {torch.cuda.device_count()} "
                "CUDA devices, counted from 0"
            )
    return device


def _why_not() -> str:
    """Return why torch has no CUDA device, and what to do."""
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"it is a build without CUDA (in {sys.executable}); pip uninstall torch, then install "
            "the one for your CUDA by the command of https://pytorch.org/get-started/locally"
        )
    return "check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"


def device_name(device: Any) -> str:
    """Return the model of an accelerator, or "cpu"."""
    return str(torch.cuda.get_device_name(device) if device.type == "cuda" else device.type)


def dtype_name(dtype: Any) -> str:
    """Return a torch type's name without the module."""
    return str(dtype).removeprefix("torch.")


def use_threads(threads: int | None, undo: contextlib.ExitStack) -> str:
    """Set the threads of the CPU's operators until `undo`; return how many there are then."""
    if threads is not None:
        undo.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
    return str(torch.get_num_threads())


def release_memory() -> None:
    """Give memory that nothing refers to back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
