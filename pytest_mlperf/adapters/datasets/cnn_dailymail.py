"""Read MLPerf's files of CNN/DailyMail: articles and their summaries in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.datasets.files import encode, find_file
from pytest_mlperf.adapters.datasets.files.json_records import read_records
from pytest_mlperf.adapters.datasets.prompts import (
    PromptDataset,
    SampleFile,
    Template,
    TemplateOptions,
    TextPrompts,
    TokenLists,
    token_list,
)

OFFICIAL_FILES = ("cnn_eval.json", "sample_cnn_eval_5000.json")
"""GPT-J and Llama 3.1 8B with 13,368 samples; Llama 3.1 8B on the edge with 5,000."""

ALPACA = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
)

TOKENS_COLUMN, SUMMARY_COLUMN = "tok_input", "output"
TEMPLATE_FIELDS = ("instruction", "input")

FORMS = ("text", "tokens")


@dataclass(frozen=True, kw_only=True)
class CnnDailyMailOptions(TemplateOptions, dataset="cnn_dailymail"):
    """Options of the data set cnn_dailymail.

    Attributes:
        path: JSON file with a list of objects, or a folder with an official file or a single one.
        prompts: Form of the prompts: "text", or "tokens" from the key "tok_input".
        template: Template of text prompts, in which `{instruction}` and `{input}` stand for the
            keys of these names; `{{` and `}}` are braces. None is GPT-J's official prompt. Llama
            3.1 8B's file has no text of an instruction: use `{input}` only.
    """

    prompts: str = "text"

    def __post_init__(self) -> None:
        forms = f"one of {', '.join(FORMS)}"
        self.check(("prompts", self.prompts, self.prompts in FORMS, forms))
        _ = self.parsed_template

    @property
    def parsed_template(self) -> Template | None:
        if self.prompts == "text":
            text = ALPACA if self.template is None else self.template
            return Template(self.owner, text, TEMPLATE_FIELDS)
        if self.template is not None:
            raise self.wrong(
                'template needs prompts = "text"; set it, or leave template out',
                option=("template", "prompts"),
            )
        return None

    def find(self) -> Path:
        return find_file(
            Path(self.path),
            official=OFFICIAL_FILES,
            endings=(".json",),
            whole="file",
            advice=(
                f"get {OFFICIAL_FILES[0]} as the README.md in language/gpt-j or "
                "language/llama3.1-8b of MLPerf's inference repository says, and set the "
                "data set's path to the file"
            ),
        )


class CnnDailyMailDataset(PromptDataset):
    """Articles to summarise, as text or token ids, in the order of the file.

    Text is not truncated: GPT-J's reference keeps the first 1,919 tokens, which only an engine with
    the tokenizer can do. The tokens of Llama 3.1 8B are never truncated.
    Source: download_cnndm.py of language/gpt-j ("instruction", "input", "output") and of
    language/llama3.1-8b (also "tok_input") in mlcommons/inference on GitHub.
    """

    options = CnnDailyMailOptions

    def _read(self, options: CnnDailyMailOptions, file: Path) -> None:
        template = options.parsed_template
        source = SampleFile(file=file, row="record", column="key", whole="file")
        keys = (TOKENS_COLUMN,) if template is None else sorted(template.fields)
        columns = _columns(source, (*keys, SUMMARY_COLUMN), options.count)
        source.check_size(len(columns[SUMMARY_COLUMN]), options.count)
        self.kind = b"cnn_dailymail tokens" if template is None else b"cnn_dailymail text"
        self._prompts = (
            TokenLists(source, TOKENS_COLUMN, columns[TOKENS_COLUMN])
            if template is None
            else TextPrompts(template, columns)
        )
        self._samples = columns[SUMMARY_COLUMN]

    def _content(self, index: int) -> tuple[bytes, bytes]:
        return self._prompts.content(index), encode(self._samples[index])


def _columns(source: SampleFile, keys: Sequence[str], count: int | None) -> dict[str, list[Any]]:
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


def _value(source: SampleFile, row: int, key: str, value: Any) -> Any:
    if key == TOKENS_COLUMN:
        return token_list(source, row, key, value, "prompt")
    text = source.text(row, key, value)
    return text if key == SUMMARY_COLUMN else encode(text)
