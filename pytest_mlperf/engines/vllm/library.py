"""vLLM itself: found, checked against what is asked of it, and kept from the network."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, RunError
from pytest_mlperf.engines.files import one_line
from pytest_mlperf.engines.vllm.arguments import IMPORTED, OLDEST, SETTINGS, UUIDS
from pytest_mlperf.engines.vllm.causes import Log
from pytest_mlperf.engines.vllm.options import refused

ENVIRONMENT: Mapping[str, str] = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    # This process has threads, and a forked one could wait for ever for a lock of theirs.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Variables that are set for vLLM and its processes, unless they are set already."""

DEVICES = "CUDA_VISIBLE_DEVICES"

MIG = (
    "this is a MIG instance, whose number within its GPU vLLM takes for the number of a GPU when "
    "it asks NVML: it computes on the instance, and may read another GPU's name and memory, or "
    "fail where there is no GPU of that number"
)

BESIDE = ("torch", "transformers", "flashinfer-python", "triton")
"""Packages whose versions decide speed too."""

WAYS = (
    "vLLM pins its own torch and transformers, so give it an environment of its own "
    "(python -m venv vllm; vllm/bin/pip install vllm mlcommons-loadgen) and name that in the "
    'engine entry: python = "vllm/bin/python"; or measure its server: use = "openai" with '
    'serve = ["vllm", "serve", …]'
)


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """Set vLLM's variables, and put things back afterwards."""
    given = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)


def find_version() -> str:
    """Import vLLM and return its version.

    Raises:
        EnvironmentFault: It is not installed, cannot be imported, or is too old.
    """
    try:
        found = str(importlib.import_module("vllm").__version__)
    except ModuleNotFoundError as error:
        if error.name == "vllm":
            raise EnvironmentFault(
                f"engine vllm needs vllm, which is not installed; {WAYS}"
            ) from error
        raise _broken(error) from error
    # Its own checks of the machine, and torch's of other packages, raise all kinds.
    except Exception as error:
        raise _broken(error) from error
    if _is_before(OLDEST, found):
        oldest = ".".join(map(str, OLDEST))
        raise EnvironmentFault(
            f"engine vllm needs vLLM {oldest} or newer, and this is {found}; "
            f"try: pip install 'vllm>={oldest}'"
        )
    return found


def check_devices(found: str) -> None:
    """Refuse names of GPUs that this vLLM cannot read; say what it makes of a MIG instance's.

    Raises:
        EnvironmentFault: It takes numbers alone.
    """
    names = [name.strip() for name in os.environ.get(DEVICES, "").split(",")]
    named = next((name for name in names if name.startswith(("GPU-", "MIG-"))), None)
    if named is None:
        return
    if _is_before(UUIDS, found):
        raise EnvironmentFault(
            f"engine vllm: {DEVICES} has {named.partition('-')[0]}-…, a UUID, and vLLM {found} "
            "takes numbers alone; GPUs go by number where none of the machine is divided by MIG "
            f"and all may be asked; else use vLLM {'.'.join(map(str, UUIDS))} or newer"
        )
    if named.startswith("MIG-"):
        print(f"engine vllm: {MIG}", file=sys.stderr, flush=True)


def find(name: str) -> Any:
    """Return what `IMPORTED` names.

    Raises:
        EnvironmentFault: This vLLM does not have it, or cannot import it.
    """
    try:
        return getattr(importlib.import_module(IMPORTED[name]), name)
    except Exception as error:
        raise _broken(error) from error


def check_names(arguments: Iterable[str], known: Any, found: str) -> None:
    """Refuse engine arguments that this vLLM does not have.

    Args:
        arguments: Their names.
        known: Its class of engine arguments, a dataclass.
        found: Its version.

    Raises:
        SuiteError: It does not have one.
    """
    names = [each.name for each in dataclasses.fields(known)]
    for name in arguments:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise refused(f"vLLM {found} has no engine argument {name}{meant}")


@contextlib.contextmanager
def loading(found: str, log: Log) -> Iterator[None]:
    """Say that it was vLLM that could not load the model, and why.

    Raises:
        RunError: It could not.
    """
    try:
        yield
    except MlperfError:
        raise
    # Wrong values, a full GPU and a dead process of its own raise what they like.
    except Exception as error:
        raise RunError(
            "engine",
            f"vLLM {found} cannot load the model: {type(error).__name__}: {one_line(error)}"
            f"{log.cause()}{_about_mig()}",
        ) from error


def describe(found: str, settled: Any) -> dict[str, str]:
    """Return versions, what vLLM settled on, and the variables that it reads.

    Args:
        found: Its version.
        settled: Its `vllm_config`, once the model is loaded.
    """
    facts = {"vllm": found}
    for package in BESIDE:
        with contextlib.suppress(PackageNotFoundError):
            facts[package] = version(package)
    for name, path in SETTINGS.items():
        value = settled
        for attribute in path.split("."):
            value = getattr(value, attribute, None)
        if value is not None:
            facts[f"settled.{name}"] = str(value)
    return facts | _variables()


def _variables() -> dict[str, str]:
    """Return VLLM_* variables, without secrets, folders and addresses."""
    return {
        f"environment.{name}": value
        for name, value in sorted(os.environ.items())
        if name.startswith("VLLM_")
        and name not in ENVIRONMENT
        and not re.search("KEY|TOKEN|SECRET|HOST|PORT", name)
        and "/" not in value
    }


def _is_before(oldest: tuple[int, int], found: str) -> bool:
    """Tell whether a version is older; a build between releases may say 0.0 or 0.1.dev."""
    return (0, 2) <= tuple(map(int, re.findall(r"\d+", found)[:2])) < oldest


def _about_mig() -> str:
    return f"; {MIG}" if "MIG-" in os.environ.get(DEVICES, "") else ""


def _broken(error: Exception) -> EnvironmentFault:
    return EnvironmentFault(
        f"engine vllm: vLLM cannot be imported here: {type(error).__name__}: {one_line(error)}"
    )
