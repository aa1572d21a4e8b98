"""Read MLPerf's OpenOrca table: pickled, tokenized prompts and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf.adapters.datasets import prompts
from pytest_mlperf.adapters.datasets.files import encode
from pytest_mlperf.adapters.datasets.files.frames import TABLE_LIMIT, find_table, read_frame

OFFICIAL_TABLE = "open_orca_gpt4_tokenized_llama.sampled_24576.pkl"

PROMPT_COLUMN, ANSWER_COLUMN, ROW_ID_COLUMN = "tok_input", "output", "id"
TEMPLATE_FIELDS = ("system_prompt", "question")


@dataclass(frozen=True, kw_only=True)
class OpenOrcaOptions(prompts.TemplateOptions, dataset="openorca"):
    """Options of the data set openorca.

    Attributes:
        path: Parquet table, or a DataFrame pickled by pandas, optionally with gzip; or a folder
            with the official table, or with only one table.
        template: Template of text prompts, for engines that tokenize. `{system_prompt}` and
            `{question}` stand for the columns of these names; `{{` and `}}` are literal braces.
            None uses the official tokens, from the column `tok_input`.
    """

    valid: ClassVar[tuple[str, ...]] = TEMPLATE_FIELDS

    def find(self) -> Path:
        return find_table(Path(self.path), official=(OFFICIAL_TABLE, f"{OFFICIAL_TABLE}.gz"))


class OpenOrcaDataset(prompts.PromptDataset):
    """Prompts in the order of the table: tokens, or text with a template.

    Columns are those of language/llama2-70b/processorca.py in mlcommons/inference on GitHub.
    """

    optional_libraries = ("pyarrow",)
    options = OpenOrcaOptions

    def _read(self, options: OpenOrcaOptions, table: Path) -> None:
        template = options.parsed_template
        fields = (PROMPT_COLUMN,) if template is None else TEMPLATE_FIELDS
        columns = read_frame(
            table, columns=(ROW_ID_COLUMN, *fields, ANSWER_COLUMN), max_bytes=TABLE_LIMIT
        )
        source = prompts.SampleFile(file=table)
        source.check_size(len(columns[ANSWER_COLUMN]), options.count)
        columns = {name: cells[: options.count] for name, cells in columns.items()}
        self._identities = [str(identity) for identity in columns[ROW_ID_COLUMN]]
        self.kind = b"_TokenPrompts" if template is None else b"_TextPrompts"
        self._prompts = (
            prompts.TokenLists(source, PROMPT_COLUMN, columns[PROMPT_COLUMN])
            if template is None
            else prompts.TextPrompts(template, _texts(source, columns))
        )
        self._samples = source.texts(ANSWER_COLUMN, columns[ANSWER_COLUMN])
        self._check_repeats(source)

    def _content(self, index: int) -> tuple[bytes, bytes, bytes]:
        identity, answer = encode(self._identities[index]), encode(self._samples[index])
        return identity, self._prompts.content(index), answer

    def _check_repeats(self, source: prompts.SampleFile) -> None:
        """Raise RunError for a repeated id, because scores are compared sample by sample."""
        seen: dict[str, int] = {}
        for row, identity in enumerate(self._identities):
            first = seen.setdefault(identity, row)
            if first != row:
                raise source.wrong(
                    row, ROW_ID_COLUMN, f"{identity!r} is also the id of row {first}"
                )


def _texts(
    source: prompts.SampleFile, columns: Mapping[str, Sequence[Any]]
) -> dict[str, list[bytes]]:
    texts = {name: source.texts(name, columns[name]) for name in TEMPLATE_FIELDS}
    for row, question in enumerate(texts["question"]):
        if not question:
            raise source.wrong(row, "question", "the prompt is empty")
    return {name: list(map(encode, cells)) for name, cells in texts.items()}
