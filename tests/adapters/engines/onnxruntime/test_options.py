"""Test the options of providers in a suite, and their description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from pytest_mlperf.adapters.engines.onnxruntime._session import (
    CPU_PROVIDER,
    PROVIDER_NAMES,
    TENSORRT_PROVIDER,
    Providers,
)
from pytest_mlperf.core.errors import EnvironmentFault, SuiteError
from tests.adapters.engines.onnxruntime.models import detector, recommender, segmenter
from tests.adapters.engines.onnxruntime.recorder import answers, engine
from tests.refusals import unrefused

CUDA = "CUDAExecutionProvider"


def test_the_description_names_what_decides_the_answers(tmp_path: Path) -> None:
    boxes = {"box_order": "xyxy", "box_unit": "pixel", "score_threshold": "0.05"}
    cases: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"task": "detect", "max_detections": 50}, {**boxes, "max_detections": "50"}),
        ({"task": "segment", "overlap": 0.25}, {"roi_shape": "128,128,128", "overlap": "0.25"}),
        ({"task": "tensor", "output": "labels"}, {"output": "labels"}),
    ]
    common = {"engine", "onnxruntime", "weights_sha256", "providers", "threads", "batch_size"}
    for options, generation in cases:
        facts = {f"generation.{name}": value for name, value in generation.items()}
        facts["task"] = options["task"]
        model = segmenter(tmp_path) if options["task"] == "segment" else detector(tmp_path)
        with engine(model, [], batch_size=1, **options) as opened:
            described = opened.describe()
        assert set(described) - set(facts) == common | {"workers", "graph_optimization"}
        assert {name: described[name] for name in facts} == facts


def test_contradictory_options_are_refused(tmp_path: Path) -> None:
    cuda = {"providers": ["cuda"]}
    absent = "provider_options.cuda = {'device_id': 1} is for a provider that the option providers"
    again = f"provider_options.{CUDA} = {{}} sets options of {CUDA} a second time"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"providers": []}, "providers = [] is not a list of execution providers"),
        ({"providers": ["cpu", CPU_PROVIDER]}, "names a provider twice; name each"),
        (
            {"engine_cache": "x"},
            f"is for TensorRT, but providers are {CPU_PROVIDER}; put {TENSORRT_PROVIDER!r}",
        ),
        ({"provider_options": {"cuda": {"device_id": 1}}}, absent),
        ({"provider_options": {"cuda": {}, CUDA: {}}, **cuda}, again),
        (
            {"provider_options": {"cuda": {"a": [1]}}, **cuda},
            "provider_options.cuda.a = [1] is not text, a number or a boolean",
        ),
        (
            {"provider_options": {"cpu": {"a": 1}}},
            "provider_options.cpu = {'a': 1} would have no effect, as this provider has no",
        ),
    ]
    model = recommender(tmp_path)

    def build(options: dict[str, Any]) -> None:
        engine(model, [], task="tensor", output="logit", **options)

    assert unrefused(build, SuiteError, cases) == []


def test_options_are_given_to_onnxruntime_as_text_in_the_order_of_the_providers() -> None:
    for providers, names in (
        (None, [CPU_PROVIDER]),
        (["cpu"], [CPU_PROVIDER]),
        (["CUDA", "cpu"], [CUDA, CPU_PROVIDER]),
        (["tensorrt", CUDA, "CPUExecutionProvider"], [TENSORRT_PROVIDER, CUDA, CPU_PROVIDER]),
        (["DmlExecutionProvider"], ["DmlExecutionProvider"]),
    ):
        short = Providers.of(providers, None, None)
        assert (short.names, short.describe()) == (names, {"providers": ",".join(names)})
    options = {"cuda": {"device_id": 1, "do_copy_in_default_stream": True}}
    chosen_providers = Providers.of(["tensorrt", "cuda", "cpu"], options, None)
    texts = {"device_id": "1", "do_copy_in_default_stream": "True"}
    assert chosen_providers.arguments("0" * 64) == [
        (TENSORRT_PROVIDER, {}),
        (CUDA, texts),
        (CPU_PROVIDER, {}),
    ]
    assert json.loads(chosen_providers.describe()["provider_options"]) == {CUDA: texts}
    # Baselines hold no names of users: a path is described by its last part.
    paths = {"tensorrt": {"trt_engine_cache_path": "/home/someone/engines", "trt_fp16_enable": 1}}
    described = json.loads(Providers.of(["tensorrt"], paths, None).describe()["provider_options"])
    assert described == {
        TENSORRT_PROVIDER: {"trt_engine_cache_path": "engines", "trt_fp16_enable": "1"}
    }


def test_engines_of_tensorrt_are_kept_by_model(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "engines"
    options = {"tensorrt": {"trt_fp16_enable": True, "trt_timing_cache_enable": False}}
    providers = Providers.of(["tensorrt", "cpu"], options, str(cache))

    (_, first), _ = providers.arguments("a" * 16)
    (_, second), _ = providers.arguments("b" * 16)

    assert first == {
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(cache / ("a" * 16)),
        "trt_timing_cache_enable": "False",
        "trt_timing_cache_path": str(cache / ("a" * 16)),
        "trt_fp16_enable": "True",
    }
    assert second["trt_engine_cache_path"] == str(cache / ("b" * 16))
    assert sorted(each.name for each in cache.iterdir()) == ["a" * 16, "b" * 16]
    assert providers.describe()["engine_cache"] == "yes"
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(EnvironmentFault, match=r"cannot be made \(Not a directory\); set engine_"):
        Providers.of(["tensorrt"], None, str(tmp_path / "file")).arguments("a" * 16)


def test_a_provider_that_is_not_installed_names_its_package(tmp_path: Path) -> None:
    gpu, qnn = (
        "pip install onnxruntime-gpu in place of onnxruntime",
        "QNNExecutionProvider",
    )
    hints = {"cuda": gpu, "tensorrt": gpu, "openvino": gpu.replace("-gpu", "-openvino")}
    hints[qnn] = f"a build of onnxruntime with {qnn}"
    for name, hint in hints.items():
        full = PROVIDER_NAMES.get(name, name)
        if full in onnxruntime.get_available_providers():
            continue
        with pytest.raises(EnvironmentFault) as raised:
            engine(recommender(tmp_path), [], providers=[name, "cpu"]).__enter__()
        assert f"provider {full!r} is not installed; installed: " in str(raised.value)
        assert str(raised.value).endswith(f"Try: {hint}")
    with pytest.raises(SuiteError) as unknown:
        engine(recommender(tmp_path), [], providers=["MadeUpExecutionProvider"]).__enter__()
    message = str(unknown.value)
    assert "providers = 'MadeUpExecutionProvider' is unknown to onnxruntime" in message
    assert all(
        name in message for name in (*onnxruntime.get_available_providers(), *PROVIDER_NAMES)
    )


def test_onnxruntime_takes_options_as_they_are_given(tmp_path: Path) -> None:
    """A provider that runs no operators itself comes first, the CPU does the work."""
    first = "AzureExecutionProvider"
    if first not in onnxruntime.get_available_providers():
        pytest.skip(f"this build of onnxruntime has no {first}, which runs no operators itself")
    inputs = [{"dense": np.ones(3), "sparse_0": np.ones(2, int), "sparse_1": np.ones(1, int)}]
    options: dict[str, Any] = {"task": "tensor", "output": "logit"}

    outputs = answers(
        recommender(tmp_path),
        inputs,
        providers=[first, "cpu"],
        provider_options={first: {"level": 3}},
        **options,
    )

    assert outputs == answers(recommender(tmp_path), inputs, **options)
