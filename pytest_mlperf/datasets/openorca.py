"""Read OpenOrca as MLPerf ships it: a pickled table of tokenized prompts and their answers."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.datasets.frames import read_frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OFFICIAL = "open_orca_gpt4_tokenized_llama.sampled_24576.pkl"
"""The table of MLPerf's Llama 2 70B benchmark; it is downloaded with gzip."""

TOKENS, ANSWER, IDENTITY = "tok_input", "output", "id"
TEMPLATE_FIELDS = ("system_prompt", "question")
"""Columns that a template may put into a prompt."""


class OpenOrcaDataset:
    """Prompts by index in the order of the table: tokens, or with a template, text.

    Columns as written by language/llama2-70b/processorca.py of
    https://github.com/mlcommons/inference.
    """

    def __init__(self, *, path: str, template: str | None = None, count: int | None = None) -> None:
        """Read and check the table.

        Args:
            path: The table, a DataFrame pickled by pandas, also with gzip, or Parquet; or a folder
                with the official one, or with one table only.
            template: Gives prompts as text, for engines that tokenize: the columns `system_prompt`
                and `question` take the places of `{system_prompt}` and `{question}`; `{{` and `}}`
                are braces. None takes the official tokens, from the column `tok_input`.
            count: Use the first `count` samples only; None uses all.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: There is no such table.
            EnvironmentFault: It is Parquet, and pyarrow is not installed.
            RunError: The table is not as expected; rows are counted from 0, as pandas does.
        """
        if count is not None and (type(count) is not int or count < 1):
            raise SuiteError(
                f"data set openorca: count = {count!r} is not a number of samples, at least 1"
            )
        pieces = None if template is None else _parse_template(template)
        table = _find_table(Path(path))
        fields = (TOKENS,) if pieces is None else TEMPLATE_FIELDS
        columns = read_frame(table, columns=(IDENTITY, *fields, ANSWER))
        _check_size(table, len(columns[ANSWER]), count)
        columns = {name: cells[:count] for name, cells in columns.items()}
        self._identities = [str(identity) for identity in columns[IDENTITY]]
        self._prompts = (
            _TokenPrompts(table, columns[TOKENS])
            if pieces is None
            else _TextPrompts(table, pieces, columns)
        )
        self._answers = _texts(table, ANSWER, columns[ANSWER])
        self._check_repeats(table)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._answers)

    def input(self, index: int) -> list[int] | str:
        """Return the prompt of one sample: its tokens, or with a template its text.

        Raises:
            IndexError: There is no such sample.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index!r} of {len(self)}")
        return self._prompts.prompt(index)

    def reference(self, index: int) -> str:
        """Return the answer that a model's is compared with."""
        return self._answers[index]

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over identities, prompts as the engine gets them, and answers, in order.

        The same samples in a file of another kind, or beside other columns, have the same digest.
        """
        total = hashlib.sha256(type(self._prompts).__name__.encode())
        for index, (identity, answer) in enumerate(
            zip(self._identities, self._answers, strict=True)
        ):
            for part in (_encode(identity), self._prompts.content(index), _encode(answer)):
                total.update(len(part).to_bytes(8, "little"))
                total.update(part)
        return total.hexdigest()

    def _check_repeats(self, table: Path) -> None:
        """Refuse an identity that is there twice: scores are compared sample by sample."""
        seen: dict[str, int] = {}
        for row, identity in enumerate(self._identities):
            first = seen.setdefault(identity, row)
            if first != row:
                raise _wrong(table, row, IDENTITY, f"{identity!r} is also the id of row {first}")


class _TokenPrompts:
    """Prompts as tokens, one after the other: as lists they would take nine times the memory."""

    def __init__(self, table: Path, cells: Sequence[Any]) -> None:
        import numpy as np

        for row, cell in enumerate(cells):
            _check_tokens(table, row, cell)
        self._tokens: NDArray[np.int32] = np.concatenate(cells).astype(np.int32)
        self._ends: NDArray[np.int64] = np.cumsum([len(cell) for cell in cells])

    def prompt(self, index: int) -> list[int]:
        tokens: list[int] = self._slice(index).tolist()
        return tokens

    def content(self, index: int) -> bytes:
        """Return the tokens as little-endian int32."""
        return self._slice(index).astype("<i4").tobytes()

    def _slice(self, index: int) -> NDArray[np.int32]:
        return self._tokens[self._ends[index - 1] if index else 0 : self._ends[index]]


class _TextPrompts:
    """Prompts as text, put together from the pieces of a template and the columns it names."""

    def __init__(
        self, table: Path, pieces: Sequence[tuple[str, str]], columns: dict[str, Sequence[Any]]
    ) -> None:
        filled = {name: _texts(table, name, columns[name]) for name in TEMPLATE_FIELDS}
        for row, question in enumerate(filled["question"]):
            if not question:
                raise _wrong(table, row, "question", "the prompt is empty")
        self._texts = [
            "".join(text + (filled[name][row] if name else "") for text, name in pieces)
            for row in range(len(filled["question"]))
        ]

    def prompt(self, index: int) -> str:
        return self._texts[index]

    def content(self, index: int) -> bytes:
        """Return the text as UTF-8."""
        return _encode(self._texts[index])


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _find_table(path: Path) -> Path:
    """Return the table: the path itself, or the official one or the only one in a folder."""
    if not path.is_dir():
        return path
    for name in (OFFICIAL, f"{OFFICIAL}.gz"):
        if (path / name).is_file():
            return path / name
    endings = (".pkl", ".pkl.gz", ".parquet")
    tables = sorted(found for found in path.iterdir() if found.name.endswith(endings))
    if len(tables) == 1:
        return tables[0]
    names = ", ".join(table.name for table in tables[:5])
    raise UnavailableError(
        f"{path}: this folder has neither {OFFICIAL} nor that name with .gz, and "
        + (f"more than one other table ({names})" if tables else "no other table")
        + "; set the data set's path to the file"
    )


def _parse_template(template: str) -> list[tuple[str, str]]:
    """Return pieces of fixed text, each with the column that follows it, or "" at the end."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise SuiteError(
            f"data set openorca: template = {template!r}: {error}; write {{{{ and }}}} for braces "
            "that are part of the prompt"
        ) from error
    for _, name, layout, conversion in parsed:
        if name is not None and (name not in TEMPLATE_FIELDS or layout or conversion):
            raise SuiteError(
                f"data set openorca: template = {template!r} has the field {name!r}; only "
                "{system_prompt} and {question} can be filled in, without a format"
            )
    if "question" not in [name for _, name, _, _ in parsed]:
        raise SuiteError(f"data set openorca: template = {template!r} lacks {{question}}")
    return [(text, name or "") for text, name, _, _ in parsed]


def _check_size(table: Path, rows: int, count: int | None) -> None:
    if rows == 0:
        raise RunError("dataset", f"{table}: the table has no rows; get it from its source again")
    if count is not None and count > rows:
        raise SuiteError(
            f"{table}: count = {count!r}, but the table has {rows} rows; lower count, or leave it "
            "out to use all"
        )


def _texts(table: Path, column: str, cells: Sequence[Any]) -> list[str]:
    for row, cell in enumerate(cells):
        if not isinstance(cell, str):
            raise _wrong(table, row, column, f"a value of type {type(cell).__name__} is no text")
    return list(cells)


def _check_tokens(table: Path, row: int, cell: Any) -> None:
    import numpy as np

    if isinstance(cell, list | np.ndarray) and len(cell) == 0:
        raise _wrong(table, row, TOKENS, "the prompt is empty")
    if not isinstance(cell, np.ndarray) or cell.dtype.kind not in "iu":
        raise _wrong(table, row, TOKENS, f"{_describe(cell)} is no list of whole numbers")
    if cell.min() < 0 or cell.max() >= 2**31:
        raise _wrong(table, row, TOKENS, "a token is negative or above 2**31")


def _describe(cell: Any) -> str:
    import numpy as np

    if isinstance(cell, np.ndarray):
        return f"an array of {cell.dtype}"
    if isinstance(cell, list):
        kinds = sorted({type(item).__name__ for item in cell})
        return f"a list of {' and '.join(kinds)}"
    return f"a value of type {type(cell).__name__}"


def _wrong(table: Path, row: int, column: str, what: str) -> RunError:
    return RunError(
        "dataset",
        f"{table}: row {row}, column {column!r}: {what}; correct the table, or get it from its "
        "source again",
    )
