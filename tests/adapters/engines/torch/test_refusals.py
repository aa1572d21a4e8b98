"""What every engine of torch refuses: options, folders without a model, libraries that lack."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_mlperf.core.errors import EnvironmentFault, SuiteError, UnavailableError
from tests.adapters.engines.torch import models, modules
from tests.refusals import unrefused


@dataclass(frozen=True)
class Kind:
    """An engine on a model that can be loaded."""

    name: str
    model: str | None
    open_engine: Callable[..., Any]

    def enter(self, **options: Any) -> None:
        """Load and unload."""
        with self.open_engine(**{"model": self.model, **options}):
            pass


@pytest.fixture(params=["torch", "torch-module", "torch-diffusion"])
def kind(request: pytest.FixtureRequest) -> Kind:
    name = request.param
    if name == "torch-module":
        return Kind(name, None, functools.partial(modules.open_engine, [], factory="linear"))
    folder = str(request.getfixturevalue("counting" if name == "torch" else "tiny"))
    if name == "torch":
        return Kind(name, folder, functools.partial(models.open_engine, Path(), [[5]]))
    from tests.adapters.engines.torch import pipelines

    texts = pipelines.Captions(["rain"])
    return Kind(name, folder, functools.partial(pipelines.open_engine, Path(), texts))


SHARED: list[tuple[str, Any, str]] = [
    ("precision", "fp4", "is not one of fp32, bf16, fp16, int8, int4, fp8"),
    ("device", "tpu", "is not cpu, cuda or cuda:N"),
    ("batch_size", 0, "is not a number of samples, at least 1"),
    ("threads", 0, "is not a number of threads, at least 1"),
]
SINGLE: dict[str, list[tuple[str, Any, str]]] = {
    "torch": [
        ("batching", "inflight", "is not one of auto, static, dynamic, continuous"),
        ("weights", "random", "is not one of checkpoint, dummy"),
        ("attention", "flash", "is not one of sdpa, eager, flash_attention_2, flash_attention_3"),
        ("device", "cuda:x", "is not cpu, cuda or cuda:N"),
        ("max_new_tokens", 0, "is not at least 1"),
        ("max_prompt_tokens", 0, "is not at least 1"),
        ("min_new_tokens", -1, "is not from 0 to max_new_tokens = 128"),
        ("min_new_tokens", 129, "is not from 0 to max_new_tokens = 128"),
        ("num_beams", 0, "is not a number of beams, at least 1"),
        ("kv_blocks", 0, "is not at least 1"),
        ("max_batch_tokens", 31, "is less than batch_size = 32"),
    ],
    "torch-module": [
        ("weights", "random", "is not one of checkpoint, dummy"),
        ("workers", -1, "is not a number of threads, or 0 for none"),
        ("batching", "sort", "is not one of stack, concat, pad"),
        ("output", -1, "is not a name, or a position counted from 0"),
        ("compile", "fast", "is not false or one of default, reduce-overhead, "),
        ("factory", "dlrm", "is neither one of dlrm-v2, dlrm-v3, "),
    ],
    "torch-diffusion": [
        ("steps", 0, "is not a number of steps, at least 1"),
        ("steps", 2.5, "is not a number of steps, at least 1"),
        ("guidance_scale", -1.0, "is not a number from 0 on"),
        ("guidance_scale", float("nan"), "is not a number from 0 on"),
        ("height", 0, "is not a number of pixels, at least 1"),
        ("seed", -1, "is not a number from 0 to 2147483647"),
        ("deepcache", 0, "is not a number of steps (1: off)"),
        ("vae_dtype", "int8", "is not one of auto, fp32, bf16, fp16"),
        ("attention", "xformers", "is not one of sdpa, eager"),
        ("compile", True, "is not false or one of default, max-autotune-no-cudagraphs"),
        ("compile", "reduce-overhead", "is not false or one of default, max-autotune-no-cu"),
    ],
}
COMBINED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "torch": [
        ({"batching": "continuous", "num_beams": 2}, "does not support beams, but num_beams = 2"),
        ({"attention": "eager"}, 'batching = "auto" cannot use both'),
        ({"model": None}, "no model; set workload.model"),
    ],
    "torch-module": [
        ({"arguments": {"model": "x"}}, "arguments has 'model'; set workload.model instead"),
        ({"arguments": {"weights": "x"}}, "'weights'; set the engine's option weights inst"),
        ({"factory": "question-answering"}, "no model; set workload.model"),
    ],
    "torch-diffusion": [
        ({"height": 33}, "height = 33 is not a multiple of 2"),
        ({"model": None}, "no model; set workload.model"),
    ],
}


def test_options_out_of_range_are_refused(kind: Kind) -> None:
    single = [
        ({name: value}, f"engine {kind.name}: {name} = {value!r} {message}")
        for name, value, message in [*SHARED, *SINGLE[kind.name]]
    ]
    rows = [*single, *COMBINED[kind.name]]
    assert unrefused(lambda options: kind.enter(**options), SuiteError, rows) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device_never_falls_back_to_the_cpu(kind: Kind) -> None:
    rows = [
        (device, f"engine {kind.name}: device = '{device}', but .* sees no CUDA device")
        for device in ("cuda", "cuda:1")
    ]
    assert unrefused(lambda device: kind.enter(device=device), EnvironmentFault, rows) == []


def test_a_model_that_is_not_here_is_unavailable(kind: Kind, tmp_path: Path) -> None:
    """The suite's case is then skipped, with the path it looked for."""
    file = "model_index" if kind.name == "torch-diffusion" else "config"
    with pytest.raises(UnavailableError, match=r"absent: this model (folder )?does not exist"):
        kind.enter(model=str(tmp_path / "absent"))
    options = {"factory": "dlrm-v2"} if kind.name == "torch-module" else {}
    with pytest.raises(UnavailableError, match=rf"this folder has no {file}\.json"):
        kind.enter(model=str(tmp_path), **options)


def test_a_missing_library_names_its_extra(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    extra, libraries = {
        "torch": ("lm", ["torch", "transformers"]),
        "torch-module": ("lm", ["torch"]),
        "torch-diffusion": ("diffusion", ["diffusers", "torch", "transformers"]),
    }[kind.name]
    for library in libraries:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, library, None)
            with pytest.raises(EnvironmentFault, match=re.escape(f"'pytest-mlperf[{extra}]'")):
                kind.enter()


def test_precisions_need_kernels_and_torchao(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao itself has no kernels for fp8 there."""
    kernels = (
        f"engine {kind.name}: precision 'fp8' needs a GPU of compute capability 8.9 or later for "
        "its kernels, but a CPU has none; use another precision on cpu"
    )
    extra = "which is not installed; try: pip install 'pytest-mlperf[quantization]'"
    rows = [
        (name, f"engine {kind.name}: precision {name!r} needs torchao, {extra}")
        for name in ("int8", "int4", "fp8")
    ]

    def enter(precision: str) -> None:
        kind.enter(precision=precision)

    assert unrefused(enter, EnvironmentFault, [("fp8", kernels)]) == []
    monkeypatch.setitem(sys.modules, "torchao", None)
    assert unrefused(enter, EnvironmentFault, rows) == []
