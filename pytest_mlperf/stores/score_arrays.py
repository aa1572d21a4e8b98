"""Each sample's scores as whole steps, in an archive that is bounded before it is unpacked."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mlperf.core.accuracy_baseline import AccuracyBaseline
from pytest_mlperf.core.errors import BaselineError

Scores = Mapping[str, Sequence[float | None]]

NONE = {"<u2": 2**16 - 1, "<i4": -(2**31)}
"""What stands for a sample that a metric does not apply to, by the type of the array."""

LARGEST = 256 * 2**20
"""Bytes of a file with scores, and of one metric unpacked: 67 million samples."""

WIDEST = 4
"""Bytes of one sample's score at most."""

HEADER = 1024
"""Bytes of an array's header, with room to spare."""

OUTPUTS = "output digests"
"""The array with a digest of each output; no metric has such a name."""


def pack(scores: Scores, steps: Mapping[str, int], outputs: Sequence[int] | None) -> bytes:
    """Return an npz archive of whole steps: 2 bytes a score where they fit, else 4.

    Raises:
        BaselineError: A score is too large.
    """
    import numpy as np

    arrays = {}
    for name in sorted(scores):
        there = [value for value in scores[name] if value is not None]
        whole = np.array([round(value * steps[name]) for value in there], dtype=np.int64)
        small = bool(np.all((whole >= 0) & (whole < NONE["<u2"])))
        dtype = "<u2" if small else "<i4"
        if not small and bool(np.any(np.abs(whole) > np.iinfo("<i4").max)):
            raise BaselineError(f"a score of {name} is too large to be kept: {max(there, key=abs)}")
        arrays[name] = np.full(len(scores[name]), NONE[dtype], dtype=dtype)
        arrays[name][[value is not None for value in scores[name]]] = whole.astype(dtype)
    if outputs is not None:
        arrays[OUTPUTS] = np.array(outputs, dtype="<u2")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def unpack(content: bytes, baseline: AccuracyBaseline) -> dict[str, list[float | None]]:
    """Return the scores of an archive by metric and data set index.

    Raises:
        ValueError: It holds something else than the baseline says. Damaged archives raise more.
    """
    found = {}
    if missing := set(baseline.steps) - set(read := arrays(content, baseline, *baseline.steps)):
        raise ValueError(f"lacks the scores of {min(missing)}")
    for name, array in read.items():
        none, steps = NONE[array.dtype.str], baseline.steps[name]
        if len(array) != baseline.samples:
            raise ValueError(f"has {len(array)} scores of {name} for {baseline.samples} samples")
        found[name] = [None if value == none else value / steps for value in array.tolist()]
    return found


def arrays(content: bytes, baseline: AccuracyBaseline, *names: str) -> dict[str, Any]:
    """Return those arrays that an archive has; none is unpacked that is larger than it may be.

    Raises:
        ValueError: It holds an array that the baseline does not know, or a larger one.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        if unknown := set(members) - {*baseline.steps, OUTPUTS}:
            raise ValueError(f"holds {min(unknown)!r}, which is no metric of {baseline.workload}")
        most = min(baseline.samples * WIDEST + HEADER, LARGEST)
        for name, member in members.items():
            if member.file_size > most:
                raise ValueError(
                    f"{name} unpacks to {member.file_size:,} bytes, and {baseline.samples} samples "
                    f"need {most:,} at most"
                )
        return {
            name: _array(name, archive.read(members[name])) for name in names if name in members
        }


def _array(name: str, content: bytes) -> Any:
    """Return an array of one axis; its header may claim anything, so nothing is made by it."""
    import numpy as np
    from numpy.lib import format as npy

    file = io.BytesIO(content)
    if npy.read_magic(file) != (1, 0):
        raise ValueError(f"{name} is in a format that is not read")
    shape, _, dtype = npy.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError(f"Object arrays cannot be loaded: {name}")
    values = np.frombuffer(content, dtype, offset=file.tell())
    if shape != values.shape:
        raise ValueError(f"{name} says that its shape is {shape}, and has {len(values)} values")
    return values
