"""Check the options and files of data sets, and provide their samples by index."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pytest_mlperf import RunError, SuiteError, UnavailableError
from pytest_mlperf.extension import Rule, require_options

CHECKSUMS = {"md5": 32, "sha256": 64}
"""Supported checksum algorithms, and their number of hex digits."""

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Check the options of a file-based data set, and find its files.

    Attributes:
        count: Number of samples to use, starting from the first; None uses all.
    """

    count: int | None = None
    owner: ClassVar[str]
    noun: ClassVar[str]

    def __init_subclass__(cls, dataset: str = "", noun: str = "samples") -> None:
        """Set the names of the data set and of its samples in messages."""
        cls.owner, cls.noun = f"data set {dataset}", noun

    def __post_init__(self) -> None:
        self.check()

    def find(self) -> Any:
        """Find and return the paths of the files for `FileDataset._read`; read no file.

        Option `checksum` is compared with the first item of a tuple, or with every file of a list.
        """
        raise NotImplementedError

    def check(self, *rules: Rule, **units: str) -> None:
        """Raise SuiteError if a rule is not met, or if `count` or `checksum` is invalid.

        `units` maps options that are whole numbers to their units, e.g. size="pixels". Such an
        option may only be None if that is its default.
        """
        require_options(self.owner, rules)
        for name, unit in {**units, "count": self.noun}.items():
            value = getattr(self, name)
            valid = type(value) is int and value >= 1
            if not valid and (value is not None or getattr(type(self), name) is not None):
                message = f"{name} = {value!r} is not a number of {unit}, at least 1"
                raise self.wrong(message, option=name)
        checksum = getattr(self, "checksum", None)
        if checksum is None:
            return
        algorithm, _, digits = str(checksum).lower().partition(":")
        if len(digits) != CHECKSUMS.get(algorithm) or not re.fullmatch("[0-9a-f]+", digits):
            raise self.wrong(
                f'checksum = {checksum!r} must be "md5:" with 32 hex digits or "sha256:" with 64',
                option="checksum",
            )

    def wrong(self, defect: str, *, option: str | Sequence[str]) -> SuiteError:
        """Return a SuiteError with the text `defect` for an option of this data set."""
        return SuiteError(f"{self.owner}: {defect}", option=option)

    @staticmethod
    def require(*places: tuple[bool, str]) -> None:
        """Raise one UnavailableError for all missing files, given as (exists, error message)."""
        if missing := [sentence for is_here, sentence in places if not is_here]:
            raise UnavailableError("; also ".join(missing))


@dataclass(frozen=True, kw_only=True)
class ChecksumOptions(FileOptions):
    """Options of a data set whose file can be compared with a checksum.

    Attributes:
        checksum: "md5:" or "sha256:" and the hex digits of the file; None skips the check.
    """

    path: str
    checksum: str | None = None


class FileDataset(Generic[S]):
    """Base of data sets that read their samples from files."""

    libraries: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[type[FileOptions]]
    repeat: bool = True
    kind: bytes

    _samples: Sequence[S]

    def __init__(self, **options: Any) -> None:
        self._asked: Any = self.options(**options)
        chosen, files = self._asked, self._asked.find()
        if isinstance(chosen, ChecksumOptions):
            first = files[0] if isinstance(files, tuple) else files
            paths = first if isinstance(first, list) else [first]
            check_files([path for path in paths if not path.is_dir()], chosen.checksum)
        self._read(chosen, files)

    def _read(self, options: Any, files: Any) -> None:
        raise NotImplementedError

    @classmethod
    def look(cls, **options: Any) -> None:
        cls.options(**options).find()

    def __len__(self) -> int:
        return len(self._samples)

    def reference(self, index: int) -> Any:
        return self._sample(index)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over the data set's `kind` and the content of all samples, in order."""
        return self._hash().hexdigest()

    def _hash(self) -> hashlib._Hash:
        total = hashlib.sha256(self.kind)
        for part in chain.from_iterable(framed(self._content(n)) for n in range(len(self))):
            total.update(part)
        return total

    def _content(self, index: int) -> Sequence[bytes]:
        raise NotImplementedError

    def _keep(self, samples: Sequence[S], count: int | None, source: object) -> None:
        if not samples:
            raise wrong(source, f"there are no {self.options.noun}", "get it from its source again")
        require_enough(source, count, len(samples), self.options.noun)
        self._samples = samples[:count]

    def _sample(self, index: int) -> S:
        return self._samples[self._checked(index)]

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index!r} of {len(self)}")
        return index


def encode(text: str) -> bytes:
    """Encode text as UTF-8 for a digest; lone surrogates are allowed."""
    return text.encode("utf-8", "surrogatepass")


def framed(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield each part after its length, so that ("ab", "") and ("a", "b") hash differently."""
    for part in parts:
        yield len(part).to_bytes(8, "little")
        yield part


def check_file(path: Path, checksum: str | None) -> None:
    """Raise RunError if a file does not match "md5:..." or "sha256:..."; None skips the check."""
    check_files([path], checksum)


def check_files(paths: Sequence[Path], checksum: str | None) -> None:
    """Raise RunError if the concatenated files do not match a checksum; None skips the check."""
    if checksum is None or not paths:
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
            f"{algorithm} is {actual}, expected {digits}: the file is damaged, incomplete or "
            "the wrong one",
            "get it from its source again, or correct checksum",
        )


def require_enough(source: object, count: int | None, total: int, noun: str) -> None:
    """Raise SuiteError if `count` exceeds the `total` number of samples, named by `noun`."""
    if count is not None and count > total:
        raise SuiteError(
            f"{source}: count = {count!r}, but there are {total:,} {noun}; lower count, or leave "
            "it out to use all",
            option="count",
        )


def first_file(paths: Iterable[Path]) -> Path | None:
    """Return the first of these paths that is a file, or None."""
    return next((place for place in paths if place.is_file()), None)


def find_file(
    path: Path,
    *,
    official: Sequence[str] = (),
    endings: tuple[str, ...],
    whole: str,
    advice: str = "set the data set's path to the file",
) -> Path:
    """Return the path itself, else the official file in a folder, else its only file.

    The first of the `official` names wins; others end in `endings`. In the UnavailableError,
    `whole` names the kind of file.
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
    lacks = f"neither {' nor '.join(official)}" if len(official) > 1 else f"no {''.join(official)}"
    defect = f"{lacks}, and more than one other {whole} ({names})"
    if not files:
        defect = f"{lacks}, and no other {whole}"
    if not official:
        defect = f"no file that ends with {' or '.join(endings)}"
        defect = f"more than one {whole} ({names})" if files else defect
    raise UnavailableError(f"{path}: this folder has {defect}; {advice}")


def wrong(where: object, defect: str, advice: str) -> RunError:
    """Return a RunError for invalid content of a data set; `where` is its location in the file."""
    return RunError("dataset", f"{where}: {defect}; {advice}")
