"""Read prompts of language models from columns of a file; store them as token ids or text."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from pytest_mlperf import RunError, SuiteError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.lazy import NDArray, np

MAX_LENGTH_TOKENS = 2**22
"""Maximum of a length, in tokens: four times the longest known context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFile:
    """Check cells of a table file; `row`, `column` and `whole` are what errors call its parts."""

    file: Path
    row: str = "row"
    column: str = "column"
    whole: str = "table"

    def wrong(self, row: int, column: str, defect: str) -> RunError:
        return files.wrong(
            f"{self.file}: {self.row} {row}, {self.column} {column!r}",
            defect,
            f"correct the {self.whole}, or get it from its source again",
        )

    def check_size(self, rows: int, count: int | None) -> None:
        """Raise RunError if a file has no samples, and SuiteError if it has fewer than `count`."""
        if rows == 0:
            raise files.wrong(
                self.file, f"the {self.whole} has no {self.row}s", "get it from its source again"
            )
        files.require_enough(self.file, count, rows, f"{self.row}s")

    def texts(self, column: str, cells: Sequence[Any]) -> list[str]:
        return [self.text(row, column, cell) for row, cell in enumerate(cells)]

    def length(self, row: int, column: str, cell: Any) -> int:
        if type(cell) is not int or not 1 <= cell <= MAX_LENGTH_TOKENS:
            defect = f"is not a number of tokens from 1 to {MAX_LENGTH_TOKENS}"
            raise self.wrong(row, column, f"{repr(cell)[:40]} {defect}")
        return cell

    def text(self, row: int, column: str, cell: Any) -> str:
        if not isinstance(cell, str):
            raise self.wrong(row, column, f"a value of type {type(cell).__name__} is not text")
        return cell


class TokenLists:
    """Store lists of token ids in one array; Python lists would take nine times the memory."""

    def __init__(
        self, source: SampleFile, column: str, cells: Sequence[Any], *, kind: str = "prompt"
    ) -> None:
        lists = [token_list(source, row, column, cell, kind) for row, cell in enumerate(cells)]
        self._tokens: NDArray[np.int32] = np.concatenate(lists)
        self._ends: NDArray[np.int64] = np.cumsum([len(tokens) for tokens in lists])

    def prompt(self, index: int) -> list[int]:
        tokens: list[int] = self._slice(index).tolist()
        return tokens

    def mean_length(self, indices: Sequence[int]) -> float:
        return fmean(len(self._slice(index)) for index in indices)

    def content(self, index: int) -> bytes:
        """Return one list as little-endian int32."""
        return self._slice(index).astype("<i4").tobytes()

    def _slice(self, index: int) -> NDArray[np.int32]:
        return self._tokens[self._ends[index - 1] if index else 0 : self._ends[index]]


class TextPrompts:
    """Store the fields of text prompts as UTF-8 to save memory; build the prompts on access."""

    def __init__(self, template: Template, columns: Mapping[str, Sequence[bytes]]) -> None:
        self._template = template
        self._columns = {name: columns[name] for name in template.fields}

    def prompt(self, index: int) -> str:
        return self._template.fill(
            {
                name: cells[index].decode("utf-8", "surrogatepass")
                for name, cells in self._columns.items()
            }
        )

    def content(self, index: int) -> bytes:
        return files.encode(self.prompt(index))


class PromptDataset(files.FileDataset[Any]):
    """Base of data sets of prompts; the samples read from the file are the reference answers."""

    _prompts: TokenLists | TextPrompts

    def input(self, index: int) -> list[int] | str:
        return self._prompts.prompt(self._checked(index))

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return "input_tokens", the mean length of these prompts; {} if prompts are text."""
        if not isinstance(self._prompts, TokenLists):
            return {}
        return {"input_tokens": self._prompts.mean_length(indices)}


@dataclass(frozen=True, kw_only=True)
class TemplateOptions(files.ChecksumOptions):
    """Options of a data set of prompts that are token ids, or text by a template."""

    template: str | None = None
    valid: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        self.check()
        _ = self.parsed_template

    @property
    def parsed_template(self) -> Template | None:
        """The option `template`, parsed; None if the prompts are token ids."""
        return None if self.template is None else Template(self.owner, self.template, self.valid)


class Template:
    """Insert values of `fields` into a prompt's template; braces in the values stay unchanged."""

    def __init__(self, owner: str, text: str, valid: Sequence[str]) -> None:
        """Parse a template; `{name}` is a field among `valid`, of which the last is required."""
        title = f"{owner}: template = {text!r}"
        if not isinstance(text, str):
            raise SuiteError(f"{title} is not text", option="template")
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise SuiteError(
                f"{title}: {error}; write {{{{ and }}}} for braces that are part of the prompt",
                option="template",
            ) from error
        for _, name, layout, conversion in parsed:
            if name is not None and (name not in valid or layout or conversion):
                names = " and ".join(f"{{{name}}}" for name in valid)
                raise SuiteError(
                    f"{title} has the field {name!r}; the only valid fields are {names}, without a "
                    "format specification",
                    option="template",
                )
        self.fields = frozenset(name for _, name, _, _ in parsed if name)
        if valid[-1] not in self.fields:
            raise SuiteError(f"{title} lacks {{{valid[-1]}}}", option="template")
        self._text = text

    def fill(self, values: Mapping[str, str]) -> str:
        return self._text.format_map(values)


def token_list(
    source: SampleFile, row: int, column: str, cell: Any, kind: str
) -> NDArray[np.int32]:
    """Return a list of token ids as an array; raise RunError if invalid; `kind` names the list."""
    tokens = cell
    if isinstance(cell, list) and all(type(token) is int for token in cell):
        fits = not cell or 0 <= min(cell) <= max(cell) < 2**31
        tokens = np.array(cell if fits else [-1], np.int32)
    if isinstance(tokens, list | np.ndarray) and len(tokens) == 0:
        defect = f"the {kind} is empty"
    elif not isinstance(tokens, np.ndarray) or tokens.dtype.kind not in "iu":
        defect = f"{_describe(cell)} is not a list of whole numbers"
    elif tokens.min() < 0 or tokens.max() >= 2**31:
        defect = "a token is negative or above 2**31"
    else:
        return tokens.astype(np.int32, copy=False)
    raise source.wrong(row, column, defect)


def _describe(cell: Any) -> str:
    if isinstance(cell, np.ndarray):
        return f"an array of {cell.dtype}"
    if isinstance(cell, list):
        kinds = sorted({type(item).__name__ for item in cell})
        return f"a list of {' and '.join(kinds)}"
    return f"a value of type {type(cell).__name__}"
