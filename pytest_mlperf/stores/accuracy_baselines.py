"""Accuracy baselines in git: a reviewed JSON file, and each sample's scores beside it."""

from __future__ import annotations

import hashlib
import io
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.core.accuracy_baseline import SCHEMA, AccuracyBaseline, steps_per_point
from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.documents import Document

FILE = Document(AccuracyBaseline, schema=SCHEMA, what="accuracy baseline")

Scores = Mapping[str, Sequence[float | None]]

NONE = {"<u2": 2**16 - 1, "<i4": -(2**31)}
"""What stands for a sample that a metric does not apply to, by the type of the array."""

OUTPUTS = "output digests"
"""The array with a digest of each output; no metric has such a name."""


def path_for(root: Path, *, workload: str, engine: str, precision: str) -> Path:
    """Return the place of an accuracy baseline below `root`: no hardware is part of it.

    Raises:
        BaselineError: A name would lead elsewhere.
    """
    file = f"{path_part('engine', engine)}.{path_part('precision', precision)}.json"
    return root / "accuracy" / path_part("workload", workload) / file


def scores_path(path: Path) -> Path:
    """Return the place of the scores that belong to an accuracy baseline."""
    return path.with_suffix(".scores.npz")


def load(path: Path) -> tuple[AccuracyBaseline, dict[str, list[float | None]]] | None:
    """Read an accuracy baseline and its scores by metric and data set index, or None.

    Raises:
        BaselineError: One of the two files is missing, damaged, or not the other's.
    """
    baseline = FILE.load(path)
    if baseline is None:
        return None
    file = scores_path(path)
    cure = (
        f"restore both files (git checkout -- {shlex.quote(str(path))} {shlex.quote(str(file))}), "
        "or delete both and record anew with --mlperf-update=missing"
    )
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BaselineError(f"{file}: cannot be read: {error.strerror}; {cure}") from None
    if hashlib.sha256(content).hexdigest() != baseline.scores_sha256:
        raise BaselineError(f"{file}: holds other scores than {path.name} was written with; {cure}")
    try:
        scores = _unpack(content, baseline.steps)
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise BaselineError(f"{file}: is damaged: {error}; {cure}") from None
    for name, values in scores.items():
        if len(values) != baseline.samples:
            raise BaselineError(
                f"{file}: has {len(values)} scores of {name} for {baseline.samples} samples; {cure}"
            )
    return baseline, scores


def load_outputs(path: Path) -> list[int] | None:
    """Read the digests of the outputs of a baseline that `load` found in order, or None.

    Raises:
        BaselineError: There is not one for each sample.
    """
    import numpy as np

    baseline = FILE.load(path)
    with np.load(scores_path(path), allow_pickle=False) as archive:
        if baseline is None or OUTPUTS not in archive:
            return None
        found: list[int] = archive[OUTPUTS].tolist()
    if len(found) != baseline.samples:
        raise BaselineError(
            f"{scores_path(path)}: has {len(found)} output digests for {baseline.samples} samples; "
            "record anew with --mlperf-update=replace"
        )
    return found


def save(
    path: Path,
    baseline: AccuracyBaseline,
    scores: Scores,
    outputs: Sequence[int] | None = None,
) -> AccuracyBaseline:
    """Write an accuracy baseline and its scores; the JSON file last, so that it vouches for both.

    Args:
        path: Of the JSON file.
        baseline: What it shall hold; `steps` and `scores_sha256` are filled in.
        scores: By metric, one per sample of the data set, in its order.
        outputs: A digest of each output, in the same order, or None.

    Returns:
        The baseline as written.

    Raises:
        BaselineError: They cannot be written.
    """
    steps = {name: steps_per_point(values) for name, values in scores.items()}
    content = _pack(scores, steps, outputs)
    whole = replace(baseline, steps=steps, scores_sha256=hashlib.sha256(content).hexdigest())
    file = scores_path(path)
    try:
        atomic.write_bytes(file, content)
    except OSError as error:
        raise BaselineError(f"{file}: cannot be written: {error.strerror}") from None
    FILE.save(path, whole)
    return whole


def _pack(scores: Scores, steps: Mapping[str, int], outputs: Sequence[int] | None) -> bytes:
    """Return an npz archive of whole steps: 2 bytes a score where they fit, else 4."""
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


def _unpack(content: bytes, steps: Mapping[str, int]) -> dict[str, list[float | None]]:
    import numpy as np

    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        names = [name for name in archive if name != OUTPUTS]
        found = {name: (archive[name].tolist(), NONE[archive[name].dtype.str]) for name in names}
    return {
        name: [None if value == none else value / steps[name] for value in values]
        for name, (values, none) in found.items()
    }
