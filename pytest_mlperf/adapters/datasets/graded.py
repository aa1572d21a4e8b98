"""Read the tables of MLPerf's Llama 3.1 405B, DeepSeek-R1 and gpt-oss: prompts graded by kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from pytest_mlperf.adapters.datasets import prompts
from pytest_mlperf.adapters.datasets.files import ChecksumOptions, check_file
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
"""Names of columns; of several the first that a table has is read."""


@dataclass(frozen=True, kw_only=True)
class GradedOptions(ChecksumOptions):
    """Where the table is, and what an engine gets of it.

    Attributes:
        path: The table, a DataFrame pickled by pandas, also with gzip, or Parquet; or a folder
            with an official one, or with one table only. The pickle is never executed.
        template: Gives prompts as text, for engines that tokenize: the column `text_input`, which
            DeepSeek-R1's pickle has in place of tokens, takes the place of `{text_input}`; `{{`
            and `}}` are braces. It has to bring what the model's chat template would. None takes
            tokens, from the column `tok_input` or `input_tokens`.
    """

    path: str
    template: str | None = None

    def __post_init__(self) -> None:
        self.check("graded")
        _ = self.filled

    @property
    def filled(self) -> prompts.Template | None:
        if self.template is None:
            return None
        return prompts.Template("graded", self.template, valid=(TEXT_COLUMN,), required=TEXT_COLUMN)

    def find(self) -> Path:
        return find_table(
            Path(self.path),
            official=OFFICIAL_TABLES,
            lacks=f"none of {', '.join(OFFICIAL_TABLES)}",
            advice=(
                "get it as the README.md of the workload in language/ of MLPerf's inference "
                "repository says, and set the data set's path to the file"
            ),
        )


class GradedDataset(prompts.PromptDataset):
    """Prompts by index, in the order of the table: tokens, or with a template, text.

    Columns as language/llama3.1-405b, language/deepseek-r1 and language/gpt-oss-120b of
    https://github.com/mlcommons/inference read them.
    """

    optional_libraries = ("pyarrow",)
    options = GradedOptions

    def _read(self, asked: GradedOptions, table: Path) -> None:
        template = asked.filled
        check_file(table, asked.checksum)
        asked_for = TOKENS_COLUMNS if template is None else (TEXT_COLUMN,)
        columns = read_frame(table, columns=(asked_for, METRIC, TARGET))
        source = prompts.SampleFile(file=table)
        source.check_size(len(columns[TARGET[0]]), asked.count)
        cells, metrics, targets = (
            columns[names[0]][: asked.count] for names in (asked_for, METRIC, TARGET)
        )
        self._prompts = (
            prompts.TokenLists(source, TOKENS_COLUMNS[0], cells)
            if template is None
            else prompts.TextPrompts(
                template, {TEXT_COLUMN: list(map(prompts.encode, source.texts(TEXT_COLUMN, cells)))}
            )
        )
        names = source.texts(METRIC[0], metrics)
        # AIME's targets are whole numbers.
        texts = [str(cell) if type(cell) is int else cell for cell in targets]
        self._samples = list(zip(names, source.texts(TARGET[0], texts), strict=True))

    def reference(self, index: int) -> dict[str, str]:
        """Return "target" and the "metric" that grades it: that column, or else "dataset"."""
        metric, target = self._sample(index)
        return {"metric": metric, "target": target}

    def group(self, index: int) -> int | None:
        """Return the first sample with this prompt where a table has it more than once."""
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

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over prompts, metrics and targets, in order, whatever the kind of file."""
        return prompts.hash_of(
            b"graded",
            (
                (self._prompts.content(index), prompts.encode(metric), prompts.encode(target))
                for index, (metric, target) in enumerate(self._samples)
            ),
        ).hexdigest()
