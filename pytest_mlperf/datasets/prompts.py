"""Prompts of language models, as token ids or as text, from the columns of a file of samples."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Prompts(Protocol):
    """Prompts by index."""

    def prompt(self, index: int) -> list[int] | str:
        """Return one prompt, as an engine takes it."""
        ...

    def content(self, index: int) -> bytes:
        """Return the bytes of one prompt that a digest is made of."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file of samples, for messages.

    Attributes:
        file: Where it lies.
        row: What one sample is called there; they are counted from 0.
        column: What a part of it is called there.
        whole: What the file is.
    """

    file: Path
    row: str = "row"
    column: str = "column"
    whole: str = "table"

    def wrong(self, row: int, column: str, what: str) -> RunError:
        """Return the error for one cell."""
        return RunError(
            "dataset",
            f"{self.file}: {self.row} {row}, {self.column} {column!r}: {what}; correct the "
            f"{self.whole}, or get it from its source again",
        )

    def check_size(self, rows: int, count: int | None) -> None:
        """Refuse a file without samples, or with fewer than `count`.

        Raises:
            RunError: There are none.
            SuiteError: There are too few.
        """
        if rows == 0:
            raise RunError(
                "dataset",
                f"{self.file}: the {self.whole} has no {self.row}s; get it from its source again",
            )
        if count is not None and count > rows:
            raise SuiteError(
                f"{self.file}: count = {count!r}, but the {self.whole} has {rows} {self.row}s; "
                "lower count, or leave it out to use all"
            )

    def texts(self, column: str, cells: Sequence[Any]) -> list[str]:
        """Return cells that must be text.

        Raises:
            RunError: One is something else.
        """
        for row, cell in enumerate(cells):
            if not isinstance(cell, str):
                kind = type(cell).__name__
                raise self.wrong(row, column, f"a value of type {kind} is no text")
        return list(cells)


class TokenLists:
    """Lists of token ids, one after the other: as lists they would take nine times the memory."""

    def __init__(
        self, source: Source, column: str, cells: Sequence[Any], *, what: str = "prompt"
    ) -> None:
        """Check and join the lists.

        Args:
            source: Where they are from.
            column: Name of the column or key.
            cells: One list each: an array of whole numbers of shape (ids,).
            what: What a list is, for messages.

        Raises:
            RunError: A cell is empty, or no list of token ids.
        """
        import numpy as np

        for row, cell in enumerate(cells):
            if defect := token_defect(cell, what):
                raise source.wrong(row, column, defect)
        self._tokens: NDArray[np.int32] = np.concatenate(cells, dtype=np.int32, casting="unsafe")
        self._ends: NDArray[np.int64] = np.cumsum([len(cell) for cell in cells])

    def prompt(self, index: int) -> list[int]:
        """Return one list."""
        tokens: list[int] = self._slice(index).tolist()
        return tokens

    def mean_length(self, indices: Sequence[int]) -> float:
        """Return the mean number of token ids of these lists."""
        return fmean(len(self._slice(index)) for index in indices)

    def content(self, index: int) -> bytes:
        """Return one list as little-endian int32."""
        return self._slice(index).astype("<i4").tobytes()

    def _slice(self, index: int) -> NDArray[np.int32]:
        return self._tokens[self._ends[index - 1] if index else 0 : self._ends[index]]


def mean_prompt(prompts: Prompts, indices: Sequence[int]) -> dict[str, float]:
    """Return the mean prompt of some samples, "input_tokens", where it is given as tokens."""
    if not isinstance(prompts, TokenLists):
        return {}
    return {"input_tokens": prompts.mean_length(indices)}


class Template:
    """A prompt's fixed text, and the fields that samples fill in; they are never filled in again.

    Attributes:
        fields: Names of the fields that occur.
    """

    def __init__(self, dataset: str, text: str, *, valid: Sequence[str], required: str) -> None:
        """Parse a template: `{name}` is a field, `{{` and `}}` are braces.

        Args:
            dataset: Name of the data set, for messages.
            text: The template.
            valid: Names of the fields that may occur.
            required: The one that must.

        Raises:
            SuiteError: The template is malformed, or has other fields.
        """
        if not isinstance(text, str):
            raise SuiteError(f"data set {dataset}: template = {text!r} is no text")
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise SuiteError(
                f"data set {dataset}: template = {text!r}: {error}; write {{{{ and }}}} for braces "
                "that are part of the prompt"
            ) from error
        names = " and ".join(f"{{{name}}}" for name in valid)
        for _, name, layout, conversion in parsed:
            if name is not None and (name not in valid or layout or conversion):
                raise SuiteError(
                    f"data set {dataset}: template = {text!r} has the field {name!r}; only "
                    f"{names} can be filled in, without a format"
                )
        self._pieces = [(fixed, name or "") for fixed, name, _, _ in parsed]
        self.fields = frozenset(name for _, name in self._pieces if name)
        if required not in self.fields:
            raise SuiteError(f"data set {dataset}: template = {text!r} lacks {{{required}}}")

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the prompt with the values of its fields."""
        return "".join(fixed + (values[name] if name else "") for fixed, name in self._pieces)


def check_count(dataset: str, count: object) -> None:
    """Refuse an option `count` that is neither None nor a number from 1 on.

    Raises:
        SuiteError: It is none.
    """
    if count is not None and (type(count) is not int or count < 1):
        raise SuiteError(
            f"data set {dataset}: count = {count!r} is not a number of samples, at least 1"
        )


def encode(text: str) -> bytes:
    """Return text as UTF-8, as digests take it; also what is no valid text."""
    return text.encode("utf-8", "surrogatepass")


def framed(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield each part after its length, so that a digest tells ("ab", "") from ("a", "b")."""
    for part in parts:
        yield len(part).to_bytes(8, "little")
        yield part


def find_file(
    path: Path,
    *,
    official: Sequence[str],
    endings: tuple[str, ...],
    lacks: str,
    whole: str,
    advice: str,
) -> Path:
    """Return the file of samples: the path itself, or the official or the only one in a folder.

    Files are only looked for, not read.

    Args:
        path: What the suite names.
        official: Names of the official files; the first one found wins.
        endings: How other names end.
        lacks: What a folder without official files has not, e.g. "no a.json".
        whole: What the file is, for messages.
        advice: What to do where there is none.

    Raises:
        UnavailableError: There is no such file, or it is not clear which.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise UnavailableError(f"{path}: this {whole} does not exist; {advice}")
    for name in official:
        if (path / name).is_file():
            return path / name
    found = sorted(entry for entry in path.iterdir() if entry.name.endswith(endings))
    if len(found) == 1:
        return found[0]
    names = ", ".join(entry.name for entry in found[:5])
    raise UnavailableError(
        f"{path}: this folder has {lacks}, and "
        + (f"more than one other {whole} ({names})" if found else f"no other {whole}")
        + f"; {advice}"
    )


def token_defect(cell: Any, what: str) -> str | None:
    """Return what is wrong with a list of token ids, or None."""
    import numpy as np

    if isinstance(cell, list | np.ndarray) and len(cell) == 0:
        return f"the {what} is empty"
    if not isinstance(cell, np.ndarray) or cell.dtype.kind not in "iu":
        return f"{_describe(cell)} is no list of whole numbers"
    if cell.min() < 0 or cell.max() >= 2**31:
        return "a token is negative or above 2**31"
    return None


def _describe(cell: Any) -> str:
    import numpy as np

    if isinstance(cell, np.ndarray):
        return f"an array of {cell.dtype}"
    if isinstance(cell, list):
        kinds = sorted({type(item).__name__ for item in cell})
        return f"a list of {' and '.join(kinds)}"
    return f"a value of type {type(cell).__name__}"
