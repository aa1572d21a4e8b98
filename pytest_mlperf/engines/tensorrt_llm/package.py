"""TensorRT-LLM itself: imported, asked for its versions, and made to load a model."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError
from pytest_mlperf.engines.files import one_line
from pytest_mlperf.engines.tensorrt_llm.arguments import make

OLDEST = (1, 2)
"""First version of TensorRT-LLM whose API is used here."""

ELSEWHERE = (
    "TensorRT-LLM pins other versions of torch and numpy than most environments have, so let the "
    'engine run in a Python or container of its own: python = "~/venvs/trtllm/bin/python" or '
    'command = ["docker", "run", ...] in the engine entry'
)

QUIET: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRTLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Nothing is fetched or sent while a run is measured; set where the environment says nothing."""


def import_package() -> Any:
    """Return the package, with its `llmapi`.

    Raises:
        EnvironmentFault: It is not here, cannot be imported, or is too old.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        package = importlib.import_module("tensorrt_llm")
        importlib.import_module("tensorrt_llm.llmapi")
    except ModuleNotFoundError as error:
        if error.name == "tensorrt_llm":
            raise not_installed() from error
        raise _broken_installation(error) from error
    # A library of CUDA, MPI or TensorRT that does not load.
    except (ImportError, OSError, RuntimeError) as error:
        raise _broken_installation(error) from error
    found = str(package.__version__)
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST:
        raise EnvironmentFault(
            f"engine tensorrt_llm needs TensorRT-LLM {'.'.join(map(str, OLDEST))} or newer; "
            f"{found} is installed"
        )
    return package


def load_model(package: Any, arguments: Mapping[str, Any]) -> Any:
    """Return a loaded LLM.

    Args:
        package: What `import_package` returned.
        arguments: What `llm_arguments` returned.

    Raises:
        SuiteError: It refuses an argument, before it loads anything.
        RunError: It cannot load the model.
    """
    version = package.__version__
    try:
        made = make(dict(arguments), package.llmapi)
    # Of a configuration: pydantic's own error is a ValueError.
    except (ValueError, TypeError, AttributeError) as error:
        raise _refused(version, error) from error
    try:
        return package.LLM(**made)
    # What loading fails with depends on where in TensorRT-LLM, CUDA or MPI it failed.
    except Exception as error:
        if "got invalid argument" in str(error) or type(error).__name__ == "ValidationError":
            raise _refused(version, error) from error
        raise RunError(
            "engine",
            f"{arguments['model']}: TensorRT-LLM {version} cannot load it: "
            f"{type(error).__name__}: {one_line(error)}",
        ) from error


def versions() -> Mapping[str, str]:
    """Return the versions of what generates, once it is imported."""
    names = ("tensorrt_llm", "torch", "transformers", "tensorrt")
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    return {name: str(version) for name, version in found.items() if version is not None}


def not_installed() -> EnvironmentFault:
    """Return the error that says where it can run instead."""
    return EnvironmentFault(
        f"engine tensorrt_llm needs tensorrt_llm, which is not installed; {ELSEWHERE}"
    )


def _broken_installation(error: BaseException) -> EnvironmentFault:
    return EnvironmentFault(
        "engine tensorrt_llm: tensorrt_llm is installed but cannot be imported: "
        f"{one_line(error)}; {ELSEWHERE}"
    )


def _refused(version: str, error: BaseException) -> SuiteError:
    return SuiteError(
        f"engine tensorrt_llm: TensorRT-LLM {version} refuses its arguments: {one_line(error)}"
    )
