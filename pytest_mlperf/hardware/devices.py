"""Define the forms of CUDA_VISIBLE_DEVICES that each library understands, by version.

CUDA accepts all forms, and so do libraries that do not read the variable. A worker gets whole GPUs
by number in PCI order, which every library reads; by UUID if numbers are uncertain. A MIG instance
has no number and is always named by UUID.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_mlperf.core.errors import RunError

VARIABLE = "CUDA_VISIBLE_DEVICES"

Form = Literal["number", "GPU UUID", "MIG UUID"]

UNRELEASED = (0, 2)
"""Builds between releases may be 0.0 or 0.1.dev; they are newer than any release."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceNameSupport:
    """Hold the GPU name forms that a library refuses from version `since` on, with error texts."""

    since: tuple[int, ...] = (0,)
    refused: Mapping[Form, str] = field(default_factory=dict)


_WHOLE = "measure a whole GPU on a machine without MIG, or use another engine for the instance"

TABLE: Mapping[str, tuple[DeviceNameSupport, ...]] = {
    # Platform.device_id_to_physical_device_id of vllm/platforms/interface.py.
    "vllm": (
        # 0.20.0 to 0.23.0: int() of each entry.
        DeviceNameSupport(
            refused={
                "GPU UUID": "accepts only numbers; install vLLM 0.24 or newer (numbers are set "
                "only if no GPU is divided by MIG and this user may query all GPUs)",
                "MIG UUID": f"accepts only numbers, and a MIG instance has none; {_WHOLE}",
            }
        ),
        # NvmlCudaPlatform.device_control_id_to_physical_device_id of vllm/platforms/cuda.py, 0.24.0
        # to 0.33.0: nvmlDeviceGetIndex of nvmlDeviceGetHandleByUUID. For an instance this is its
        # index within its GPU, for which nvmlDeviceGetHandleByIndex then finds another GPU or none.
        DeviceNameSupport(
            since=(0, 24),
            refused={
                "MIG UUID": f"takes the number of a MIG instance for the number of a GPU; {_WHOLE}",
            },
        ),
    ),
    # Left to CUDA: torch.cuda.set_device counts visible devices. llmapi/utils.py of the 1.2
    # candidates (cc4777e94dda) does not read the variable. On NVIDIA's main branch since pull
    # request 12985 (May 2026) it and the memory reports read numeric entries, and take the position
    # in the list of others, to bind threads to a NUMA node and to name processes.
    "tensorrt_llm": (DeviceNameSupport(),),
    # torch.cuda._parse_visible_devices, of 2.13: all three, in lists of one form.
    "torch": (DeviceNameSupport(),),
    # Nothing in ONNX Runtime reads the variable: cudaSetDevice counts what CUDA leaves visible.
    "onnxruntime": (DeviceNameSupport(),),
}
"""By import name; libraries without an entry leave the variable to CUDA."""


def rejected_names(library: str, release: str | None) -> DeviceNameSupport:
    """Return the GPU names that a library's release rejects; None is the newest release known."""
    rows = TABLE.get(library, (DeviceNameSupport(),))
    numbers = tuple(map(int, re.findall(r"\d+", release or "")[:2]))
    return rows[-1] if numbers < UNRELEASED else [row for row in rows if row.since <= numbers][-1]


def check_devices(libraries: Iterable[str], environ: Mapping[str, str]) -> None:
    """Raise RunError for GPU names that an installed library would reject or misread."""
    listed = environ.get(VARIABLE)
    if not listed:
        return
    names = [name.strip() for name in listed.split(",")]
    for library in libraries:
        release = _release(library)
        for name in names:
            if problem := rejected_names(library, release).refused.get(form_of(name)):
                raise RunError(
                    "engine",
                    f"{VARIABLE} has {name}, and {library} {release or '(version not known)'} "
                    f"{problem}",
                )


def form_of(name: str) -> Form:
    """Return the form of an entry of CUDA_VISIBLE_DEVICES: UUID, MIG UUID or number."""
    if name.startswith("MIG-"):
        return "MIG UUID"
    return "GPU UUID" if name.startswith("GPU-") else "number"


def _release(library: str) -> str | None:
    # Slow at a worker's start, and only needed if GPUs are selected.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(library)
    except PackageNotFoundError:
        return None
