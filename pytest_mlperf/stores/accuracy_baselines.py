"""Accuracy baselines in git: a reviewed JSON file, and each sample's scores beside it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pytest_mlperf.core.accuracy_baseline import SCHEMA, AccuracyBaseline, steps_per_point
from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.documents import Document, written_to
from pytest_mlperf.stores.foreign import UnfitError, read_regular
from pytest_mlperf.stores.score_arrays import LARGEST, OUTPUTS, Scores, arrays, pack, unpack

FILE = Document(AccuracyBaseline, schema=SCHEMA, what="accuracy baseline")

ENDING = ".scores.npz"

NAMED = 12
"""Hex digits of their digest that name a file of scores."""

Found = TypeVar("Found")

_BROKEN = (
    *(ValueError, TypeError, KeyError, OSError, EOFError, RecursionError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What damaged archives and headers raise."""


def path_for(root: Path, *, workload: str, engine: str, precision: str) -> Path:
    """Return the place of an accuracy baseline below `root`: no hardware is part of it.

    Raises:
        BaselineError: A name would lead elsewhere.
    """
    file = f"{path_part('engine', engine)}.{path_part('precision', precision)}.json"
    return root / "accuracy" / path_part("workload", workload) / file


def scores_path(path: Path) -> Path:
    """Return the place of the scores that an accuracy baseline vouches for.

    Their digest is in the name: no write changes a file that a baseline vouches for, and a review
    sees which one it is. Older releases, and no baseline, have no digest there.

    Raises:
        BaselineError: The baseline is damaged.
    """
    baseline = FILE.load(path)
    return path.with_suffix(ENDING) if baseline is None else _found(path, baseline)


def load(path: Path) -> tuple[AccuracyBaseline, dict[str, list[float | None]]] | None:
    """Read an accuracy baseline and its scores by metric and data set index, or None.

    Raises:
        BaselineError: One of the two files is missing, damaged, or not the other's.
    """
    both = _load(path)
    if both is None:
        return None
    baseline, file, content = both
    return baseline, _checked(path, baseline, file, lambda: unpack(content, baseline))


def load_outputs(path: Path) -> list[int] | None:
    """Read the digests of the outputs of a baseline that `load` found in order, or None.

    Raises:
        BaselineError: There is not one for each sample.
    """
    both = _load(path)
    if both is None:
        return None
    baseline, file, content = both
    found = _checked(path, baseline, file, lambda: arrays(content, baseline, OUTPUTS))
    if not found:
        return None
    digests: list[int] = found[OUTPUTS].tolist()
    if len(digests) != baseline.samples:
        raise BaselineError(
            f"{file}: has {len(digests)} output digests for {baseline.samples} samples; "
            "record anew with --mlperf-update=replace"
        )
    return digests


def save(
    path: Path,
    baseline: AccuracyBaseline,
    scores: Scores,
    outputs: Sequence[int] | None = None,
) -> AccuracyBaseline:
    """Write an accuracy baseline and its scores.

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
    with FILE.alone(path) as place:
        return _put(path, baseline, scores, outputs, place)


def replace_scores(
    path: Path,
    make: Callable[[AccuracyBaseline | None], AccuracyBaseline],
    scores: Scores,
    outputs: Sequence[int] | None = None,
) -> AccuracyBaseline:
    """Write an accuracy baseline in the place of what is there, every other writer kept out.

    Args:
        path: Of the JSON file.
        make: Given what is there now, or None, returns what shall be.
        scores: As in `save`.
        outputs: As in `save`.

    Raises:
        BaselineError: What is there is damaged, or they cannot be written.
    """
    with FILE.alone(path) as place:
        return _put(path, make(FILE.load(path)), scores, outputs, place)


def copy(source: Path, path: Path) -> None:
    """Write the accuracy baseline of one place, with its scores, to another.

    Raises:
        BaselineError: It is not there, damaged, or cannot be written.
    """
    both = _load(source)
    if both is None:
        raise BaselineError(f"{source}: is gone")
    baseline, _, content = both
    with FILE.alone(path) as place:
        _put_both(path, baseline, content, place)


# --- writing ---------------------------------------------------------------------------------


def _put(
    path: Path,
    baseline: AccuracyBaseline,
    scores: Scores,
    outputs: Sequence[int] | None,
    place: Path,
) -> AccuracyBaseline:
    steps = {name: steps_per_point(values) for name, values in scores.items()}
    content = pack(scores, steps, outputs)
    whole = replace(baseline, steps=steps, scores_sha256=hashlib.sha256(content).hexdigest())
    _put_both(path, whole, content, place)
    return whole


def _put_both(path: Path, baseline: AccuracyBaseline, content: bytes, place: Path) -> None:
    """Write the scores first, then the file that vouches for them; then older scores may go."""
    target = written_to(path)
    file = _named(target, baseline)
    try:
        new = not file.exists()
        atomic.write_bytes(file, content, place)
    except OSError as error:
        raise BaselineError(f"{file}: cannot be written: {error.strerror}") from None
    try:
        FILE.put(path, baseline, place)
    except BaseException:
        if new:  # nothing vouches for it
            with contextlib.suppress(OSError):
                file.unlink()
        raise
    for old in _scores_beside(target):
        if old != file:
            with contextlib.suppress(OSError):  # the next write tries again
                old.unlink()


def _scores_beside(path: Path) -> list[Path]:
    """Return every file of scores of one baseline: also those of killed writers, and older ones."""
    name = re.compile(rf"{re.escape(path.stem)}(\.[0-9a-f]{{{NAMED}}})?{re.escape(ENDING)}")
    return sorted(file for file in path.parent.iterdir() if name.fullmatch(file.name))


# --- reading ---------------------------------------------------------------------------------


def _load(path: Path) -> tuple[AccuracyBaseline, Path, bytes] | None:
    """Return a baseline with the file and the bytes of its scores.

    A writer beside us removes the older scores once the new file vouches for the newer: then that
    is read. A file that still says the same has lost its scores.
    """
    baseline = FILE.load(path)
    while baseline is not None:
        try:
            return baseline, *_scores_of(path, baseline)
        except BaselineError:
            newer = FILE.load(path)
            if newer == baseline:
                raise
            baseline = newer
    return None


def _scores_of(path: Path, baseline: AccuracyBaseline) -> tuple[Path, bytes]:
    """Return where a baseline's scores are, and their bytes."""
    file = _found(path, baseline)
    cure = _cure(path, file)
    try:
        content = read_regular(file, LARGEST)
    except UnfitError as error:
        raise BaselineError(f"{file}: is {error}, and no file of scores; {cure}") from None
    except OSError as error:
        raise BaselineError(f"{file}: cannot be read: {error.strerror}; {cure}") from None
    if hashlib.sha256(content).hexdigest() != baseline.scores_sha256:
        raise BaselineError(f"{file}: holds other scores than {path.name} was written with; {cure}")
    return file, content


def _named(path: Path, baseline: AccuracyBaseline) -> Path:
    digest = baseline.scores_sha256
    if not re.fullmatch(r"[0-9a-f]{64}", digest):  # it becomes a part of a path
        raise BaselineError(
            f"{path}: scores_sha256 is {digest!r}, and no SHA-256. Restore the file (git checkout "
            f"-- {shlex.quote(str(path))}), or delete it and record anew with "
            "--mlperf-update=missing"
        )
    return path.with_suffix(f".{digest[:NAMED]}{ENDING}")


def _found(path: Path, baseline: AccuracyBaseline) -> Path:
    """Return where scores are: beside the file, or beside what it links to."""
    places = dict.fromkeys((path, Path(os.path.realpath(path))))
    named = [_named(one, baseline) for one in places]
    others = [file for one in places for file in _scores_beside(one)]  # of older releases too
    return next((one for one in (*named, *others) if one.exists()), named[0])


def _checked(
    path: Path, baseline: AccuracyBaseline, file: Path, read: Callable[[], Found]
) -> Found:
    """Return what is read from scores; whatever is wrong with them is one sentence."""
    try:
        return read()
    except _BROKEN as error:
        raise BaselineError(f"{file}: is damaged: {error}; {_cure(path, file)}") from None
    except MemoryError:
        raise BaselineError(
            f"{file}: has more scores than there is memory for: {baseline.samples:,} samples"
        ) from None


def _cure(path: Path, file: Path) -> str:
    return (
        f"restore both files (git checkout -- {shlex.quote(str(path))} {shlex.quote(str(file))}), "
        "or delete both and record anew with --mlperf-update=missing"
    )
