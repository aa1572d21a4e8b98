"""Write an ONNX model in fewer bits, as suites of several precisions compare them.

Usage: quantize_onnx.py IN.onnx OUT.onnx --precision int8|int4|fp16 [--suite FILE --samples N]

int8: of models with convolutions these, products of matrices and what follows them, by ranges that
values have while the suite's first samples are run (static, QDQ); of others products of matrices,
whose inputs are quantised as they come (dynamic). int4: weights of products of matrices, a scale
per 32 of them. fp16: all weights and values, with inputs and outputs in fp32. The same file twice.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, version_converter
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.transformers.float16 import convert_float_to_float16

from pytest_mlperf import registry
from pytest_mlperf.adapters.engines.onnxruntime import ModelPrecision, read
from pytest_mlperf.adapters.engines.onnxruntime._session import Providers, open_graph
from pytest_mlperf.adapters.engines.tasks import TASKS, make_task
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import dataset_of, engine_of

PRECISIONS = ("int8", "int4", "fp16")
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
LAYERS = ["Conv", "ConvTranspose", "Gemm", "MatMul", "Relu"]
"""What is quantised with ranges: sums and boxes that are decoded lose far more than they save."""

WEIGHTS = {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": True}
"""Of seven bits: CPUs without VNNI add two products in 16 bits, which eight would exceed."""

ASYMMETRIC: Mapping[str, Any] = {"activation_type": QuantType.QUInt8, **WEIGHTS}
SYMMETRIC: Mapping[str, Any] = {
    "activation_type": QuantType.QInt8,
    "weight_type": QuantType.QInt8,
    "per_channel": True,
    # TensorRT adds biases in fp32, and reads no DequantizeLinear of int32.
    "extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
}

PER_CHANNEL = 13
"""The first version of ONNX's operators in which DequantizeLinear takes a scale per channel."""

BLOCK = 32
"""Weights that share a scale in int4."""

Feed = Mapping[str, Any]
"""A batch of inputs by name, as a model is given it."""


def quantise(
    model: Path,
    copy: Path,
    precision: str,
    feeds: Sequence[Feed] = (),
    *,
    symmetric: bool = False,
) -> None:
    """Write a model in fewer bits.

    Args:
        model: The file; it holds its weights itself, in fp32.
        copy: File to write; an old one is replaced.
        precision: "int8", "int4" or "fp16".
        feeds: For int8 of a model with convolutions: what it is run on to find the ranges.
        symmetric: For int8 with ranges: as TensorRT takes it, with zero points of 0.

    Raises:
        SystemExit: There is nothing to quantise, or nothing to find the ranges with.
    """
    kinds = {node.op_type for node in onnx.load(model).graph.node}
    if precision == "fp16":
        onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), copy)
    elif precision == "int4":
        onnx.save(_four_bits(onnx.load(model), model), copy)
    elif kinds & CONVOLUTIONS:
        if not feeds:
            raise SystemExit(f"{model} has convolutions: name a suite to find their ranges with")
        _static(model, copy, feeds, SYMMETRIC if symmetric else ASYMMETRIC)
    else:
        with _quiet():
            quantize_dynamic(model, copy, op_types_to_quantize=["MatMul"], **WEIGHTS)
    found = read(copy)
    if precision != "fp16" and (found is None or not ModelPrecision.of(found).quantised):
        raise SystemExit(f"{model} has no layers that can be {precision}")


def feeds_of(suite: Path, model: Path, samples: int) -> list[Feed]:
    """Return what a suite's engine gives to a model for the first samples.

    Args:
        suite: Its first engine is onnxruntime.
        model: The file that is run, in place of the suite's own.
        samples: Of the suite's data set; all, where it has fewer.
    """
    planned = plan_suite(suite)[0]
    engine, source = engine_of(planned, str(model)), dataset_of(planned)
    dataset = registry.resolve(source.target)(**source.options)
    own = {field.name for kind in TASKS.values() for field in dataclasses.fields(kind)}
    given = engine.options
    task = make_task(
        str(given.get("task", "classify")), {key: given[key] for key in own & set(given)}
    )
    graph = open_graph(
        model,
        providers=Providers.of(None, None, None),
        model_key="",
        threads=1,
        graph_optimization="all",
        engine="onnxruntime",
    )
    session = _Recorder(graph.session)
    task.bind(dataclasses.replace(graph, session=session), int(given.get("batch_size", 8)))
    for index in range(min(samples, len(dataset))):
        task.run([index], [task.prepare(dataset.input(index), index)])
    return session.feeds


class _Recorder:
    """Stands for a session and keeps what it is given."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.feeds: list[Feed] = []

    def run(self, outputs: Sequence[str], feed: Feed) -> Any:
        self.feeds.append({name: np.array(array) for name, array in feed.items()})
        return self._session.run(outputs, feed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class _Reader(CalibrationDataReader):  # type: ignore[misc] # onnxruntime is Any here
    """Gives batches to onnxruntime's calibration."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        """Return the next batch; None after the last."""
        return next(self._feeds, None)


def _static(model: Path, copy: Path, feeds: Sequence[Feed], types: Mapping[str, Any]) -> None:
    graph = onnx.load(model)
    versions = [each.version for each in graph.opset_import if each.domain in {"", "ai.onnx"}]
    if min(versions) < PER_CHANNEL:  # as those of MLPerf's models are
        graph = version_converter.convert_version(graph, PER_CHANNEL)
    with _quiet():
        quantize_static(
            graph,
            copy,
            _Reader(feeds),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=LAYERS,
            **types,
        )


def _four_bits(model: Any, path: Path) -> Any:
    """Return a model whose constant matrices are in four bits, in place."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        tensor = constants.get(node.input[1]) if node.op_type == "MatMul" else None
        if tensor is None or len(tensor.dims) != 2:
            continue
        matrix = numpy_helper.to_array(tensor)
        packed, scales = pack(matrix.T)
        names = [f"{tensor.name}_packed", f"{tensor.name}_scales"]
        if not any(each.name == names[0] for each in graph.initializer):
            graph.initializer.extend(
                numpy_helper.from_array(array, name)
                for array, name in zip((packed, scales), names, strict=True)
            )
        inner, outer = matrix.shape
        node.CopyFrom(
            helper.make_node(
                "MatMulNBits",
                [node.input[0], *names],
                list(node.output),
                name=node.name,
                domain="com.microsoft",
                K=inner,
                N=outer,
                bits=4,
                block_size=BLOCK,
            )
        )
    used = {name for node in graph.node for name in node.input}
    unused = [tensor for tensor in graph.initializer if tensor.name not in used]
    if not unused:
        raise SystemExit(f"{path} has no layers that can be int4")
    for tensor in unused:
        graph.initializer.remove(tensor)
    if not any(each.domain == "com.microsoft" for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def pack(rows: Any) -> tuple[Any, Any]:
    """Return weights in four bits, two a byte, the first in the low half, and their scales.

    A block's largest weight becomes -8, its scale is the largest over -8, and 8 is added to each.

    Args:
        rows: (outputs, inputs), float32; short blocks are filled with zeros.

    Returns:
        (outputs, blocks, 16), uint8; and (outputs, blocks), float32.
    """
    outputs, inputs = rows.shape
    filled = np.zeros((outputs, -(-inputs // BLOCK) * BLOCK), np.float32)
    filled[:, :inputs] = rows
    blocks = filled.reshape(outputs, -1, BLOCK)
    place = np.abs(blocks).argmax(axis=2)[..., None]
    scales = np.take_along_axis(blocks, place, axis=2) / np.float32(-8)
    steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0)
    whole = (np.clip(np.rint(steps), -8, 7) + 8).astype(np.uint8)
    return whole[..., ::2] | whole[..., 1::2] << 4, scales[..., 0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep onnxruntime from advice."""
    onnxruntime.set_default_logger_severity(3)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        onnxruntime.set_default_logger_severity(2)


def main() -> None:
    """Quantise the model that the command line names."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("copy", type=Path)
    parser.add_argument("--precision", choices=PRECISIONS, required=True)
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--symmetric", action="store_true", help="int8 as TensorRT takes it")
    given = parser.parse_args()
    feeds = feeds_of(given.suite, given.model, given.samples) if given.suite else []
    quantise(given.model, given.copy, given.precision, feeds, symmetric=given.symmetric)
    found = read(given.copy)
    assert found is not None
    print(
        f"{given.copy}: {ModelPrecision.of(found)}, {given.copy.stat().st_size:,} of "
        f"{given.model.stat().st_size:,} bytes"
    )


if __name__ == "__main__":
    main()
