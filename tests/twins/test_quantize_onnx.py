"""twins/quantize_onnx.py: the same file each time, near to the model it was made from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs pytest-mlperf[onnx]")

import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from pytest_mlperf.adapters.engines.onnxruntime import ModelPrecision, read
from tests.suites.tiny_twin import ROOT, Twin, load_tool

TOOL = ROOT / "twins" / "quantize_onnx.py"
PRECISE = ROOT / "suites" / "precision"


@pytest.fixture(scope="module")
def tool() -> Any:
    return load_tool("quantize_onnx")


def run(model: Path, feed: dict[str, Any], *, in_int8: bool = True) -> list[Any]:
    """Run a model; without `in_int8`, scale its int8 numbers back and multiply them in fp32.

    ONNX Runtime's int8 kernels saturate on CPUs with AVX2 and without VNNI, fp32 does nowhere.
    """
    options = onnxruntime.SessionOptions()
    if not in_int8:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options)
    return list(session.run(None, feed))


def network(folder: Path, *, convolution: bool) -> Path:
    """Write a model from x to y with a convolution, or with two products of one matrix."""
    random = np.random.default_rng(3)
    shape = (6, 3, 3, 3) if convolution else (40, 40)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    products = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    return model_of(
        folder / "network.onnx",
        nodes if convolution else products,
        x=["batch", 3, 8, 8] if convolution else ["batch", 40],
        y=["batch", 6, 8, 8] if convolution else ["batch", 40],
        w=random.normal(size=shape).astype(np.float32),
    )


def model_of(
    path: Path, nodes: list[Any], *, x: list[int | str], y: list[int | str], **weights: Any
) -> Path:
    """Write a model from x to y."""
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        initializer=[numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=opsets), path)
    return path


ANSWERS: list[tuple[bool, str, float, float, str]] = [
    (True, "int8", 1e-4, 0.05, "int8 operators (3 DequantizeLinear, 2 QuantizeLinear)"),
    (True, "fp16", 1e-5, 0.01, "fp16 weights and no quantised operators"),
    (False, "int8", 1e-4, 0.05, "int8 operators (2 DynamicQuantizeLinear, 2 MatMulInteger)"),
    (False, "int4", 0.01, 0.3, "int4 operators (2 MatMulNBits)"),
    (False, "fp16", 1e-5, 0.01, "fp16 weights and no quantised operators"),
]
"""Whether the model convolves, precision, least and largest error, and what the copy holds."""


def test_answers_stay_near(tool: Any, tmp_path: Path) -> None:
    for convolution, precision, least, most, kinds in ANSWERS:
        model, copy = network(tmp_path, convolution=convolution), tmp_path / "copy.onnx"
        shape = (4, 3, 8, 8) if convolution else (4, 40)
        feed = {"x": np.random.default_rng(4).normal(size=shape).astype(np.float32)}

        tool.quantise(model, copy, precision, [feed])

        (exact,), (quantised,) = run(model, feed), run(copy, feed)
        assert least < np.linalg.norm(quantised - exact) / np.linalg.norm(exact) < most
        contents = read(copy)
        assert contents is not None
        assert str(ModelPrecision.of(contents)) == kinds


def test_four_bits_are_packed_as_onnxruntime_reads_them(tool: Any, tmp_path: Path) -> None:
    """Whole numbers of steps are kept exactly, zeros and a single weight survive."""
    random = np.random.default_rng(5)
    steps = random.integers(-8, 8, (5, 40))
    steps[:, [0, 39]] = -8
    rows = (steps * 0.25).astype(np.float32)

    packed, scales = tool.pack(rows)
    assert (packed.shape, packed.dtype, scales.shape) == ((5, 2, 16), np.uint8, (5, 2))
    options: dict[str, Any] = {
        "domain": "com.microsoft",
        "K": 40,
        "N": 5,
        "bits": 4,
        "block_size": 32,
    }
    node = helper.make_node("MatMulNBits", ["x", "p", "s"], ["y"], **options)
    path = model_of(tmp_path / "packed.onnx", [node], x=[40, 40], y=[40, 5], p=packed, s=scales)
    (output,) = run(path, {"x": np.eye(40, dtype=np.float32)})
    np.testing.assert_array_equal(output.T, rows)
    rows = np.zeros((2, 32), np.float32)
    rows[1, 7] = 3.0

    packed, scales = tool.pack(rows)
    assert set(packed[0].ravel()) == {0x88}
    low, high = packed[1, 0] & 15, packed[1, 0] >> 4
    whole = np.stack([low, high], axis=1).ravel().astype(float) - 8
    np.testing.assert_array_equal(whole * scales[1, 0], rows[1])


def test_unsupported_models_are_reported(tool: Any, tmp_path: Path) -> None:
    for precision, expected in (
        ("int8", "has convolutions: name a suite to find their ranges with"),
        ("int4", "has no layers that can be int4"),
    ):
        with pytest.raises(SystemExit, match=f"network.onnx {expected}$"):
            tool.quantise(network(tmp_path, convolution=True), tmp_path / "copy", precision)
        assert not (tmp_path / "copy").exists()


def test_samples_are_given_as_the_engine_gives_them(tool: Any) -> None:
    """Windows of volumes in batches, by the names of the model's inputs."""
    twin = Twin("3d-unet")

    feeds = tool.feeds_of(twin.file, twin.model, 2)

    windows = [feed["input"] for feed in feeds]
    assert {each.shape[1:] for each in windows} == {(1, 16, 16, 16)}
    assert max(len(each) for each in windows) == 8
    assert any(
        np.array_equal(each[0, 0], twin.dataset.input(0)[0, :16, :16, :16]) for each in windows
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param("resnet50", "int8", marks=pytest.mark.nightly),
        pytest.param("bert", "int8", marks=pytest.mark.nightly),
        ("bert", "int4"),
    ],
)
def test_the_same_file_is_written_each_time(
    tool: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    precision: str,
) -> None:
    """Here and in a process with another order of hashes; the committed one answers like it."""
    twin, copies = Twin(name), [tmp_path / "first.onnx", tmp_path / "second.onnx"]
    suite = ["--suite", str(twin.file), "--samples", "32"]
    first, second = (
        [
            *(str(TOOL), str(twin.model), str(copy), "--precision", precision),
            *(suite if precision == "int8" and name != "bert" else []),
        ]
        for copy in copies
    )
    monkeypatch.setattr(sys, "argv", first)
    tool.main()
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, *second], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{copies[0]}: " in capsys.readouterr().out
    assert f"{copies[1]}: " in done.stdout

    assert copies[0].read_bytes() == copies[1].read_bytes()
    # Other versions of the library may order or name nodes otherwise.
    graph, expected = read(copies[0]), read(PRECISE / name / f"{name}-{precision}.onnx")
    assert graph is not None
    assert expected is not None
    assert str(ModelPrecision.of(graph)) == str(ModelPrecision.of(expected))


def test_a_model_of_older_operators_is_quantised(tool: Any, tmp_path: Path) -> None:
    """MLPerf's models use versions 11 and 12, in which DequantizeLinear has no scale per channel.

    The file is right on every CPU. Its int8 kernels only have to run: how much the 8 bits of
    symmetric weights saturate in them depends on the CPU.
    """
    model, copy = network(tmp_path, convolution=True), tmp_path / "copy.onnx"
    older = onnx.load(model)
    older.opset_import[0].version = 11  # its operators exist in version 11
    onnx.save(older, model)
    feed = {"x": np.random.default_rng(3).normal(size=(1, 3, 8, 8)).astype(np.float32)}

    tool.quantise(model, copy, "int8", [feed], symmetric=True)

    (exact,), (scaled_back,), (fast,) = (
        run(model, feed),
        run(copy, feed, in_int8=False),
        run(copy, feed),
    )
    assert np.abs(scaled_back - exact).max() < 0.1 * np.abs(exact).max()
    assert np.isfinite(fast).all()


def test_seven_bits_do_not_saturate_and_symmetric_zero_points_are_zero(
    tool: Any, tmp_path: Path
) -> None:
    """The tool's own models give the same answers with 16-bit sums: 2 x 255 x 63 < 2^15."""
    model, copy = network(tmp_path, convolution=True), tmp_path / "copy.onnx"
    feed = {"x": np.random.default_rng(3).normal(size=(1, 3, 8, 8)).astype(np.float32)}

    tool.quantise(model, copy, "int8", [feed])

    weights = [
        numpy_helper.to_array(one)
        for one in onnx.load(copy).graph.initializer
        if one.data_type == TensorProto.INT8 and one.dims
    ]
    assert max(np.abs(one.astype(int)).max() for one in weights) < 65
    (scaled_back,), (fast,) = run(copy, feed, in_int8=False), run(copy, feed)
    assert np.abs(fast - scaled_back).max() < 0.02 * np.abs(fast).max()

    tool.quantise(model, copy, "int8", [feed], symmetric=True)

    graph = onnx.load(copy).graph
    points = [numpy_helper.to_array(one) for one in graph.initializer if "zero_point" in one.name]
    assert points
    assert all(one.dtype == np.int8 and not one.any() for one in points)
