"""What an ONNX file holds: its operators and the types of its weights, read without a library.

An ONNX file is one message of Protocol Buffers: fields of a number and a value, one after the
other. Weights are stepped over, so that a file of any size is read in the time its nodes take.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
"""How the value of a field is written."""

# Numbers of fields, by message, as ONNX's onnx.proto numbers them.
MODEL_GRAPH, MODEL_FUNCTIONS = 7, 25
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_SPARSE = 1, 5, 15
FUNCTION_NODE = 7
NODE_INPUT, NODE_OUTPUT, NODE_TYPE, NODE_ATTRIBUTE = 1, 2, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 1, 3, 5, 6, 11
TENSOR_DIMS, TENSOR_TYPE, TENSOR_NAME = 1, 2, 8
SPARSE_VALUES = 1

FLATBUFFER = b"ORTM"
"""At byte 4 of a file in onnxruntime's own format, which has another layout."""

Value = int | memoryview


@dataclass(frozen=True, slots=True)
class Node:
    """An operator: its name, what it takes, and those of its attributes that are whole numbers."""

    kind: str
    inputs: tuple[str, ...]
    attributes: dict[str, int]


@dataclass(slots=True)
class Contents:
    """A file's operators and weights, those of inner graphs and functions too.

    Attributes:
        nodes: In the order of the file.
        types: Of weights and constants by name, as ONNX numbers them.
        elements: How many numbers there are of each type.
    """

    nodes: list[Node] = field(default_factory=list)
    types: dict[str, int] = field(default_factory=dict)
    elements: Counter[int] = field(default_factory=Counter)


def read(path: Path) -> Contents | None:
    """Return what a file holds; None for one in onnxruntime's own format.

    Raises:
        ValueError: It is no ONNX file.
    """
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if bytes(data[4:8]) == FLATBUFFER:
        return None
    found = Contents()
    for number, value in _fields(data):
        if number == MODEL_GRAPH:
            _read_graph(_message(value), found)
        elif number == MODEL_FUNCTIONS:
            for inner, node in _fields(_message(value)):
                if inner == FUNCTION_NODE:
                    _read_node(_message(node), found)
    return found


def _read_graph(data: memoryview, found: Contents) -> None:
    for number, value in _fields(data):
        if number == GRAPH_NODE:
            _read_node(_message(value), found)
        elif number == GRAPH_INITIALIZER:
            _read_tensor(_message(value), found)
        elif number == GRAPH_SPARSE:
            for inner, tensor in _fields(_message(value)):
                if inner == SPARSE_VALUES:
                    _read_tensor(_message(tensor), found)


def _read_node(data: memoryview, found: Contents) -> None:
    kind, inputs, outputs, attributes = "", [], [], {}
    for number, value in _fields(data):
        if number == NODE_TYPE:
            kind = _text(value)
        elif number == NODE_INPUT:
            inputs.append(_text(value))
        elif number == NODE_OUTPUT:
            outputs.append(_text(value))
        elif number == NODE_ATTRIBUTE:
            name, number_or_none = _read_attribute(_message(value), outputs, found)
            if number_or_none is not None:
                attributes[name] = number_or_none
    found.nodes.append(Node(kind, tuple(inputs), attributes))


def _read_attribute(
    data: memoryview, outputs: list[str], found: Contents
) -> tuple[str, int | None]:
    """Return an attribute's name, and its value if that is a whole number."""
    name, whole = "", None
    for number, value in _fields(data):
        if number == ATTRIBUTE_NAME:
            name = _text(value)
        elif number == ATTRIBUTE_INT and isinstance(value, int):
            whole = value
        elif number == ATTRIBUTE_TENSOR:
            # A constant is called as the node's output.
            _read_tensor(_message(value), found, name=outputs[0] if outputs else "")
        elif number in {ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS}:
            _read_graph(_message(value), found)
    return name, whole


def _read_tensor(data: memoryview, found: Contents, name: str = "") -> None:
    kind, shape = 0, []
    for number, value in _fields(data):
        if number == TENSOR_DIMS:
            shape += [value] if isinstance(value, int) else list(_varints(value))
        elif number == TENSOR_TYPE and isinstance(value, int):
            kind = value
        elif number == TENSOR_NAME:
            name = name or _text(value)
    found.types[name] = kind
    found.elements[kind] += prod(shape)


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the fields of a message: numbers, and the bytes of texts and of inner messages.

    Raises:
        ValueError: It is no such message.
    """
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if kind == LENGTH:
            size, place = _varint(data, place)
        elif kind in {EIGHT_BYTES, FOUR_BYTES}:
            size = 8 if kind == EIGHT_BYTES else 4
        else:
            raise ValueError(f"field {number} is of an unknown kind {kind}")
        if place + size > len(data):
            raise ValueError(f"field {number} is cut short")
        yield number, data[place : place + size]
        place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return the number that starts here, and where it has ended: seven bits a byte, low first."""
    value = shift = 0
    while place < len(data):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("a number is cut short")


def _varints(data: memoryview) -> Iterator[int]:
    place = 0
    while place < len(data):
        value, place = _varint(data, place)
        yield value


def _message(value: Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number stands where a message should be")
    return value


def _text(value: Value) -> str:
    return bytes(_message(value)).decode("utf-8")
