"""Execution providers of onnxruntime: names, order and options, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Self

from pytest_mlperf.core.errors import EnvironmentFault, SuiteError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

SHORT = {
    "cpu": CPU,
    "cuda": CUDA,
    "tensorrt": TENSORRT,
    "openvino": "OpenVINOExecutionProvider",
}
"""Names that a suite may use beside onnxruntime's own."""

TENSORRT_PRECISIONS = ("fp16", "bf16", "fp8", "int8", "int4")
"""What an option trt_NAME_enable may switch on, where this version of TensorRT has it."""

PATHS = ("_path", "_dir", "_file", "_prefix")
"""Ends of the names of options that say where something lies on this machine."""


@dataclass(frozen=True, kw_only=True)
class Providers:
    """What a suite asks for.

    Attributes:
        names: In onnxruntime's words, the preferred one first.
        options: By provider, as text, which is what onnxruntime takes.
        engine_cache: Folder for TensorRT's engines, or None.
    """

    names: Sequence[str]
    options: Mapping[str, Mapping[str, str]]
    engine_cache: Path | None

    @classmethod
    def of(cls, names: Any, options: Any, engine_cache: Any) -> Self:
        """Check the three options of a suite.

        Raises:
            SuiteError: One is wrong, or speaks of a provider that is not asked for.
        """
        given = [CPU] if names is None else names
        if (
            not isinstance(given, list | tuple)
            or not given
            or not all(isinstance(name, str) for name in given)
        ):
            raise _wrong(
                "providers", names, f'is not a list of execution providers, e.g. ["{CPU}"]'
            )
        full = [_full(name) for name in given]
        if len(set(full)) < len(full):
            raise _wrong("providers", names, "is not a list in which each provider is named once")
        if engine_cache is not None and not (isinstance(engine_cache, str) and engine_cache):
            raise _wrong("engine_cache", engine_cache, "is not the path of a folder")
        if engine_cache is not None and TENSORRT not in full:
            raise _wrong(
                "engine_cache",
                engine_cache,
                f"is for TensorRT, but providers are {', '.join(full)}; put {TENSORRT!r} first, or "
                "leave engine_cache out",
            )
        return cls(
            names=full,
            options=_read_options(options, full),
            engine_cache=None if engine_cache is None else Path(engine_cache),
        )

    @property
    def computes(self) -> frozenset[str]:
        """Precisions that TensorRT is allowed, whatever the type of the model's weights."""
        said = self.options.get(TENSORRT, {})
        return frozenset(
            name
            for name in TENSORRT_PRECISIONS
            if said.get(f"trt_{name}_enable", "").lower() in {"1", "true"}
        )

    def arguments(self, weights_sha256: str) -> list[tuple[str, dict[str, str]]]:
        """Return what onnxruntime takes, and make the folder for TensorRT's engines.

        Args:
            weights_sha256: Each model has a folder of its own, so that none is given the engines
                of an older model of the same name.

        Raises:
            EnvironmentFault: The folder cannot be made.
        """
        found = {name: dict(self.options.get(name, {})) for name in self.names}
        if self.engine_cache is not None:
            folder = self.engine_cache / weights_sha256[:16]
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EnvironmentFault(
                    f"engine onnxruntime: {folder}: this folder for TensorRT's engines cannot be "
                    f"made ({error.strerror}); set engine_cache to a folder that can be written"
                ) from error
            found[TENSORRT] = {
                "trt_engine_cache_enable": "True",
                "trt_engine_cache_path": str(folder),
                "trt_timing_cache_enable": "True",
                "trt_timing_cache_path": str(folder),
                **found[TENSORRT],
            }
        return list(found.items())

    def describe(self) -> Mapping[str, str]:
        """Return the providers and their options; of paths the last part, which names no user."""
        facts = {"providers": ",".join(self.names)}
        if self.options:
            shown = {
                name: {
                    key: PurePath(value).name if key.endswith(PATHS) else value
                    for key, value in options.items()
                }
                for name, options in self.options.items()
            }
            facts["provider_options"] = json.dumps(shown, sort_keys=True)
        if self.engine_cache is not None:
            facts["engine_cache"] = "yes"
        return facts

    def check(self, known: Sequence[str], installed: Sequence[str]) -> None:
        """Compare with what onnxruntime knows and what this build of it has.

        Raises:
            SuiteError: No onnxruntime has such a provider.
            EnvironmentFault: This one has not.
        """
        for name in self.names:
            if name in installed:
                continue
            if name not in known:
                raise _wrong(
                    "providers",
                    name,
                    f"is none that onnxruntime knows; installed: {', '.join(installed)}; short "
                    f"names: {', '.join(SHORT)}",
                )
            package = "onnxruntime-openvino" if "OpenVINO" in name else "onnxruntime-gpu"
            hint = f"pip install {package} in place of onnxruntime"
            if name not in SHORT.values():
                hint = f"a build of onnxruntime with {name}"
            raise EnvironmentFault(
                f"engine onnxruntime: provider {name!r} is not installed; installed: "
                f"{', '.join(installed)}. Try: {hint}"
            )


def _full(name: str) -> str:
    return SHORT.get(name.lower(), name)


def _read_options(given: Any, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return options by the providers' full names, as text."""
    if given is None:
        return {}
    example = "a table of tables, e.g. { cuda = { device_id = 0 } }"
    if not isinstance(given, Mapping):
        raise _wrong("provider_options", given, f"is not {example}")
    found: dict[str, dict[str, str]] = {}
    for short, options in given.items():
        name = _full(short)
        if name not in names or name in found:
            raise _wrong(
                "provider_options", short, f"is not once one of the providers {', '.join(names)}"
            )
        if not isinstance(options, Mapping):
            raise _wrong(f"provider_options.{short}", options, f"is not {example}")
        if name == CPU and options:
            raise _wrong(
                f"provider_options.{short}",
                dict(options),
                "would be ignored: this provider has no options; see threads and "
                "graph_optimization",
            )
        for key, value in options.items():
            if not isinstance(value, str | int | float):
                raise _wrong(
                    f"provider_options.{short}.{key}", value, "is not text, a number or a boolean"
                )
        found[name] = {key: str(value) for key, value in options.items()}
    return found


def _wrong(option: str, value: object, what: str) -> SuiteError:
    return SuiteError(f"engine onnxruntime: {option} = {value!r} {what}")
