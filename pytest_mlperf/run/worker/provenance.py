"""Record a run's inputs and imported files as its worker sees them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain, islice
from pathlib import PurePath
from statistics import fmean
from time import perf_counter
from typing import Any

from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.core.imports import is_installed

DIGESTED_SAMPLES = 16
MAX_DIGEST_SECONDS = 2.0
"""Time limit for reading samples; after it, only the first sample has a digest."""


def input_digests(dataset: Dataset, indices: Sequence[int]) -> tuple[dict[str, str], float | None]:
    """Return digests of the first inputs, and the mean time of `input()` per sample [s].

    Returns ({}, None) if `input()` raises, as the engine will report that error. The mean leaves
    out the first call, which may import and open files, unless it is the only one.
    """
    facts: dict[str, str] = {}
    spent_s: list[float] = []
    total, indices = hashlib.sha256(), list(islice(indices, DIGESTED_SAMPLES))
    digestible, begun_s = True, perf_counter()
    for number, index in enumerate(indices, start=1):
        call_s = perf_counter()
        try:
            sample = dataset.input(index)
            spent_s.append(perf_counter() - call_s)
        except Exception:
            return {}, None
        try:
            for part in _parts(sample) if digestible else ():
                total.update(part)
        except Exception:  # arrays may raise anything
            facts, digestible = {}, False
        if digestible and number == 1:
            facts["inputs.first"] = total.hexdigest()[:16]
        if digestible and number == len(indices):
            facts["inputs.first_16"] = total.hexdigest()[:16]
        if perf_counter() - begun_s > MAX_DIGEST_SECONDS:
            break
    return facts, fmean(spent_s[1:] or spent_s) if spent_s else None


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    """Yield bytes that are equal for equal values in any process; TypeError for other types."""
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        import numpy as np  # only data sets with arrays need it

        array = np.asarray(value)
        yield f"array {array.dtype.str} {array.shape};".encode()
        if array.dtype.hasobject or array.dtype.names:
            yield from _parts(array.tolist())
        else:
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    elif value is None or isinstance(value, bool | int | float | complex):
        yield f"{value!r};".encode()
    elif isinstance(value, PurePath):
        yield from _parts(value.name)  # its folder differs between machines
    elif isinstance(value, str):
        yield b"text "
        yield from _parts(_placeless(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        yield f"bytes {len(data)};".encode()
        yield data
    elif isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: (type(item[0]).__name__, str(item[0])))
        yield f"table {len(items)};".encode()
        yield from chain.from_iterable(map(_parts, chain.from_iterable(items)))
    elif isinstance(value, list | tuple | Set):
        parts = [b"".join(_parts(one)) for one in value]
        yield f"list {len(parts)};".encode()
        yield from sorted(parts) if isinstance(value, Set) else parts
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _parts({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    else:
        raise TypeError(f"no digest of {type(value).__name__}")


def _placeless(text: str) -> str:
    """Return only the file name if a text is the absolute path of an existing file."""
    is_path = text[:1] == "/" and "\0" not in text and os.access(text, os.F_OK)
    return text.rpartition("/")[2] if is_path else text


def imported_files() -> list[str]:
    """Return the files of imported modules, except those of Python and installed packages."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return sorted(f for f in files if isinstance(f, str) and not is_installed(f))
