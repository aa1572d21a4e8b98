"""Test the TensorRT options of a suite, how they are passed on, and when they are refused.

No test needs a GPU: options are checked before anything is loaded, and shapes, placement and
calibration by functions of their own.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.engines.onnxruntime import OnnxRuntimeEngine, read
from pytest_mlperf.adapters.engines.onnxruntime._session import (
    CPU_PROVIDER,
    TENSORRT_PROVIDER,
    Providers,
    open_graph,
    placement,
)
from pytest_mlperf.adapters.engines.onnxruntime.tensorrt import (
    FURTHER_OPTIONS,
    TensorRtEngine,
    TensorRtPlan,
    placement_text,
)
from pytest_mlperf.adapters.engines.tasks.graph import Tensor
from pytest_mlperf.core.declaration import declaration_of
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from pytest_mlperf.testing import check_engine
from tests.adapters.engines.onnxruntime.models import segmenter, volume
from tests.adapters.engines.onnxruntime.recorder import Listed
from tests.refusals import unrefused

CUDA = "CUDAExecutionProvider"

absent = pytest.mark.skipif(
    TENSORRT_PROVIDER in onnxruntime.get_available_providers(),
    reason="this build of onnxruntime has TensorRT",
)
present = pytest.mark.skipif(
    TENSORRT_PROVIDER not in onnxruntime.get_available_providers(),
    reason="this build of onnxruntime has no TensorRT",
)

PROFILE: dict[str, Any] = {
    "min_shapes": {"image": [1, 3, 8, 8]},
    "opt_shapes": {"image": [4, 3, 16, 8]},
    "max_shapes": {"image": [8, 3, 32, 8]},
}

EVERYTHING: dict[str, Any] = {
    **PROFILE,
    "precision": "int8",
    "beside": ["fp16"],
    "device": 1,
    "optimization_level": 4,
    "workspace_mib": 2048,
    "native_calibration": True,
    "cuda_graph": True,
    "provider_options": {"trt_sparsity_enable": True, "trt_auxiliary_streams": 2},
}


TASK = {"task": "tensor", "batch_size": 1}
IMAGES = [volume(index, shape=(4, 4, 4)) for index in range(6)]


def fixed(folder: Path) -> str:
    """Return a small model for one of these images at a time."""
    return segmenter(folder, batch=1, window=(4, 4, 4))


def engine(folder: Path, **options: Any) -> TensorRtEngine:
    """Return an engine for a small model, not entered."""
    arguments = {"dataset": Listed([]), "model": segmenter(folder), "precision": "fp32", **options}
    return TensorRtEngine(**arguments)


def plan(**options: Any) -> TensorRtPlan:
    """Return options without an engine."""
    return TensorRtPlan(**{"precision": "fp32", **options})


def test_options_are_passed_on_in_the_provider_s_words(tmp_path: Path) -> None:
    table = tmp_path / "ranges.flatbuffers"

    provider_options = plan(**EVERYTHING, calibration_table=str(table)).for_provider()

    assert provider_options == {
        "device_id": "1",
        "trt_int8_enable": "True",
        "trt_fp16_enable": "True",
        "trt_builder_optimization_level": "4",
        "trt_max_workspace_size": str(2 << 30),
        "trt_profile_min_shapes": "image:1x3x8x8",
        "trt_profile_opt_shapes": "image:4x3x16x8",
        "trt_profile_max_shapes": "image:8x3x32x8",
        "trt_int8_calibration_table_name": str(table),
        "trt_int8_use_native_calibration_table": "True",
        "trt_cuda_graph_enable": "True",
        "trt_sparsity_enable": "True",
        "trt_auxiliary_streams": "2",
    }
    for precision in ("fp32", "fp16", "bf16", "int8"):
        flags = set() if precision == "fp32" else {f"trt_{precision}_enable"}
        assert set(plan(precision=precision).for_provider()) == {"device_id", *flags}


SHAPES = st.dictionaries(
    st.sampled_from(["ids", "mask", "a.b:0"]),
    st.lists(st.integers(1, 99), min_size=1, max_size=4),
    min_size=1,
)


@given(SHAPES)
def test_shapes_are_written_as_the_provider_reads_them(shapes: dict[str, list[int]]) -> None:
    """ "name:1x2x3,name:..."; what stands behind the last colon of a part are the lengths."""
    options = plan(min_shapes=shapes, opt_shapes=shapes, max_shapes=shapes)

    options.check()
    text = options.for_provider()["trt_profile_opt_shapes"]

    parts = [part.rpartition(":") for part in text.split(",")]
    assert {name: [int(n) for n in lengths.split("x")] for name, _, lengths in parts} == shapes


def test_engines_are_kept_by_options_and_measurements_of_kernels_beside_them(
    tmp_path: Path,
) -> None:
    """The provider's own names for engines do not tell options from each other."""
    cache = {"engine_cache": str(tmp_path / "engines")}
    forms: list[dict[str, Any]] = [{}, {"precision": "fp16"}, {"optimization_level": 5}, PROFILE]
    folders = [plan(**cache, **form).cache_folder() for form in forms]
    assert len(set(folders)) == 4
    assert plan(**cache).cache_folder() == folders[0]
    assert all(Path(str(folder)).parent == tmp_path / "engines" for folder in folders)
    assert plan().cache_folder() is None
    for timing in (True, False):
        opened = engine(tmp_path, **cache, timing_cache=timing)
        ((name, options),) = opened._providers.arguments("a" * 64)
        assert name == TENSORRT_PROVIDER
        assert options["trt_engine_cache_enable"] == "True"
        assert options["trt_timing_cache_enable"] == str(timing)
        assert options["trt_engine_cache_path"] == options["trt_timing_cache_path"]
        assert Path(options["trt_engine_cache_path"]).is_dir()


def test_other_providers_are_asked_only_if_they_are_allowed(tmp_path: Path) -> None:
    allowed = {
        "none": [TENSORRT_PROVIDER],
        "cuda": [TENSORRT_PROVIDER, CUDA],
        "cpu": [TENSORRT_PROVIDER, CUDA, CPU_PROVIDER],
    }
    for fallback, names in allowed.items():
        opened = engine(tmp_path, fallback=fallback, device=2)
        arguments = dict(opened._providers.arguments("0" * 64))
        assert list(arguments) == names
        assert {o["device_id"] for n, o in arguments.items() if n != CPU_PROVIDER} == {"2"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"precision": "fp8"}, "precision = 'fp8' is not one of fp32, fp16, bf16, int8"),
    ({"beside": ["fp16"]}, "beside = ['fp16'] is not [], as precision = 'fp32' req"),
    ({"precision": "int8", "beside": ["fp8"]}, "beside = ['fp8'] is not a list of fp16, bf16, "),
    ({"fallback": "yes"}, "fallback = 'yes' is not one of none, cuda, cpu"),
    ({"device": -1}, "device = -1 is not the number of a GPU"),
    ({"optimization_level": 6}, "optimization_level = 6 is not a level of TensorRT's builder"),
    ({"workspace_mib": 0}, "workspace_mib = 0 is not a size in MiB"),
    ({"native_calibration": True}, "native_calibration = True needs calibration_table, which"),
    ({"calibration_table": "t"}, "calibration_table = 't' is only for precision"),
    ({"cuda_graph": True, "workers": 2}, "cuda_graph = true, but workers = 2"),
    ({"provider_options": {"trt_fast": 1}}, "provider_options.trt_fast = 1 cannot be set here"),
    (
        {"provider_options": {"trt_fp16_enable": 1}},
        "provider_options.trt_fp16_enable = 1 cannot be set here (unknown, or set by another",
    ),
    ({"min_shapes": {"image": [1]}}, "min_shapes alone cannot be set; set all of"),
    (
        {**PROFILE, "opt_shapes": {"other": [1]}},
        "opt_shapes = ['other'] must name the same inputs as",
    ),
    (
        {**PROFILE, "max_shapes": {"image": [1, 0]}},
        "max_shapes.image = [1, 0] is not a list of lengt",
    ),
    (
        {**PROFILE, "max_shapes": {"image": [2, 3, 32, 8]}},
        "opt_shapes.image = [4, 3, 16, 8] does not lie between min_shapes, [1, 3, 8, 8], and",
    ),
    (
        {**PROFILE, "opt_shapes": {"image": [4, 3]}},
        "opt_shapes.image = [4, 3] does not lie between",
    ),
]


def test_contradictory_options_are_refused(tmp_path: Path) -> None:
    assert unrefused(lambda options: engine(tmp_path, **options), SuiteError, REFUSED) == []
    with pytest.raises(SuiteError, match=r"^engine tensorrt: precision = "):
        engine(tmp_path, precision="fp8")
    table = str(tmp_path / "missing.flatbuffers")
    with pytest.raises(UnavailableError, match=re.escape(f"{table}: this calibration table does")):
        engine(tmp_path, precision="int8", calibration_table=table)
    opened = engine(tmp_path, precision="int8")
    with pytest.raises(RunError, match='precision is "int8", but the file holds no int8 operators'):
        opened._check_file(read(opened._model))


IMAGE = Tensor(name="image", type="tensor(float)", shape=("batch", 3, "height", 8))
FIXED = Tensor(name="mask", type="tensor(float)", shape=(1, 8))
BATCHED = Tensor(name="image", type="tensor(float)", shape=(None, 3, 8, 8))


LACKING: list[tuple[Tensor, dict[str, Any], int, str]] = [
    (FIXED, {}, 1, ""),
    (BATCHED, {}, 1, ""),
    (IMAGE, PROFILE, 8, ""),
    (
        BATCHED,
        {},
        4,
        "(None, 3, 8, 8), which varies, so TensorRT would build engines in the middle",
    ),
    (
        BATCHED,
        {},
        4,
        "opt_shapes = { image = [4, 3, 8, 8] }, max_shapes = { image = [4, 3, 8, 8] }",
    ),
    (IMAGE, {}, 1, "min_shapes = { image = [1, 3, …, 8] }"),
    (IMAGE, PROFILE, 16, "batches have 1 to 16 samples (batch_size), but min_shapes and"),
    (BATCHED, PROFILE, 8, "has shape (None, 3, 8, 8), but opt_shapes has [4, 3, 16, 8]"),
    (FIXED, PROFILE, 1, "it has no input 'image', which min_shapes names"),
]


def test_no_engine_is_built_in_the_middle_of_a_run() -> None:
    for tensor, options, batch_size, lacks in LACKING:
        inputs = [tensor, FIXED] if tensor is IMAGE else [tensor]
        missing = plan(**options).lacks(inputs, batch_size)
        assert lacks in missing
        assert bool(lacks) == bool(missing)


def test_the_placement_of_operators_is_described() -> None:
    mixed = {CUDA: Counter(Shape=1, NonMaxSuppression=2), TENSORRT_PROVIDER: Counter(Conv=118)}

    assert placement_text(mixed) == f"{TENSORRT_PROVIDER} 118, {CUDA} 3 (NonMaxSuppression, Shape)"
    assert placement_text(None) == "not reported by this onnxruntime"
    with pytest.raises(RunError, match=rf"no operator .* runs on TensorRT .3 on {CUDA}.; see"):
        placement_text({CUDA: mixed[CUDA]})


def test_onnxruntime_reports_the_provider_of_each_node(tmp_path: Path) -> None:
    """The library itself, for a provider that runs nothing itself and the CPU, which does."""
    first = "AzureExecutionProvider"
    if first not in onnxruntime.get_available_providers():
        pytest.skip(f"this build of onnxruntime has no {first}, which runs no operators itself")
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        pytest.skip("onnxruntime before 1.24 does not tell")
    arguments: dict[str, Any] = {"model_key": "0" * 16, "threads": 1}
    arguments |= {"graph_optimization": "all", "engine": "onnxruntime"}
    path = Path(segmenter(tmp_path))

    both = open_graph(path, providers=Providers.of([first, "cpu"], None, None), **arguments)
    alone = open_graph(path, providers=Providers.of(None, None, None), **arguments)

    assert placement(both) == {CPU_PROVIDER: Counter(Conv=1)}
    assert placement(alone) is None


@pytest.mark.process
@absent
def test_a_machine_without_the_provider_names_its_package(tmp_path: Path) -> None:
    """In one sentence, before a model is read; `doctor` and the check of the contract too."""
    sentence = (
        f"engine onnxruntime: provider {TENSORRT_PROVIDER!r} is not installed; installed: "
        f"{', '.join(onnxruntime.get_available_providers())}. Try: pip install onnxruntime-gpu in "
        "place of onnxruntime"
    )
    opened, images = engine(tmp_path, precision="int8"), Listed(IMAGES)
    checked = partial(check_engine, TensorRtEngine, images, model=fixed(tmp_path), options=TASK)
    for ask in (opened.require, opened.__enter__, checked):
        with pytest.raises(EnvironmentFault) as caught:
            ask()
        assert str(caught.value) == sentence


@pytest.mark.process
@present
def test_the_engine_keeps_the_contract(tmp_path: Path) -> None:
    answers = check_engine(TensorRtEngine, Listed(IMAGES), model=fixed(tmp_path), options=TASK)

    assert sorted(answers) == list(range(len(IMAGES)))


def test_it_has_the_options_of_every_task() -> None:
    tensorrt_options, base = (
        declaration_of(kind).options for kind in (TensorRtEngine, OnnxRuntimeEngine)
    )
    assert set(base) - set(tensorrt_options) == {"threads", "providers", "graph_optimization"}
    shared = set(base) & set(tensorrt_options) - {"provider_options"}
    assert [name for name in shared if tensorrt_options[name].default != base[name].default] == []


def library() -> bytes:
    """Return the provider's library: as installed, or out of the wheel that a variable names."""
    name = "onnxruntime/capi/libonnxruntime_providers_tensorrt.so"
    wheel = os.environ.get("PYTEST_MLPERF_ONNXRUNTIME_GPU_WHEEL")
    if wheel:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(name)
    file = Path(onnxruntime.__file__).parents[1] / name
    if not file.is_file():
        pytest.skip(
            "needs onnxruntime-gpu, or PYTEST_MLPERF_ONNXRUNTIME_GPU_WHEEL with the path of its "
            "wheel (pip download --no-deps onnxruntime-gpu)"
        )
    return file.read_bytes()


def test_the_provider_knows_every_word(tmp_path: Path) -> None:
    """Read from its library, which is neither loaded nor in need of a GPU."""
    words = set(re.findall(rb"(?:trt_\w+|device_id)", library()))

    options = plan(**EVERYTHING, calibration_table=str(tmp_path), engine_cache=str(tmp_path))
    caches = {
        f"trt_{kind}_cache_{end}" for kind in ("engine", "timing") for end in ("enable", "path")
    }
    used = {*options.for_provider(), *FURTHER_OPTIONS, "trt_bf16_enable", *caches}
    assert {word.encode() for word in used} - words == set()
