"""Read OpenOrca as MLPerf ships it: a pickled table of tokenized prompts and their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_mlperf.datasets.frames import TABLE_LIMIT, read_frame, require_reader
from pytest_mlperf.datasets.prompts import (
    Prompts,
    Source,
    Template,
    TokenLists,
    check_count,
    encode,
    find_file,
    framed,
    mean_prompt,
)

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

    libraries = ()

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
        filled = _parse(template=template, count=count)
        table = _find_table(Path(path))
        fields = (TOKENS,) if filled is None else TEMPLATE_FIELDS
        columns = read_frame(table, columns=(IDENTITY, *fields, ANSWER), max_bytes=TABLE_LIMIT)
        source = Source(file=table)
        source.check_size(len(columns[ANSWER]), count)
        columns = {name: cells[:count] for name, cells in columns.items()}
        self._identities = [str(identity) for identity in columns[IDENTITY]]
        self._kind = b"_TokenPrompts" if filled is None else b"_TextPrompts"
        self._prompts: Prompts = (
            TokenLists(source, TOKENS, columns[TOKENS])
            if filled is None
            else _TextPrompts(source, filled, columns)
        )
        self._answers = source.texts(ANSWER, columns[ANSWER])
        self._check_repeats(source)

    @classmethod
    def look(cls, *, path: str, template: str | None = None, count: int | None = None) -> None:
        """Look for the table without reading it.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: The table is not here; one sentence says what to do.
            EnvironmentFault: It is Parquet, and pyarrow is not installed.
        """
        _parse(template=template, count=count)
        require_reader(_find_table(Path(path)))

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

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return the mean prompt of these samples, "input_tokens", where it is given as tokens."""
        return mean_prompt(self._prompts, indices)

    def reference(self, index: int) -> str:
        """Return the answer that a model's is compared with."""
        return self._answers[index]

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over identities, prompts as the engine gets them, and answers, in order.

        The same samples in a file of another kind, or beside other columns, have the same digest.
        """
        total = hashlib.sha256(self._kind)
        for index, (identity, answer) in enumerate(
            zip(self._identities, self._answers, strict=True)
        ):
            parts = (encode(identity), self._prompts.content(index), encode(answer))
            for part in framed(parts):
                total.update(part)
        return total.hexdigest()

    def _check_repeats(self, source: Source) -> None:
        """Refuse an identity that is there twice: scores are compared sample by sample."""
        seen: dict[str, int] = {}
        for row, identity in enumerate(self._identities):
            first = seen.setdefault(identity, row)
            if first != row:
                raise source.wrong(row, IDENTITY, f"{identity!r} is also the id of row {first}")


class _TextPrompts:
    """Prompts as text, put together from a template and the columns it names."""

    def __init__(
        self, source: Source, template: Template, columns: Mapping[str, Sequence[Any]]
    ) -> None:
        filled = {name: source.texts(name, columns[name]) for name in TEMPLATE_FIELDS}
        for row, question in enumerate(filled["question"]):
            if not question:
                raise source.wrong(row, "question", "the prompt is empty")
        self._columns = filled
        self._template = template

    def prompt(self, index: int) -> str:
        return self._template.fill({name: cells[index] for name, cells in self._columns.items()})

    def content(self, index: int) -> bytes:
        """Return the text as UTF-8."""
        return encode(self.prompt(index))


def _parse(*, template: str | None, count: int | None) -> Template | None:
    check_count("openorca", count)
    if template is None:
        return None
    return Template("openorca", template, valid=TEMPLATE_FIELDS, required="question")


def _find_table(path: Path) -> Path:
    return find_file(
        path,
        official=(OFFICIAL, f"{OFFICIAL}.gz"),
        endings=(".pkl", ".pkl.gz", ".parquet"),
        lacks=f"neither {OFFICIAL} nor that name with .gz",
        whole="table",
        advice="set the data set's path to the file",
    )
