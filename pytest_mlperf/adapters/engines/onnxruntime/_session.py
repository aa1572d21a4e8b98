"""Open a model with onnxruntime; no other module imports that library."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Self

from pytest_mlperf import EnvironmentFault, SuiteError
from pytest_mlperf.adapters.engines import import_all
from pytest_mlperf.adapters.engines.tasks.graph import Graph, Tensor
from pytest_mlperf.adapters.lazy import NDArray
from pytest_mlperf.extension import PrecisionName, answer_of

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORRT_PROVIDER = "TensorrtExecutionProvider"

PROVIDER_NAMES = {
    "cpu": CPU_PROVIDER,
    "cuda": CUDA_PROVIDER,
    "tensorrt": TENSORRT_PROVIDER,
    "openvino": "OpenVINOExecutionProvider",
}

TENSORRT_PRECISIONS: tuple[PrecisionName, ...] = ("fp16", "bf16", "fp8", "int8", "int4")
"""Precisions with an option trt_NAME_enable, if this version of TensorRT has it."""

PATHS = ("_path", "_dir", "_file", "_prefix")
"""Suffixes of options whose values are paths."""


@dataclass(frozen=True, kw_only=True)
class Providers:
    """Hold execution providers, most preferred first, by onnxruntime's names, and their options."""

    names: Sequence[str]
    options: Mapping[str, Mapping[str, str]]
    engine_cache: Path | None

    @classmethod
    def of(
        cls,
        names: Sequence[str] | None,
        options: Mapping[str, Mapping[str, Any]] | None,
        engine_cache: str | None,
    ) -> Self:
        requested = [CPU_PROVIDER] if names is None else names
        if not requested or isinstance(requested, str):
            fault = f'is not a list of execution providers, e.g. ["{CPU_PROVIDER}"]'
            raise wrong("providers", names, fault)
        full = [_full(name) for name in requested]
        if len(set(full)) < len(full):
            raise wrong("providers", names, "names a provider twice; name each provider once")
        if engine_cache == "":
            raise wrong("engine_cache", engine_cache, "is not the path of a folder")
        if engine_cache is not None and TENSORRT_PROVIDER not in full:
            fault = f"is for TensorRT, but providers are {', '.join(full)}; put "
            fault += f"{TENSORRT_PROVIDER!r} first, or leave engine_cache out"
            raise wrong("engine_cache", engine_cache, fault)
        return cls(
            names=full,
            options=_read_options(options or {}, full),
            engine_cache=None if engine_cache is None else Path(engine_cache),
        )

    @property
    def device(self) -> tuple[str, str] | None:
        """(Option, value) that selects the device; None unless it is a CPU or NVIDIA GPU."""
        first = self.names[0]
        if first == CPU_PROVIDER:
            return "providers", "cpu"
        if number := next(filter(None, (o.get("device_id") for o in self.options.values())), None):
            return "provider_options", f"cuda:{number}"
        return ("providers", "cuda") if first in {CUDA_PROVIDER, TENSORRT_PROVIDER} else None

    @property
    def computes(self) -> frozenset[str]:
        """Precisions in which provider options let TensorRT compute, whatever the weights' type."""
        options = self.options.get(TENSORRT_PROVIDER, {})
        return frozenset(
            name
            for name in TENSORRT_PRECISIONS
            if options.get(f"trt_{name}_enable", "").lower() in {"1", "true"}
        )

    def arguments(self, model_key: str) -> list[tuple[str, dict[str, str]]]:
        """Return (provider, options) for onnxruntime; create TensorRT's cache for `model_key`."""
        by_provider = {name: dict(self.options.get(name, {})) for name in self.names}
        if self.engine_cache is not None:
            folder = self.engine_cache / model_key  # no engines of an older model of this name
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EnvironmentFault(
                    f"engine onnxruntime: {folder}: this folder for TensorRT's engines cannot be "
                    f"made ({error.strerror}); set engine_cache to a folder that can be written",
                    option="engine_cache",
                ) from error
            by_provider[TENSORRT_PROVIDER] = {
                "trt_engine_cache_enable": "True",
                "trt_engine_cache_path": str(folder),
                "trt_timing_cache_enable": "True",
                "trt_timing_cache_path": str(folder),
                **by_provider[TENSORRT_PROVIDER],
            }
        return list(by_provider.items())

    def describe(self) -> Mapping[str, str]:
        """Return facts on providers and options; paths are shortened to their last part."""
        facts = {"providers": ",".join(self.names)}
        if self.options:
            by_provider = {
                name: {
                    key: PurePath(value).name if key.endswith(PATHS) else value
                    for key, value in options.items()
                }
                for name, options in self.options.items()
            }
            facts["provider_options"] = json.dumps(by_provider, sort_keys=True)
        if self.engine_cache is not None:
            facts["engine_cache"] = "yes"
        return facts

    def check(self, supported: Sequence[str], installed: Sequence[str]) -> None:
        for name in self.names:
            if name in installed:
                continue
            if name not in supported:
                raise wrong(
                    "providers",
                    name,
                    f"is unknown to onnxruntime; installed: {', '.join(installed)}; short names: "
                    f"{', '.join(PROVIDER_NAMES)}",
                )
            package = "onnxruntime-openvino" if "OpenVINO" in name else "onnxruntime-gpu"
            hint = f"pip install {package} in place of onnxruntime"
            if name not in PROVIDER_NAMES.values():
                hint = f"a build of onnxruntime with {name}"
            raise EnvironmentFault(
                f"engine onnxruntime: provider {name!r} is not installed; installed: "
                f"{', '.join(installed)}. Try: {hint}",
                option="providers",
            )


def _full(name: str) -> str:
    return PROVIDER_NAMES.get(name.lower(), name)


def _read_options(
    tables: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> dict[str, dict[str, str]]:
    by_provider: dict[str, dict[str, str]] = {}
    for short, options in tables.items():
        name = _full(short)
        if name in by_provider:
            fault = f"sets options of {name} a second time; write them in one table"
            raise wrong(f"provider_options.{short}", options, fault)
        if name not in names:
            fault = f"is for a provider that the option providers lacks ({', '.join(names)}); "
            fault += f"add {name} to providers, or remove this table"
            raise wrong(f"provider_options.{short}", options, fault)
        if name == CPU_PROVIDER and options:
            fault = "would have no effect, as this provider has no options; set the engine's "
            fault += "threads and graph_optimization"
            raise wrong(f"provider_options.{short}", dict(options), fault)
        for key, value in options.items():
            if not isinstance(value, str | int | float):
                raise wrong(
                    f"provider_options.{short}.{key}", value, "is not text, a number or a boolean"
                )
        by_provider[name] = {key: str(value) for key, value in options.items()}
    return by_provider


def wrong(option: str, value: object, fault: str, *, engine: str = "onnxruntime") -> SuiteError:
    """Return the SuiteError "OPTION = VALUE FAULT"; the option may be a table's: "table.key"."""
    text = f"engine {engine}: {option} = {value!r} {fault}"
    return SuiteError(text, option=option.partition(".")[0])


LDD_TIMEOUT_SECONDS, LDD_KILL_SECONDS = 60.0, 5.0


def missing_dependencies(library: Path) -> list[str]:
    """Return the loader's errors for dependencies of a library; [] on systems without ldd."""
    program = shutil.which("ldd")
    if program is None:
        return []
    command, seconds = [program, str(library)], LDD_TIMEOUT_SECONDS
    answer = answer_of(command, limit_s=seconds, killed_s=LDD_KILL_SECONDS)
    reasons = []
    for name in re.findall(rb"(?m)^\s*(\S+) => not found", answer[1] if answer else b""):
        try:
            ctypes.CDLL(name.decode())  # a wheel may have loaded it into this process
        except OSError as error:
            reasons.append(str(error))
    return reasons


OPTIMIZATION = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}

PLACEMENT = "session.record_ep_graph_assignment_info"
"""Setting that makes onnxruntime 1.24 or later record which provider runs an operator."""

PROVIDER_LIBRARIES = {
    TENSORRT_PROVIDER: "libonnxruntime_providers_tensorrt.so",
    CUDA_PROVIDER: "libonnxruntime_providers_cuda.so",
}


@dataclass(frozen=True, kw_only=True)
class OnnxGraph(Graph):
    session: Any

    def run(
        self, outputs: Sequence[str], feed: Mapping[str, NDArray[Any]]
    ) -> Sequence[NDArray[Any]]:
        try:
            arrays: Sequence[NDArray[Any]] = self.session.run(outputs, feed)
        # onnxruntime's exceptions share no base class of their own.
        except Exception as error:
            raise self.refuse(f"onnxruntime failed: {' '.join(str(error).split())}") from error
        return arrays


def load_library() -> Any:
    """Import and return onnxruntime; raise if the onnx package, which parses models, is missing."""
    return import_all("engine onnxruntime", "onnx", "onnxruntime", "onnx")


def require_providers(providers: Providers, *, engine: str) -> Any:
    """Return onnxruntime after checking that the providers can be loaded; load no model."""
    onnxruntime = load_library()
    providers.check(onnxruntime.get_all_providers(), onnxruntime.get_available_providers())
    requested = [name for name in PROVIDER_LIBRARIES if name in providers.names]
    preload = getattr(onnxruntime, "preload_dlls", None)
    if requested and preload is not None:  # libraries of NVIDIA's wheels, from onnxruntime 1.21 on
        with contextlib.redirect_stdout(sys.stderr):
            preload()
    if TENSORRT_PROVIDER in requested:  # NVIDIA's wheel loads TensorRT on import
        with contextlib.suppress(ImportError):
            importlib.import_module("tensorrt_libs")
    folder = Path(onnxruntime.__file__).parent / "capi"
    for name in requested:
        require_library(folder / PROVIDER_LIBRARIES[name], name, engine=engine)
    return onnxruntime


def require_library(path: Path, provider: str, *, engine: str) -> None:
    """Raise EnvironmentFault if libraries are missing that a provider's library needs."""
    # onnxruntime lists a provider even without NVIDIA's libraries.
    lacks = missing_dependencies(path) if path.is_file() else []
    if lacks:
        packages = "CUDA and TensorRT" if provider == TENSORRT_PROVIDER else "CUDA and cuDNN"
        raise EnvironmentFault(
            f"engine {engine}: provider {provider!r} cannot be loaded: {'; '.join(lacks)}. "
            f"Install the versions of {packages} that this onnxruntime-gpu was built for, and put "
            "the folders of their libraries on LD_LIBRARY_PATH; see docs/tensorrt.md",
            option="providers",
        )


def open_graph(
    path: Path,
    *,
    providers: Providers,
    model_key: str,
    threads: int,
    graph_optimization: str,
    engine: str,
) -> OnnxGraph:
    onnxruntime = require_providers(providers, engine=engine)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, OPTIMIZATION[graph_optimization]
    )
    if CPU_PROVIDER not in providers.names:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if providers.names != [CPU_PROVIDER]:
        options.add_session_config_entry(PLACEMENT, "1")
    arguments = providers.arguments(model_key)
    unopened = Graph(where=str(path), inputs=(), outputs=())
    try:
        # With a fallback, the next provider would replace one that fails, even in a run.
        session = onnxruntime.InferenceSession(
            path, options, providers=arguments, enable_fallback=0
        )
    # onnxruntime's exceptions share no base class of their own.
    except Exception as error:
        raise unopened.refuse(
            f"onnxruntime cannot run this model on {', '.join(providers.names)}: {error}"
        ) from error
    used = session.get_providers()
    for name in providers.names:
        if name not in used or used[0] != providers.names[0]:
            raise unopened.refuse(
                f"provider {name!r} was requested, but onnxruntime fell back to "
                f"{', '.join(used)}; see onnxruntime's messages in the log of the run"
            )
    return OnnxGraph(
        where=str(path),
        inputs=_tensors(session.get_inputs()),
        outputs=_tensors(session.get_outputs()),
        session=session,
    )


def placement(graph: OnnxGraph) -> Mapping[str, Counter[str]] | None:
    """Count operators by provider and type; None before onnxruntime 1.24, or if all run on CPU."""
    ask = getattr(graph.session, "get_provider_graph_assignment_info", None)
    by_provider: dict[str, Counter[str]] = {}
    try:
        for part in ask() if ask is not None else ():
            kinds = by_provider.setdefault(part.ep_name, Counter())
            kinds.update(node.op_type for node in part.get_nodes())
    # onnxruntime's exceptions share no base class of their own.
    except Exception:
        return None
    return by_provider or None


def _tensors(nodes: Sequence[Any]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name=node.name, type=node.type, shape=tuple(node.shape or ())) for node in nodes
    )
