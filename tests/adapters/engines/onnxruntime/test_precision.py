"""Test that a precision is checked against operators, weights, inputs and TensorRT's flags."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from itertools import product as pairs_of
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from pytest_mlperf.adapters.engines import onnxruntime
from pytest_mlperf.adapters.engines.onnxruntime import (
    Contents,
    ModelPrecision,
    Node,
    check_contents,
    check_precision,
    digests,
    read,
)
from pytest_mlperf.adapters.engines.onnxruntime._session import Providers
from pytest_mlperf.adapters.engines.tasks import PRECISIONS
from pytest_mlperf.adapters.engines.tasks.graph import Graph
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.engines.onnxruntime.models import FLOAT, drawn, write
from tests.adapters.engines.onnxruntime.recorder import answers, engine
from tests.refusals import unrefused
from tests.suites.tiny_twin import ROOT

TINY, PRECISE = ROOT / "suites" / "tiny", ROOT / "suites" / "precision"
CPU = Providers.of(None, None, None)
node = helper.make_node
Arrays = Mapping[str, NDArray[Any]]


def tensorrt(**flags: object) -> Providers:
    return Providers.of(["tensorrt", "cpu"], {"tensorrt": flags}, None)


def product(folder: Path, nodes: Sequence[Any], constants: Arrays, *, opset: int = 21) -> str:
    """Write a model from x to y, both (batch, 8)."""
    path = write(folder, nodes, {"x": (FLOAT, ["batch", 8])}, {"y": (FLOAT, ["batch", 8])}, {})
    model = onnx.load(path)
    model.graph.initializer.extend(
        array if isinstance(array, TensorProto) else numpy_helper.from_array(array, name)
        for name, array in constants.items()
    )
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)])
    model.ir_version = 10
    onnx.save(model, path)
    return path


MS = "com.microsoft"
SQUARE = drawn(6, 8, 8)
PLAIN = "{} weights and no quantised operators"
SCALE, TENTHS = np.array(0.05, np.float32), np.array(0.5, np.float32)
BYTES = np.rint(SQUARE / SCALE).clip(-128, 127).astype(np.int8)
FOURS = np.rint(SQUARE / TENTHS).clip(-8, 7).astype(int)
TYPED = {
    name: helper.make_tensor(name, kind, shape, values)
    for name, kind, shape, values in (
        ("bf16", TensorProto.BFLOAT16, SQUARE.shape, SQUARE.ravel().tolist()),
        ("int4", TensorProto.INT4, FOURS.shape, FOURS.ravel().tolist()),
        ("fp8", TensorProto.FLOAT8E4M3FN, [], [0.0]),
    )
}
UNPACKED = [node("DequantizeLinear", ["w", "scale"], ["v"]), node("MatMul", ["x", "v"], ["y"])]

Contained = tuple[list[Any], dict[str, Any], str]

MODELS: dict[str, Contained] = {
    "fp32": ([node("MatMul", ["x", "w"], ["y"])], {"w": SQUARE}, PLAIN.format("fp32")),
    "fp16": (
        [
            node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
            node("MatMul", ["h", "w"], ["p"]),
            node("Cast", ["p"], ["y"], to=FLOAT),
        ],
        {"w": SQUARE.astype(np.float16)},
        PLAIN.format("fp16"),
    ),
    "bf16": (  # multiplied in fp32
        [node("Cast", ["bf16"], ["v"], to=FLOAT), node("MatMul", ["x", "v"], ["y"])],
        {"bf16": TYPED["bf16"]},
        PLAIN.format("bf16"),
    ),
    "fp8": (  # inputs are rounded
        [
            node("QuantizeLinear", ["x", "scale", "fp8"], ["q"]),
            node("DequantizeLinear", ["q", "scale", "fp8"], ["r"]),
            node("MatMul", ["r", "w"], ["y"]),
        ],
        {"w": SQUARE, "scale": SCALE, "fp8": TYPED["fp8"]},
        "fp8 operators (1 DequantizeLinear, 1 QuantizeLinear)",
    ),
    "int8": (UNPACKED, {"w": BYTES, "scale": SCALE}, "int8 operators (1 DequantizeLinear)"),
    "int8 as it comes": (
        [
            node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            node("MatMulInteger", ["q", "w", "z"], ["i"]),
            node("Cast", ["i"], ["f"], to=FLOAT),
            node("Mul", ["f", "s"], ["g"]),
            node("Mul", ["g", "scale"], ["y"]),
        ],
        {"w": BYTES, "scale": SCALE},
        "int8 operators (1 DynamicQuantizeLinear, 1 MatMulInteger)",
    ),
    "int4": (
        [node("DequantizeLinear", ["int4", "scale"], ["v"]), UNPACKED[1]],
        {"int4": TYPED["int4"], "scale": TENTHS},
        "int4 operators (1 DequantizeLinear)",
    ),
}


def made(folder: Path, name: str) -> str:
    """Write one of these models."""
    return product(folder, *MODELS[name][:2])


def test_a_model_is_only_of_the_precision_that_it_holds(tmp_path: Path) -> None:
    """It changes the arithmetic: more with fewer bits, and never beyond what rounding can do."""
    sample, outputs = [drawn(8, 8)], {}
    for name, (*_, holds) in MODELS.items():
        model, own_precision = made(tmp_path, name), name.split(maxsplit=1)[0]

        def enter(word: str, model: str = model) -> None:
            engine(model, sample, task="tensor", precision=word).__enter__()

        with engine(model, sample, task="tensor", precision=own_precision) as opened:
            quantised = opened.describe().get("quantised")
        assert quantised == (holds if "operators (" in holds else None)
        rows = []
        for word in set(PRECISIONS) - {own_precision}:
            expected = (
                f"{model}: precision is {word!r}, but the file holds {holds}; correct precision or"
            )
            if (own_precision, word) in {("fp32", "fp16"), ("bf16", "fp16")}:
                expected = "'x' is tensor(float), not tensor(float16); correct precision or the"
            rows.append((word, expected))
        assert unrefused(enter, RunError, rows) == []
        (raw,) = answers(model, sample, task="tensor", precision=own_precision)
        outputs[name] = np.frombuffer(raw, np.float32)
    with pytest.raises(
        SuiteError, match="'w8a8' is not one of fp64, fp32, bf16, fp16, fp8, int8, "
    ):
        engine(model, [], task="tensor", precision="w8a8")

    size = np.abs(outputs["fp32"]).max()
    apart = {
        name: float(np.abs(each - outputs["fp32"]).max() / size) for name, each in outputs.items()
    }
    assert apart.pop("fp32") == 0
    assert all(0 < each < 0.3 for each in apart.values())
    assert apart["fp16"] < apart["bf16"] < apart["int4"]


def test_the_committed_models_are_what_their_names_say() -> None:
    for name, precision in pairs_of(("resnet50", "retinanet", "3d-unet", "bert"), ("fp16", "int8")):
        contents = read(PRECISE / name / f"{name}-{precision}.onnx")
        assert contents is not None
        kinds = ModelPrecision.of(contents)
        assert set(kinds.quantised) == ({precision} if precision == "int8" else set())
        assert kinds.weights == ("fp16" if precision == "fp16" else "fp32")


def test_a_file_is_read_as_the_library_of_onnx_reads_it() -> None:
    paths = sorted(TINY.glob("*/**/*.onnx"))
    assert paths
    for path in paths:
        graph, model_read = onnx.load(path).graph, read(path)
        assert model_read is not None
        assert [each.kind for each in model_read.nodes] == [each.op_type for each in graph.node]
        assert [each.inputs for each in model_read.nodes] == [
            tuple(each.input) for each in graph.node
        ]
        weights = {each.name: each.data_type for each in graph.initializer}
        assert weights.items() <= model_read.types.items()
        numbers = [math.prod(each.dims) for each in graph.initializer if each.data_type == FLOAT]
        assert model_read.elements[FLOAT] >= sum(numbers)


def test_inner_graphs_functions_constants_and_weights_beside_the_file_are_read(
    tmp_path: Path,
) -> None:
    constant = numpy_helper.from_array(np.zeros((2, 3), np.int8), "inner name")
    inner = [
        node("Constant", [], ["c"], value=constant),
        node("DequantizeLinear", ["c", "s"], ["out"]),
    ]
    value = helper.make_tensor_value_info("out", FLOAT, [2, 3])
    branch = helper.make_graph(inner, "branch", [], [value])
    either = node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)
    convolution = node("ConvInteger", ["a", "a"], ["b"])
    function = helper.make_function("own", "Own", ["a"], ["b"], [convolution], [])
    path = tmp_path / "inner.onnx"
    graph = helper.make_graph([either], "graph", [], [])
    path.write_bytes(helper.make_model(graph, functions=[function]).SerializeToString())
    contents = read(path)
    assert contents is not None
    assert contents.types == {"c": TensorProto.INT8}
    assert contents.elements == {TensorProto.INT8: 2 * 6}
    assert str(ModelPrecision.of(contents)) == "int8 operators (1 ConvInteger, 2 DequantizeLinear)"

    apart = tmp_path / "apart.onnx"
    model = onnx.load(made(tmp_path, "fp32"))
    onnx.save(model, apart, save_as_external_data=True, location="w", size_threshold=0)
    (tmp_path / "w").unlink()
    contents = read(apart)
    assert contents is not None
    assert str(ModelPrecision.of(contents)) == PLAIN.format("fp32")
    assert contents.elements == {FLOAT: 64}


def test_weights_in_files_of_their_own_are_hashed(tmp_path: Path) -> None:
    """torch exports them so; the key of TensorRT's engine cache consists of the same digests."""
    inside, apart = made(tmp_path, "fp32"), tmp_path / "apart.onnx"
    onnx.save(
        onnx.load(inside), apart, save_as_external_data=True, location="w.data", size_threshold=0
    )
    digests_at_first = digests(apart, read(apart))
    data = tmp_path / "w.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\x01")
    digests_after_change = digests(apart, read(apart))

    assert (
        digests_at_first.keys()
        == digests_after_change.keys()
        == {"weights_sha256", "external_data_sha256"}
    )
    assert [
        key for key in digests_at_first if digests_at_first[key] != digests_after_change[key]
    ] == ["external_data_sha256"]
    assert digests(Path(inside), read(Path(inside))).keys() == {"weights_sha256"}
    data.unlink()
    assert digests(apart, read(apart)).keys() == {"weights_sha256"}


def test_operators_are_known_by_name_types_and_bits() -> None:
    cases: list[tuple[str, dict[str, int], dict[str, int], str | None]] = [
        ("QuantizeLinear", {}, {}, "int8"),
        ("QuantizeLinear", {}, {"output_dtype": TensorProto.UINT4}, "int4"),
        ("QuantizeLinear", {"z": TensorProto.FLOAT8E5M2}, {}, "fp8"),
        ("QuantizeLinear", {"z": TensorProto.UINT16}, {}, "int16"),
        ("DequantizeLinear", {"x": TensorProto.INT4}, {}, "int4"),
        ("DequantizeLinear", {"z": TensorProto.INT8}, {}, "int8"),
        ("DequantizeLinear", {"x": TensorProto.INT32}, {}, None),
        ("DequantizeLinear", {}, {}, None),
        ("MatMulNBits", {}, {}, "int4"),
        ("MatMulNBits", {}, {"bits": 8, "K": 5}, "int8"),
        ("QMoE", {}, {"expert_weight_bits": 4}, "int4"),
        ("MatMulBnb4", {}, {}, "int4"),
        ("QLinearConv", {}, {}, "int8"),
        ("QLinearGlobalAveragePool", {}, {}, "int8"),
        ("MatMulIntegerToFloat", {}, {}, "int8"),
        ("MatMulInteger16", {}, {}, "int16"),
        ("QAttention", {}, {}, "int8"),
        ("GemmFloat8", {}, {}, "fp8"),
        ("MatMul", {"x": TensorProto.INT8}, {}, None),
        ("QuickGelu", {}, {}, None),
        ("Attention", {}, {}, None),
    ]
    operators = [
        (
            *ModelPrecision.of(
                Contents(nodes=[Node(kind, ("x", "s", "z"), more)], types=types)
            ).quantised,
            None,
        )
        for kind, types, more, _ in cases
    ]
    assert [(*row[:3], words[0]) for row, words in zip(cases, operators, strict=True)] == cases


@given(st.binary(max_size=200))
def test_bytes_that_are_not_a_message_are_one_error(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "any.onnx"
    path.write_bytes(data or b"\0")
    with contextlib.suppress(ValueError):
        read(path)


def test_a_file_is_judged_only_by_its_readable_parts(tmp_path: Path) -> None:
    cut, ort_file = tmp_path / "cut.onnx", tmp_path / "model.ort"
    cut.write_bytes(Path(made(tmp_path, "fp32")).read_bytes()[:-5])
    with pytest.raises(ValueError, match="it is not an ONNX file: "):
        read(cut)
    ort_file.write_bytes(b"\x10\0\0\0ORTM" + bytes(50))
    compiled = Path(product(tmp_path, [node("EPContext", ["x"], ["y"], domain=MS)], {}))
    for path in (ort_file, compiled):
        graph = Graph(where=str(path), inputs=(), outputs=())
        assert check_contents(read(path), graph, "int8", CPU) == {}


def test_a_file_that_only_onnxruntime_can_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise ValueError(f"no field of {path.name}")

    monkeypatch.setattr(onnxruntime, "read", refuse)
    problem = "the model file cannot be read: no field of "
    with pytest.raises(RunError, match=problem), engine(made(tmp_path, "fp32"), []):
        pass


def test_what_tensorrt_may_compute_in_must_be_the_word() -> None:
    cases: list[tuple[str, dict[str, object], str | None]] = [
        ("fp32", {}, None),
        ("fp32", {"trt_fp16_enable": False}, None),
        ("fp32", {"trt_fp16_enable": True}, "fp16"),
        ("fp16", {"trt_fp16_enable": True}, None),
        ("fp16", {"trt_fp16_enable": 1, "trt_int8_enable": 1}, "int8"),
        ("bf16", {"trt_bf16_enable": "1"}, None),
        ("int8", {"trt_int8_enable": True, "trt_fp16_enable": True}, None),
        ("int8", {"trt_fp8_enable": True}, "fp8"),
        ("int4", {"trt_int8_enable": True}, None),
        ("fp8", {"trt_int8_enable": True}, "int8"),
    ]
    rows = []
    for word, flags, refused in cases:
        if refused is None:
            check_precision(word, tensorrt(**flags))
            continue
        defect = f"precision = {word!r}, but provider_options has trt_{refused}_enable, which lets "
        rows.append((word, tensorrt(**flags), f"{defect}TensorrtExecutionProvider compute in"))
    assert unrefused(check_precision, SuiteError, rows) == []


def test_what_tensorrt_computes_in_need_not_be_in_the_file(tmp_path: Path) -> None:
    fitting = [("fp16", "fp32"), ("int8", "fp32"), ("bf16", "fp32"), ("int8", "int8")]
    for precision, name in [*fitting, ("fp16", "int8"), ("int8", "int4"), ("int8", "fp8")]:
        path = Path(made(tmp_path, name))
        arguments = Graph(where=str(path), inputs=(), outputs=()), precision
        providers = tensorrt(**{f"trt_{precision}_enable": True})
        if (precision, name) in fitting:
            check_contents(read(path), *arguments, providers)
            continue
        with pytest.raises(RunError, match=f"is '{precision}', but the file holds {name}"):
            check_contents(read(path), *arguments, providers)
