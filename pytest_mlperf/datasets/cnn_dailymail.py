"""Read CNN/DailyMail as MLPerf ships it: a JSON file of articles and their summaries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.datasets.checksum import check_file, parse_checksum
from pytest_mlperf.datasets.json_records import read_records
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

OFFICIAL = ("cnn_eval.json", "sample_cnn_eval_5000.json")
"""Of GPT-J and Llama 3.1 8B with 13,368 samples, and of Llama 3.1 8B on the edge with 5,000."""

ALPACA = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
)
"""The prompt of MLPerf's GPT-J, which Stanford Alpaca made known."""

TOKENS, SUMMARY = "tok_input", "output"
TEMPLATE_FIELDS = ("instruction", "input")
"""Keys that a template may put into a prompt."""

FORMS = ("text", "tokens")


class CnnDailyMailDataset:
    """Articles to sum up, by index in the order of the file: as text, or as token ids.

    Keys as written by language/gpt-j/download_cnndm.py ("instruction", "input", "output") and
    language/llama3.1-8b/download_cnndm.py (also "tok_input") of
    https://github.com/mlcommons/inference.

    A text is given whole. GPT-J's reference cuts it to its first 1,919 tokens: that is for the
    engine to do, which has the tokenizer. The tokens of Llama 3.1 8B are never cut.
    """

    libraries = ()

    def __init__(
        self,
        *,
        path: str,
        prompts: str = "text",
        template: str | None = None,
        count: int | None = None,
        checksum: str | None = None,
    ) -> None:
        """Read and check the whole file, record by record.

        Args:
            path: The file, a JSON list of objects; or a folder with an official one, or with one
                file only.
            prompts: What an engine gets: "text", or "tokens" from the key "tok_input".
            template: Gives prompts as text: the keys "instruction" and "input" take the places of
                `{instruction}` and `{input}`; `{{` and `}}` are braces. None is GPT-J's official
                prompt. In the file of Llama 3.1 8B the instruction is no text: name `{input}` only.
            count: Use the first `count` samples only, and check no others; None uses all.
            checksum: "md5:" or "sha256:" and the hex digits of the file.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: There is no such file.
            RunError: The file is another one, damaged, or a record is not as expected; records are
                counted from 0.
        """
        filled = _parse(prompts=prompts, template=template, count=count)
        expected = parse_checksum("data set cnn_dailymail", checksum)
        file = _find_file(Path(path))
        check_file(file, expected)
        source = Source(file=file, row="record", column="key", whole="file")
        keys = (TOKENS,) if filled is None else sorted(filled.fields)
        columns = _read(source, (*keys, SUMMARY), count)
        source.check_size(len(columns[SUMMARY]), count)
        self._prompts: Prompts = (
            TokenLists(source, TOKENS, columns[TOKENS])
            if filled is None
            else _Articles(filled, columns)
        )
        self._summaries: list[str] = columns[SUMMARY]

    @classmethod
    def look(
        cls,
        *,
        path: str,
        prompts: str = "text",
        template: str | None = None,
        count: int | None = None,
        checksum: str | None = None,
    ) -> None:
        """Look for the file without reading it.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: The file is not here; one sentence says what to do.
        """
        _parse(prompts=prompts, template=template, count=count)
        parse_checksum("data set cnn_dailymail", checksum)
        _find_file(Path(path))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._summaries)

    def input(self, index: int) -> list[int] | str:
        """Return the prompt of one sample: its text, or its token ids.

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
        """Return the summary that a model's is compared with."""
        return self._summaries[index]

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over prompts as the engine gets them, and summaries, in order.

        The same samples in another layout, or beside other keys, have the same digest.
        """
        kind = b"text" if isinstance(self._prompts, _Articles) else b"tokens"
        total = hashlib.sha256(b"cnn_dailymail " + kind)
        for index, summary in enumerate(self._summaries):
            for part in framed((self._prompts.content(index), encode(summary))):
                total.update(part)
        return total.hexdigest()


class _Articles:
    """Prompts as text, put together when asked for.

    They are kept as UTF-8: as a str, one rare character can make an article four times as large.
    """

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
        return encode(self.prompt(index))


def _read(source: Source, keys: Sequence[str], count: int | None) -> dict[str, list[Any]]:
    """Return the values of some keys: tokens as arrays, summaries as text, other text as UTF-8."""
    columns: dict[str, list[Any]] = {key: [] for key in keys}
    for row, record in enumerate(islice(read_records(source.file), count)):
        for key in keys:
            if key not in record:
                names = ", ".join(repr(name)[:40] for name in list(record)[:10]) or "none"
                raise source.wrong(
                    row, key, f"this key is missing; the {source.row}'s keys are {names}"
                )
            columns[key].append(_value(source, row, key, record[key]))
    return columns


def _value(source: Source, row: int, key: str, value: Any) -> Any:
    if key == TOKENS:
        return _packed(value)
    if not isinstance(value, str):
        raise source.wrong(row, key, f"a value of type {type(value).__name__} is no text")
    return value if key == SUMMARY else encode(value)


def _packed(value: Any) -> Any:
    """Return a list of whole numbers as an array, four bytes each where they fit.

    Anything else is refused with the other prompts, and comes back as it is.
    """
    import numpy as np

    if not isinstance(value, list) or not value or any(type(token) is not int for token in value):
        return value
    if min(value) < 0 or max(value) >= 2**31:
        value = [-1]  # it is refused alike
    return np.array(value, np.int32)


def _parse(*, prompts: str, template: str | None, count: int | None) -> Template | None:
    check_count("cnn_dailymail", count)
    if prompts not in FORMS:
        raise SuiteError(
            f"data set cnn_dailymail: prompts = {prompts!r} is unknown; valid are "
            f"{', '.join(FORMS)}"
        )
    if prompts == "tokens":
        if template is not None:
            raise SuiteError(
                "data set cnn_dailymail: a template makes text; leave it out, or set prompts to "
                '"text"'
            )
        return None
    text = ALPACA if template is None else template
    return Template("cnn_dailymail", text, valid=TEMPLATE_FIELDS, required="input")


def _find_file(path: Path) -> Path:
    return find_file(
        path,
        official=OFFICIAL,
        endings=(".json",),
        lacks=f"neither {' nor '.join(OFFICIAL)}",
        whole="file",
        advice=(
            f"get {OFFICIAL[0]} as the README.md in language/gpt-j or language/llama3.1-8b of "
            "MLPerf's inference repository says, and set the data set's path to the file"
        ),
    )
