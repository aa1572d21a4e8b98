"""What data sets of files share: checks of options and files, and samples by index."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pytest_mlperf import RunError, SuiteError, UnavailableError
from pytest_mlperf.extension import Rule, require_options

CHECKSUMS = {"md5": 32, "sha256": 64}
"""Algorithms that sources publish, and the hex digits of each."""

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Options of a data set of files: they refuse what is wrong in itself, and find the files.

    Attributes:
        count: Use the first `count` samples only; None uses all.
    """

    count: int | None = None

    def find(self) -> Any:
        """Look for the files without reading them; return what `FileDataset._read` gets."""
        raise NotImplementedError

    def check(self, dataset: str, *rules: Rule, **units: str) -> None:
        """Refuse broken rules, a wrong `count` and a wrong `checksum`.

        `units` names whole-number options and their units, e.g. size="pixels"; None is valid if it
        is the default.
        """
        owner = f"data set {dataset}"
        require_options(owner, rules)
        for name, unit in {**units, "count": units.get("count", "samples")}.items():
            value = getattr(self, name)
            valid = type(value) is int and value >= 1
            if not valid and (value is not None or getattr(type(self), name) is not None):
                number = f"a number of {unit}" if unit else "a number"
                message = f"{owner}: {name} = {value!r} is not {number}, at least 1"
                raise SuiteError(message, option=name)
        checksum = getattr(self, "checksum", None)
        if checksum is None:
            return
        algorithm, _, digits = str(checksum).lower().partition(":")
        if len(digits) != CHECKSUMS.get(algorithm) or not re.fullmatch("[0-9a-f]+", digits):
            raise SuiteError(
                f'{owner}: checksum = {checksum!r} must be "md5:" with 32 hex digits or "sha256:" '
                "with 64",
                option="checksum",
            )

    @staticmethod
    def require(*places: tuple[bool, str]) -> None:
        """Report all missing places in one error; each is (whether it is here, message if not)."""
        if missing := [sentence for is_here, sentence in places if not is_here]:
            raise UnavailableError("; also ".join(missing))


@dataclass(frozen=True, kw_only=True)
class ChecksumOptions(FileOptions):
    """Those of a data set with a file that is compared with a checksum.

    Attributes:
        checksum: "md5:" or "sha256:" and the hex digits of the file; None checks nothing.
    """

    checksum: str | None = None


class FileDataset(Generic[S]):
    """Samples by index, from files whose place is an option."""

    libraries: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[type[FileOptions]]
    unit: ClassVar[str] = "sample"
    repeat: bool = True

    _samples: Sequence[S]

    def __init__(self, **options: Any) -> None:
        asked = self.options(**options)
        self._read(asked, asked.find())

    def _read(self, asked: Any, files: Any) -> None:
        raise NotImplementedError

    @classmethod
    def look(cls, **options: Any) -> None:
        cls.options(**options).find()

    def __len__(self) -> int:
        return len(self._samples)

    def _keep(self, samples: Sequence[S], count: int | None, place: object, holds: str) -> None:
        require_enough(place, count, len(samples), holds)
        self._samples = samples[:count]

    def _sample(self, index: int) -> S:
        return self._samples[self._checked(index)]

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.unit} {index!r} of {len(self)}")
        return index


def check_file(path: Path, checksum: str | None) -> None:
    """Read a whole file once and compare it with "md5:..." or "sha256:..."; None passes."""
    check_files([path], checksum)


def check_files(paths: Sequence[Path], checksum: str | None) -> None:
    """Compare files, one after the other, with "md5:..." or "sha256:..."; None passes."""
    if checksum is None:
        return
    algorithm, _, digits = checksum.lower().partition(":")
    total = hashlib.new(algorithm, usedforsecurity=False)
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                total.update(block)
    actual = total.hexdigest()
    if actual != digits:
        raise wrong(
            paths[0] if len(paths) == 1 else f"{paths[0].parent}: {len(paths)} files",
            f"{algorithm} is {actual}, not the {digits} asked for: the file is damaged, incomplete "
            "or another one",
            "get it from its source again, or correct checksum",
        )


def require_enough(place: object, count: int | None, total: int, holds: str) -> None:
    """Refuse a `count` above the total; `holds` says what is there: "the map lists 3 images"."""
    if count is not None and count > total:
        raise SuiteError(
            f"{place}: count = {count!r}, but {holds}; lower count, or leave it out to use all",
            option="count",
        )


def first_file(places: Iterable[Path]) -> Path | None:
    """Return the first of these files that is here."""
    return next((place for place in places if place.is_file()), None)


def find_file(
    path: Path,
    *,
    official: Sequence[str],
    endings: tuple[str, ...],
    lacks: str,
    whole: str,
    advice: str,
) -> Path:
    """Return the path itself, or the official file in a folder, or its only file; read none.

    The first of the `official` names wins; other names end in `endings`. Messages say what the
    folder `lacks` (e.g. "no a.json") and what the file is (`whole`).
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise UnavailableError(f"{path}: this {whole} does not exist; {advice}")
    if file := first_file(path / name for name in official):
        return file
    files = sorted(entry for entry in path.iterdir() if entry.name.endswith(endings))
    if len(files) == 1:
        return files[0]
    names = ", ".join(entry.name for entry in files[:5])
    raise UnavailableError(
        f"{path}: this folder has {lacks}, and "
        + (f"more than one other {whole} ({names})" if files else f"no other {whole}")
        + f"; {advice}"
    )


def wrong(where: object, defect: str, advice: str) -> RunError:
    """Return the error for content that is not as it should be."""
    return RunError("dataset", f"{where}: {defect}; {advice}")
