"""Read records of JSONL, CSV and Parquet files, and recorded traces in Mooncake's format."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from math import inf
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.datasets.files import json_lines
from pytest_mlperf.adapters.datasets.files.columns import column_positions, csv_records
from pytest_mlperf.adapters.datasets.files.frames import read_frame
from pytest_mlperf.adapters.datasets.prompts import MAX_LENGTH_TOKENS, SampleFile
from pytest_mlperf.adapters.datasets.user_prompts import _synthetic

BLOCK_TOKENS = 512
TRACE_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")

ANY_LENGTHS = _synthetic.Lengths(low=1, high=MAX_LENGTH_TOKENS)

MIN_ANSWER_TOKENS = 2
"""Minimum tokens of an answer: a time per token needs two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Hold a request's arrival on the trace's clock [s], lengths [tokens] and prefix block ids."""

    at_s: float
    input: int
    output: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TracePrompts(_synthetic.SyntheticPrompts):
    """Generate prompts with the lengths in a trace; blocks with equal ids get equal text."""

    requests: Sequence[Request]
    input: _synthetic.Lengths = ANY_LENGTHS
    output: None = None
    shared: None = None

    def prompt(self, index: int) -> str:
        """Return the text of a prompt; prompts whose first block ids are equal share a prefix."""
        request, words = self.requests[index], list[str]()
        for block in request.blocks[: -(-request.input // BLOCK_TOKENS)]:
            draw = random.Random(f"block {_synthetic.VERSION} {self.seed} {block}")
            words += draw.choices(self._words, k=min(BLOCK_TOKENS, request.input - len(words)))
        return self._fit(
            request.input, words, random.Random(f"prompts {_synthetic.VERSION} {self.seed} {index}")
        )

    def prefix_share(self, indices: Sequence[int]) -> float:
        """Return the share of prompt tokens in blocks that also begin an earlier prompt.

        A block's id depends on all tokens before it too.
        """
        total = cached = 0
        seen: set[int] = set()
        for request in map(self.requests.__getitem__, indices):
            total += request.input
            blocks = list(takewhile(seen.__contains__, request.blocks))
            cached += min(len(blocks) * BLOCK_TOKENS, request.input)
            seen.update(request.blocks)
        return cached / total if total else 0.0

    def output_tokens(self, index: int) -> int:
        return self.requests[index].output

    def digest(self, samples: int) -> str:
        return self._digest("trace", samples, self.requests)


def read_trace(path: Path, count: int | None) -> Sequence[Request]:
    """Return the first `count` requests of a trace (None: all); RunError for a bad line."""
    source, records = read(path, TRACE_FIELDS)
    requests = list(islice(_requests(source, records), count))
    source.check_size(len(requests), count)
    return requests


def _requests(
    source: SampleFile, records: Iterator[tuple[int, Mapping[str, Any]]]
) -> Iterator[Request]:
    before_ms = -inf
    for line, record in records:
        at_ms = record["timestamp"]
        if type(at_ms) not in (int, float) or not 0 <= at_ms < 1e15:
            raise source.wrong(
                line, "timestamp", f"{repr(at_ms)[:40]} is not a time in milliseconds"
            )
        if at_ms < before_ms:
            defect = f"{at_ms} is earlier than {before_ms}, the timestamp of the previous request"
            raise source.wrong(line, "timestamp", defect)
        before_ms = at_ms
        lengths = [
            source.length(line, name, record[name]) for name in ("input_length", "output_length")
        ]
        blocks = record["hash_ids"]
        if not isinstance(blocks, list) or any(type(block) is not int for block in blocks):
            defect = f"{repr(blocks)[:40]} is not a list of whole numbers"
            raise source.wrong(line, "hash_ids", defect)
        yield Request(
            at_s=at_ms / 1000,
            input=lengths[0],
            output=max(MIN_ANSWER_TOKENS, lengths[1]),
            blocks=tuple(blocks),
        )


ADVICE = "Set the data set's columns to the names in the file, or its path to another file"

Record = tuple[int, Mapping[str, Any]]


def read(path: Path, columns: Sequence[str]) -> tuple[SampleFile, Iterator[Record]]:
    """Return a `SampleFile` for error messages, and an iterator over records of some columns.

    Lines count from 1, Parquet rows from 0. CSV values are text. An invalid record raises RunError.
    """
    if path.suffix == ".parquet":
        return SampleFile(file=path), _rows(path, columns)
    source = SampleFile(file=path, row="line", whole="file")
    if path.suffix == ".csv":
        return source, csv_records(path, columns, advice=ADVICE)
    return source, _jsonl(source, columns)


def _rows(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    cells = read_frame(path, columns=columns)
    for row, values in enumerate(zip(*(cells[name] for name in columns), strict=True)):
        yield row, dict(zip(columns, values, strict=True))


def _jsonl(source: SampleFile, columns: Sequence[str]) -> Iterator[Record]:
    for number, record in json_lines.objects(source.file):
        if not record.keys() >= set(columns):
            column_positions(
                f"{source.file}: line {number}", list(record), columns, ADVICE, "object"
            )
        yield number, {name: record[name] for name in columns}
