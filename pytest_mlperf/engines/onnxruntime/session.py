"""Open a model with onnxruntime: the one module that knows the library."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.engines.onnxruntime.needed import missing
from pytest_mlperf.engines.onnxruntime.providers import CPU, CUDA, TENSORRT, Providers
from pytest_mlperf.engines.tasks.graph import Graph, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPTIMIZATION = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
"""What a suite may say, and its name in onnxruntime's GraphOptimizationLevel."""

PLACEMENT = "session.record_ep_graph_assignment_info"
"""Lets onnxruntime, from 1.24 on, remember which provider runs which operator."""

LIBRARIES = {
    TENSORRT: "libonnxruntime_providers_tensorrt.so",
    CUDA: "libonnxruntime_providers_cuda.so",
}
"""Providers of NVIDIA's, and their libraries in onnxruntime's folder `capi`."""


@dataclass(frozen=True, kw_only=True)
class OnnxGraph(Graph):
    """A model as onnxruntime has loaded it.

    Attributes:
        session: The InferenceSession.
    """

    session: Any

    def run(
        self, outputs: Sequence[str], feed: Mapping[str, NDArray[Any]]
    ) -> Sequence[NDArray[Any]]:
        """Return these outputs for a batch of inputs by name.

        Raises:
            RunError: onnxruntime gave up, e.g. at a number that the model cannot look up.
        """
        try:
            found: Sequence[NDArray[Any]] = self.session.run(outputs, feed)
        # onnxruntime's exceptions share no base class of their own.
        except Exception as error:
            raise self.refuse(f"onnxruntime gave up: {' '.join(str(error).split())}") from error
        return found


def load_library() -> Any:
    """Return the library.

    Raises:
        EnvironmentFault: It is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise EnvironmentFault(
            "engine onnxruntime needs a library that is not installed; "
            "try: pip install 'pytest-mlperf[onnx]'"
        ) from error
    return onnxruntime


def require_providers(providers: Providers, *, engine: str) -> Any:
    """Return onnxruntime, once it can load the providers; no model is loaded.

    Args:
        providers: What a suite asks for.
        engine: For messages.

    Raises:
        SuiteError: There is no such provider.
        EnvironmentFault: onnxruntime, a provider, or a library that it needs is not here.
    """
    onnxruntime = load_library()
    providers.check(onnxruntime.get_all_providers(), onnxruntime.get_available_providers())
    asked = [name for name in LIBRARIES if name in providers.names]
    preload = getattr(onnxruntime, "preload_dlls", None)
    if asked and preload is not None:  # what NVIDIA's wheels brought, from onnxruntime 1.21 on
        with contextlib.redirect_stdout(sys.stderr):
            preload()
    folder = Path(onnxruntime.__file__).parent / "capi"
    for name in asked:
        require_library(folder / LIBRARIES[name], name, engine=engine)
    return onnxruntime


def require_library(path: Path, provider: str, *, engine: str) -> None:
    """Ask the loader for what a provider's library needs, so that all it lacks is named.

    onnxruntime has a provider in its list even where NVIDIA's libraries are not there.

    Args:
        path: The provider's library; a build of onnxruntime may have it elsewhere.
        provider: Its name in onnxruntime.
        engine: For messages.

    Raises:
        EnvironmentFault: The loader finds a library not, or cannot load it.
    """
    lacks = missing(path) if path.is_file() else []
    if lacks:
        what = "CUDA and TensorRT" if provider == TENSORRT else "CUDA and cuDNN"
        raise EnvironmentFault(
            f"engine {engine}: provider {provider!r} cannot be loaded: {'; '.join(lacks)}. "
            f"Install the versions of {what} that this onnxruntime-gpu was built for, and put the "
            "folders of their libraries on LD_LIBRARY_PATH; see docs/tensorrt.md"
        )


def open_graph(
    path: Path,
    *,
    providers: Providers,
    weights_sha256: str,
    threads: int,
    graph_optimization: str,
    engine: str,
) -> OnnxGraph:
    """Load a model.

    Args:
        path: The ONNX file.
        providers: Where it is to run.
        weights_sha256: Hex SHA-256 of the file.
        threads: Threads of the CPU's operators.
        graph_optimization: A key of `OPTIMIZATION`.
        engine: For messages.

    Raises:
        SuiteError: There is no such provider.
        EnvironmentFault: A provider is not installed, or cannot be loaded.
        RunError: onnxruntime refuses the model, or runs it elsewhere.
    """
    onnxruntime = require_providers(providers, engine=engine)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, OPTIMIZATION[graph_optimization]
    )
    if CPU not in providers.names:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if providers.names != [CPU]:
        options.add_session_config_entry(PLACEMENT, "1")
    asked = providers.arguments(weights_sha256)
    unopened = Graph(where=str(path), inputs=(), outputs=())
    try:
        # Else a provider that fails, now or in the middle of a run, is replaced by the next.
        session = onnxruntime.InferenceSession(path, options, providers=asked, enable_fallback=0)
    # onnxruntime's exceptions share no base class of their own.
    except Exception as error:
        raise unopened.refuse(
            f"onnxruntime cannot run this model on {', '.join(providers.names)}: {error}"
        ) from error
    used = session.get_providers()
    for name in providers.names:
        if name not in used or used[0] != providers.names[0]:
            raise unopened.refuse(
                f"asked for provider {name!r}, but onnxruntime fell back to {', '.join(used)}; "
                "see its log for the reason"
            )
    return OnnxGraph(
        where=str(path),
        inputs=_tensors(session.get_inputs()),
        outputs=_tensors(session.get_outputs()),
        session=session,
    )


def placement(graph: OnnxGraph) -> Mapping[str, Counter[str]] | None:
    """Return how often there is each operator, by the provider that runs it.

    Returns:
        None where onnxruntime does not tell: before 1.24, and for a model on the CPU alone.
    """
    ask = getattr(graph.session, "get_provider_graph_assignment_info", None)
    found: dict[str, Counter[str]] = {}
    try:
        for part in ask() if ask is not None else ():
            kinds = found.setdefault(part.ep_name, Counter())
            kinds.update(node.op_type for node in part.get_nodes())
    # onnxruntime's exceptions share no base class of their own.
    except Exception:
        return None
    return found or None


def _tensors(nodes: Sequence[Any]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name=node.name, type=node.type, shape=tuple(node.shape or ())) for node in nodes
    )
