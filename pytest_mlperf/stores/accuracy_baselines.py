"""Store accuracy baselines in git: a JSON file, and a file with each sample's scores."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pytest_mlperf.core.baseline import ACCURACY_SCHEMA, AccuracyBaseline, steps_per_point
from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.stores import atomic, foreign
from pytest_mlperf.stores.documents import Document, write_target

Scores = Mapping[str, Sequence[float | None]]

MISSING_VALUES = {"<u2": 2**16 - 1, "<i4": -(2**31)}
"""Placeholder of a sample that a metric does not apply to, by the data type of the array."""

MAX_SCORES_BYTES = 256 * 2**20
"""Maximum size of a scores file, and of one unpacked metric: 67 million samples."""

MAX_SCORE_BYTES = 4
HEADER = 1024
"""Upper bound of the bytes of an array's header."""

OUTPUTS = "output digests"
"""Name of the array of output digests; no metric has this name."""


def pack_scores(scores: Scores, steps: Mapping[str, int], outputs: Sequence[int] | None) -> bytes:
    """Return an .npz archive of integers (score x its metric's `steps`) and hashes of outputs."""
    np, arrays = foreign.numpy(), {}
    for name in sorted(scores):
        there = [value for value in scores[name] if value is not None]
        whole = np.array([round(value * steps[name]) for value in there], dtype=np.int64)
        small = bool(np.all((whole >= 0) & (whole < MISSING_VALUES["<u2"])))
        dtype = "<u2" if small else "<i4"
        if not small and bool(np.any(np.abs(whole) > np.iinfo("<i4").max)):
            limit = np.iinfo("<i4").max / steps[name]
            raise BaselineError(
                f"the scorer gave {max(there, key=abs)} as {name} of a sample; a baseline holds "
                f"scores up to ±{limit:,.6g}: let the scorer use a larger unit"
            )
        arrays[name] = np.full(len(scores[name]), MISSING_VALUES[dtype], dtype=dtype)
        arrays[name][[value is not None for value in scores[name]]] = whole.astype(dtype)
    if outputs is not None:
        arrays[OUTPUTS] = np.array(outputs, dtype="<u2")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def unpack(content: bytes, baseline: AccuracyBaseline) -> dict[str, list[float | None]]:
    """Return the scores in an archive by metric; raise ValueError if they do not fit `baseline`."""
    scores = {}
    if missing := set(baseline.steps) - set(read := arrays(content, baseline, *baseline.steps)):
        raise ValueError(f"lacks the scores of {min(missing)}")
    for name, array in read.items():
        none, steps = MISSING_VALUES[array.dtype.str], baseline.steps[name]
        if len(array) != baseline.samples:
            raise ValueError(f"has {len(array)} scores of {name} for {baseline.samples} samples")
        scores[name] = [None if value == none else value / steps for value in array.tolist()]
    return scores


def arrays(content: bytes, baseline: AccuracyBaseline, *names: str) -> dict[str, Any]:
    """Return arrays of an archive by name; raise ValueError if one is unknown or too large."""
    most = min(baseline.samples * MAX_SCORE_BYTES + HEADER, MAX_SCORES_BYTES)
    archive = foreign.NumpyArchive(content, max_bytes=most)
    if unknown := archive.names - {*baseline.steps, OUTPUTS}:
        raise ValueError(f"holds {min(unknown)!r}, which is not a metric of {baseline.workload}")
    read = {name: archive.read(name) for name in names if name in archive.names}
    if odd := next((name for name, values in read.items() if values.ndim != 1), None):
        raise ValueError(f"{odd} has {read[odd].ndim} dimensions; scores have one")
    return read


ACCURACY_DOCUMENT = Document(AccuracyBaseline, schema=ACCURACY_SCHEMA, title="accuracy baseline")

SCORES_SUFFIX = ".scores.npz"

NAME_HEX_DIGITS = 12
Found = TypeVar("Found")


def path_for(root: Path, *, workload: str, engine: str, precision: str, data: str = "") -> Path:
    """Return the path of an accuracy baseline; `data` is a scenario that has its own data set."""
    parts = {"engine": engine, "precision": precision, **({"scenario": data} if data else {})}
    file = ".".join([*(path_part(noun, name) for noun, name in parts.items()), "json"])
    return root / "accuracy" / path_part("workload", workload) / file


def scores_path(path: Path) -> Path:
    """Return the path of the scores file that belongs to an accuracy baseline.

    The file name contains the scores' digest, so that no write changes the file of a valid
    baseline. Older releases wrote names without a digest.
    """
    baseline = ACCURACY_DOCUMENT.load(path)
    return path.with_suffix(SCORES_SUFFIX) if baseline is None else _scores_file(path, baseline)


def load(path: Path) -> tuple[AccuracyBaseline, dict[str, list[float | None]]] | None:
    """Read a baseline and its scores by metric; None if absent, BaselineError if damaged."""
    if (both := _load(path)) is None:
        return None
    baseline, file, content = both
    return baseline, _read_archive(path, baseline, file, lambda: unpack(content, baseline))


def load_outputs(path: Path) -> list[int] | None:
    """Read the output digests of a baseline that `load` accepts; None if it has none."""
    if (both := _load(path)) is None:
        return None
    baseline, file, content = both
    members = _read_archive(path, baseline, file, lambda: arrays(content, baseline, OUTPUTS))
    if not members:
        return None
    digests: list[int] = members[OUTPUTS].tolist()
    if len(digests) != baseline.samples:
        raise BaselineError(
            f"{file}: has {len(digests)} output digests for {baseline.samples} samples; "
            "record anew with --mlperf-update=replace"
        )
    return digests


def replace_scores(
    path: Path,
    make: Callable[[AccuracyBaseline | None], AccuracyBaseline],
    scores: Scores,
    outputs: Sequence[int] | None = None,
) -> AccuracyBaseline:
    """Write an accuracy baseline and its scores under the lock of its folder.

    `make` gets the old baseline, or None, and returns the new one; `steps` and `scores_sha256` are
    filled in here. Scores and output digests (`outputs`) are in the order of the data set.
    """
    with ACCURACY_DOCUMENT.alone(path) as locked:
        steps = {name: steps_per_point(values) for name, values in scores.items()}
        baseline = make(ACCURACY_DOCUMENT.load(path))
        content = pack_scores(scores, steps, outputs)
        whole = replace(baseline, steps=steps, scores_sha256=hashlib.sha256(content).hexdigest())
        _put_both(path, whole, content, locked)
    return whole


def copy(source: Path, path: Path) -> None:
    """Copy an accuracy baseline and its scores to another path."""
    if (both := _load(source)) is None:
        raise BaselineError(f"{source}: is gone")
    baseline, _, content = both
    with ACCURACY_DOCUMENT.alone(path) as locked:
        _put_both(path, baseline, content, locked)


def _put_both(
    path: Path, baseline: AccuracyBaseline, content: bytes, locked: atomic.LockedFolder
) -> None:
    """Write the scores, then the baseline that names them; then remove older scores."""
    target = write_target(path)
    file = _named(target, baseline)
    try:
        new = file.name not in atomic.names_in(locked.folder)
        atomic.write_bytes(file, content, locked)
    except OSError as error:
        raise BaselineError(f"{file}: cannot be written: {error.strerror}") from None
    try:
        ACCURACY_DOCUMENT.put(path, baseline, locked)
    except BaseException:
        if new:  # no baseline refers to it
            with contextlib.suppress(OSError):
                os.unlink(file.name, dir_fd=locked.folder)
        raise
    for old in _scores_among(atomic.names_in(locked.folder), path=target):
        if old != file.name:
            with contextlib.suppress(OSError):  # the next write tries again
                os.unlink(old, dir_fd=locked.folder)


def _scores_among(names: Iterable[str], *, path: Path) -> list[str]:
    name = re.compile(
        rf"{re.escape(path.stem)}(\.[0-9a-f]{{{NAME_HEX_DIGITS}}})?{re.escape(SCORES_SUFFIX)}"
    )
    return sorted(filter(name.fullmatch, names))


def _load(path: Path) -> tuple[AccuracyBaseline, Path, bytes] | None:
    """Return a baseline, and the path and bytes of its scores; None if there is no baseline.

    Reads again if another process replaces both files in between. Raises BaselineError if the
    scores are missing or damaged.
    """
    baseline = ACCURACY_DOCUMENT.load(path)
    while baseline is not None:
        try:
            return baseline, *_scores_of(path, baseline)
        except BaselineError:
            newer = ACCURACY_DOCUMENT.load(path)
            if newer == baseline:
                raise
            baseline = newer
    return None


def _scores_of(path: Path, baseline: AccuracyBaseline) -> tuple[Path, bytes]:
    file = _scores_file(path, baseline)
    try:
        content = foreign.read_regular(file, MAX_SCORES_BYTES)
    except foreign.PointerError as pointer:
        raise BaselineError(f"{file} is {pointer.strerror}") from None
    except foreign.UnfitError as error:
        defect = f"cannot be read as a file of scores: it is {error}"
    except OSError as error:
        defect = f"cannot be read: {error.strerror}"
    else:
        if hashlib.sha256(content).hexdigest() == baseline.scores_sha256:
            return file, content
        defect = f"its SHA-256 is not the scores_sha256 in {path.name}"
    raise BaselineError(f"{file}: {defect}; {_cure(path, file)}")


def _named(path: Path, baseline: AccuracyBaseline) -> Path:
    digest = baseline.scores_sha256
    if not re.fullmatch(r"[0-9a-f]{64}", digest):  # it becomes part of a path
        raise BaselineError(
            f"{path}: scores_sha256 is {digest!r}, which is not a SHA-256. Restore the file "
            f"(git checkout -- {shlex.quote(str(path))}), or delete it and record anew with "
            "--mlperf-update=missing"
        )
    return path.with_suffix(f".{digest[:NAME_HEX_DIGITS]}{SCORES_SUFFIX}")


def _scores_file(path: Path, baseline: AccuracyBaseline) -> Path:
    """Return the path of a baseline's scores: in its folder, or in that of its link target."""
    places = dict.fromkeys((path, Path(os.path.realpath(path))))
    named = [_named(one, baseline) for one in places]
    others = [  # of older releases too
        one.with_name(name)
        for one in places
        for name in _scores_among((file.name for file in one.parent.iterdir()), path=one)
    ]
    return next((one for one in (*named, *others) if one.exists()), named[0])


def _read_archive(
    path: Path, baseline: AccuracyBaseline, file: Path, read: Callable[[], Found]
) -> Found:
    """Return `read()`; raise BaselineError if the archive is damaged or too large for memory."""
    try:
        return read()
    except foreign.BROKEN_ARCHIVES as error:
        raise BaselineError(f"{file}: is damaged: {error}; {_cure(path, file)}") from None
    except MemoryError:
        raise BaselineError(
            f"{file}: the scores of {baseline.samples:,} samples do not fit into memory; free "
            "memory, or use a machine with more"
        ) from None


def _cure(path: Path, file: Path) -> str:
    return (
        f"restore both files (git checkout -- {shlex.quote(str(path))} {shlex.quote(str(file))}), "
        "or delete both and record again: --mlperf-update=missing"
    )
