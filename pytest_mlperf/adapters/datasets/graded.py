"""Read the prompt tables of MLPerf's Llama 3.1 405B, DeepSeek-R1 and gpt-oss."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

from pytest_mlperf.adapters.datasets import prompts
from pytest_mlperf.adapters.datasets.files import encode
from pytest_mlperf.adapters.datasets.files.frames import find_table, read_frame

OFFICIAL_TABLES = (
    "mlperf_llama3.1_405b_dataset_8313_processed_fp16_eval.pkl",
    "mlperf_deepseek_r1_dataset_4388_fp8_eval.pkl",
    "deepseek_r1_eval.parquet",
    "acc_eval_ref.parquet",
    "perf_eval_ref.parquet",
)

TEXT_COLUMN = "text_input"
TOKENS_COLUMNS = ("tok_input", "input_tokens")
METRIC = ("metric", "dataset")
TARGET = ("gt_output", "ground_truth")
"""Alternative names of columns: the first that the table has is read."""


@dataclass(frozen=True, kw_only=True)
class GradedOptions(prompts.TemplateOptions, dataset="graded"):
    """Options of the data set graded.

    Attributes:
        path: Parquet table, or a DataFrame pickled by pandas, optionally with gzip (code in it is
            not executed); or a folder with MLPerf's table, or with only one table.
        template: Template of text prompts, for engines that tokenize. `{text_input}` stands for the
            column of this name, which DeepSeek-R1's pickle has instead of tokens; `{{` and `}}` are
            literal braces. Include the text of the model's chat template. None uses tokens, from
            the column `tok_input` or `input_tokens`.
    """

    valid: ClassVar[tuple[str, ...]] = (TEXT_COLUMN,)

    def find(self) -> Path:
        return find_table(
            Path(self.path),
            official=OFFICIAL_TABLES,
            advice=(
                "get it as the README.md of the workload in language/ of MLPerf's inference "
                "repository says, and set the data set's path to the file"
            ),
        )


class GradedDataset(prompts.PromptDataset):
    """Prompts in the order of the table: tokens, or text with a template.

    Columns are those of MLPerf's language/llama3.1-405b, deepseek-r1 and gpt-oss-120b.
    """

    optional_libraries = ("pyarrow",)
    options = GradedOptions
    kind = b"graded"

    def _read(self, options: GradedOptions, table: Path) -> None:
        template = options.parsed_template
        columns_of_prompts = TOKENS_COLUMNS if template is None else (TEXT_COLUMN,)
        columns = read_frame(table, columns=(columns_of_prompts, METRIC, TARGET))
        source = prompts.SampleFile(file=table)
        source.check_size(len(columns[TARGET[0]]), options.count)
        cells, metrics, targets = (
            columns[names[0]][: options.count] for names in (columns_of_prompts, METRIC, TARGET)
        )
        self._prompts = (
            prompts.TokenLists(source, TOKENS_COLUMNS[0], cells)
            if template is None
            else prompts.TextPrompts(
                template, {TEXT_COLUMN: list(map(encode, source.texts(TEXT_COLUMN, cells)))}
            )
        )
        names = source.texts(METRIC[0], metrics)
        # AIME's targets are whole numbers.
        texts = [str(cell) if type(cell) is int else cell for cell in targets]
        self._samples = list(zip(names, source.texts(TARGET[0], texts), strict=True))

    def reference(self, index: int) -> dict[str, str]:
        """Return the answer as "target", and its "metric": the column "metric" or "dataset"."""
        metric, target = self._sample(index)
        return {"metric": metric, "target": target}

    def group(self, index: int) -> int | None:
        """Return the index of the first sample with this prompt; None if it occurs only once."""
        return self._groups[self._checked(index)]

    @cached_property
    def _groups(self) -> list[int | None]:
        digests = [sha256(self._prompts.content(index)).digest() for index in range(len(self))]
        times = Counter(digests)
        first: dict[bytes, int] = {}
        return [
            first.setdefault(digest, index) if times[digest] > 1 else None
            for index, digest in enumerate(digests)
        ]

    def _content(self, index: int) -> list[bytes]:
        return [self._prompts.content(index), *map(encode, self._samples[index])]
