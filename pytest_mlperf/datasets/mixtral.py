"""Read the mix of questions, sums and programs of MLPerf's Mixtral 8x7B benchmark."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.datasets.checksum import check_file, parse_checksum
from pytest_mlperf.datasets.frames import TABLE_LIMIT, read_frame, require_reader
from pytest_mlperf.datasets.prompts import (
    Source,
    TokenLists,
    check_count,
    encode,
    find_file,
    framed,
    mean_prompt,
)

OFFICIAL = ("09292024_mixtral_15k_mintoken2_v1.pkl", "2024.06.06_mixtral_15k_v4.pkl")
"""The tables since v5.0 and of v4.1; 5,000 rows of each part."""

PARTS = ("OpenOrca", "GSM8K", "MBXP")

PART, IDENTITY, TEXT, TARGET = "dataset", "id", "input", "gt_output"
TOKENS, STOP = "tok_input", "tok_stop_sequence"
COLUMNS = (PART, IDENTITY, TEXT, TARGET, TOKENS, STOP)


class MixtralDataset:
    """Prompts as tokens by index, in the order of the table, from OpenOrca, GSM8K and MBXP.

    Columns as language/mixtral-8x7b of https://github.com/mlcommons/inference reads them. How many
    rows a part has is not checked: see `parts`.
    """

    libraries = ()

    def __init__(self, *, path: str, count: int | None = None, checksum: str | None = None) -> None:
        """Read and check the whole table.

        Args:
            path: The table, a DataFrame pickled by pandas, also with gzip, or Parquet; or a folder
                with an official one, or with one table only. The pickle is never executed.
            count: Use the first `count` samples only; None uses all.
            checksum: "md5:" or "sha256:" and the hex digits of the file. Submissions to MLPerf
                check md5:ded6c711288c9bbca02929855557b8c1 for the table since v5.0, and
                md5:78823c13e0e73e518872105c4b09628b for that of v4.1.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: There is no such table.
            EnvironmentFault: It is Parquet, and pyarrow is not installed.
            RunError: The table is another one or not as expected; rows are counted from 0.
        """
        check_count("mixtral", count)
        expected = parse_checksum("data set mixtral", checksum)
        table = _find_table(Path(path))
        check_file(table, expected)
        cells = read_frame(table, columns=COLUMNS, max_bytes=TABLE_LIMIT)
        source = Source(file=table)
        source.check_size(len(cells[TARGET]), count)
        cells = {name: column[:count] for name, column in cells.items()}
        self._references = _references(source, cells)
        self._prompts = TokenLists(source, TOKENS, cells[TOKENS])
        self._stops = TokenLists(source, STOP, cells[STOP], what="stop sequence")

    @classmethod
    def look(cls, *, path: str, count: int | None = None, checksum: str | None = None) -> None:
        """Look for the table without reading it.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: The table is not here; one sentence says what to do.
            EnvironmentFault: It is Parquet, and pyarrow is not installed.
        """
        check_count("mixtral", count)
        parse_checksum("data set mixtral", checksum)
        require_reader(_find_table(Path(path)))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._references)

    @property
    def parts(self) -> Mapping[str, int]:
        """How many samples each part has; the official tables have 5,000 of each."""
        return Counter(reference["dataset"] for reference in self._references)

    def input(self, index: int) -> list[int]:
        """Return the prompt of one sample as token ids, the beginning of the sequence included.

        Raises:
            IndexError: There is no such sample.
        """
        return self._prompts.prompt(self._known(index))

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return the mean prompt of these samples, "input_tokens"."""
        return mean_prompt(self._prompts, indices)

    def stop(self, index: int) -> list[int]:
        r"""Return the token ids after which the answer to one sample ends.

        The end of the sequence, but for MBXP the tokens of "\n```\n". They belong to the answer:
        MLPerf's reference cuts an answer behind them, and its tokens per sample count them. The
        reference counts no end of the sequence.

        Raises:
            IndexError: There is no such sample.
        """
        return self._stops.prompt(self._known(index))

    def reference(self, index: int) -> dict[str, str]:
        """Return what one answer is compared with.

        Returns:
            "dataset": the part that the sample is of, see PARTS; "target": the answer (OpenOrca),
            the number as text (GSM8K) or the program that tests the answer (MBXP). For MBXP also
            "id", "language", "entry_point" and "prompt", as text.
        """
        return dict(self._references[index])

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over prompts, stop sequences and references, in order.

        The same samples in a file of another kind, or beside other columns, have the same digest.
        """
        total = hashlib.sha256(b"mixtral")
        for index, reference in enumerate(self._references):
            known = json.dumps(reference, sort_keys=True)
            parts = (self._prompts.content(index), self._stops.content(index), encode(known))
            for part in framed(parts):
                total.update(part)
        return total.hexdigest()

    def _known(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index!r} of {len(self)}")
        return index


def _references(source: Source, cells: Mapping[str, Any]) -> list[dict[str, str]]:
    rows = zip(*(cells[name] for name in (PART, IDENTITY, TEXT, TARGET)), strict=True)
    return [_reference(source, row, *values) for row, values in enumerate(rows)]


def _reference(
    source: Source, row: int, part: Any, identity: Any, text: Any, target: Any
) -> dict[str, str]:
    if part not in PARTS:
        raise source.wrong(
            row, PART, f"{_shown(part)} is no part of this data set; they are {', '.join(PARTS)}"
        )
    if part == "GSM8K" and isinstance(target, int | float) and not isinstance(target, bool):
        target = str(target)
    if not isinstance(target, str):
        raise _no_text(source, row, TARGET, target)
    if part != "MBXP":
        return {"dataset": part, "target": target}
    if not isinstance(text, str):
        raise _no_text(source, row, TEXT, text)
    language, line, entry_point = str(identity).partition("_")
    if not (language and line and entry_point):
        raise source.wrong(
            row, IDENTITY, f'{_shown(identity)} must be "LANGUAGE_NAME", as MBXP names problems'
        )
    return {
        "dataset": part,
        "id": str(identity),
        "language": language,
        "entry_point": entry_point,
        "prompt": text,
        "target": target,
    }


def _no_text(source: Source, row: int, column: str, cell: Any) -> RunError:
    return source.wrong(row, column, f"a value of type {type(cell).__name__} is no text")


def _shown(cell: Any) -> str:
    return f"{cell!r:.60}"


def _find_table(path: Path) -> Path:
    return find_file(
        path,
        official=OFFICIAL,
        endings=(".pkl", ".pkl.gz", ".parquet"),
        lacks=f"neither {' nor '.join(OFFICIAL)}",
        whole="table",
        advice=(
            f"get {OFFICIAL[0]} as language/mixtral-8x7b/README.md of MLPerf's inference "
            "repository says, and set the data set's path to the file"
        ),
    )
