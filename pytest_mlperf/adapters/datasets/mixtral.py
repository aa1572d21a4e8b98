"""Read the OpenOrca, GSM8K and MBXP prompts of MLPerf's Mixtral 8x7B benchmark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.datasets import prompts
from pytest_mlperf.adapters.datasets.files import ChecksumOptions, encode
from pytest_mlperf.adapters.datasets.files.frames import TABLE_LIMIT, find_table, read_frame

OFFICIAL_TABLES = ("09292024_mixtral_15k_mintoken2_v1.pkl", "2024.06.06_mixtral_15k_v4.pkl")
"""Tables since v5.0 and of v4.1, with 5,000 rows of each part."""

PART_NAMES = ("OpenOrca", "GSM8K", "MBXP")

PART_COLUMN, ID_COLUMN, TEXT_COLUMN, TARGET_COLUMN = "dataset", "id", "input", "gt_output"
TOKENS_COLUMN, STOP_COLUMN = "tok_input", "tok_stop_sequence"
TABLE_COLUMNS = (PART_COLUMN, ID_COLUMN, TEXT_COLUMN, TARGET_COLUMN, TOKENS_COLUMN, STOP_COLUMN)


@dataclass(frozen=True, kw_only=True)
class MixtralDataOptions(ChecksumOptions, dataset="mixtral"):
    """Options of the data set mixtral.

    Attributes:
        path: Parquet table, or a DataFrame pickled by pandas, optionally with gzip (code in it is
            not executed); or a folder with an official table, or with only one table.
        checksum: "md5:" or "sha256:" and the hex digits of the file. MLPerf's submission checker
            expects md5:ded6c711288c9bbca02929855557b8c1 since v5.0, and
            md5:78823c13e0e73e518872105c4b09628b for v4.1.
    """

    def find(self) -> Path:
        return find_table(
            Path(self.path),
            official=OFFICIAL_TABLES,
            advice=(
                f"get {OFFICIAL_TABLES[0]} as language/mixtral-8x7b/README.md of MLPerf's "
                "inference repository says, and set the data set's path to the file"
            ),
        )


class MixtralDataset(prompts.PromptDataset):
    """Prompts as tokens, in the order of the table, from OpenOrca, GSM8K and MBXP.

    Columns are those of MLPerf's language/mixtral-8x7b. The number of samples of each part is not
    checked.
    """

    optional_libraries = ("pyarrow",)
    _prompts: prompts.TokenLists
    options = MixtralDataOptions
    kind = b"mixtral"

    def _read(self, options: MixtralDataOptions, table: Path) -> None:
        columns = read_frame(table, columns=TABLE_COLUMNS, max_bytes=TABLE_LIMIT)
        source = prompts.SampleFile(file=table)
        source.check_size(len(columns[TARGET_COLUMN]), options.count)
        cells = {name: column[: options.count] for name, column in columns.items()}
        rows = zip(
            *(cells[name] for name in (PART_COLUMN, ID_COLUMN, TEXT_COLUMN, TARGET_COLUMN)),
            strict=True,
        )
        self._samples = [_reference(source, row, *values) for row, values in enumerate(rows)]
        self._prompts = prompts.TokenLists(source, TOKENS_COLUMN, cells[TOKENS_COLUMN])
        self._stops = prompts.TokenLists(
            source, STOP_COLUMN, cells[STOP_COLUMN], kind="stop sequence"
        )

    def input(self, index: int) -> list[int]:
        """Return the token ids of a prompt, including the begin-of-sequence token."""
        return self._prompts.prompt(self._checked(index))

    def stop(self, index: int) -> list[int]:
        r"""Return the token ids that end an answer: EOS, or for MBXP those of "\n```\n".

        MLPerf's reference truncates the answer after "\n```\n" and counts these tokens; it does not
        count EOS.
        """
        return self._stops.prompt(self._checked(index))

    def reference(self, index: int) -> dict[str, str]:
        """Return the data that a scorer compares an answer with.

        "dataset": the sample's part, see PART_NAMES. "target": the answer (OpenOrca), the number
        (GSM8K) or the test program (MBXP). MBXP also has "id", "language", "entry_point" and
        "prompt".
        """
        return dict(self._sample(index))

    def group(self, index: int) -> str | None:
        """Return a sample's MBXP problem, equal in all languages; None for OpenOrca and GSM8K."""
        problem = self._sample(index).get("entry_point")
        return None if problem is None else problem.replace("_", "").casefold()

    def _content(self, index: int) -> tuple[bytes, bytes, bytes]:
        reference = encode(json.dumps(self._samples[index], sort_keys=True))
        return self._prompts.content(index), self._stops.content(index), reference


def _reference(
    source: prompts.SampleFile, row: int, part: Any, identity: Any, text: Any, target: Any
) -> dict[str, str]:
    if part not in PART_NAMES:
        raise source.wrong(
            row,
            PART_COLUMN,
            f"{part!r:.60} is not one of the parts of this data set: {', '.join(PART_NAMES)}",
        )
    if part == "GSM8K" and isinstance(target, int | float) and not isinstance(target, bool):
        target = str(target)
    target = source.text(row, TARGET_COLUMN, target)
    if part != "MBXP":
        return {"dataset": part, "target": target}
    text = source.text(row, TEXT_COLUMN, text)
    language, line, entry_point = str(identity).partition("_")
    if not (language and line and entry_point):
        raise source.wrong(
            row, ID_COLUMN, f'{identity!r:.60} must be "LANGUAGE_NAME", as MBXP names problems'
        )
    return {
        "dataset": part,
        "id": str(identity),
        "language": language,
        "entry_point": entry_point,
        "prompt": text,
        "target": target,
    }
