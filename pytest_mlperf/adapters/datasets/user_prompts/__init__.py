"""Read your own prompts from JSONL, CSV or Parquet files, or generate synthetic prompts."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from pytest_mlperf import RunError
from pytest_mlperf.adapters.datasets.files import FileOptions, encode, find_file, require_enough
from pytest_mlperf.adapters.datasets.files.frames import require_pyarrow
from pytest_mlperf.adapters.datasets.files.tokenizer import require_tokenizer
from pytest_mlperf.adapters.datasets.prompts import (
    PromptDataset,
    SampleFile,
    Template,
    TextPrompts,
    TokenLists,
    token_list,
)
from pytest_mlperf.adapters.datasets.user_prompts._synthetic import (
    Lengths,
    Shared,
    SyntheticPrompts,
)
from pytest_mlperf.adapters.datasets.user_prompts._trace import (
    Request,
    TracePrompts,
    read,
    read_trace,
)
from pytest_mlperf.adapters.lazy import np

ENDINGS = (".jsonl", ".csv", ".parquet")

SAMPLE_FIELDS = ("prompt", "reference", "output_tokens")

MADE_UP = ("samples", "input_tokens", "output_tokens", "shared", "tokenizer", "seed")
"""Options of synthetic prompts."""


@dataclass(frozen=True, kw_only=True)
class UserPromptsOptions(FileOptions, dataset="prompts"):
    """Options of the data set prompts: a file and its columns, or synthetic prompts.

    Lengths are in tokens: a mean, with a fifth of it as standard deviation; or `{ mean = 1024, sd =
    100 }`, a normal distribution cut at three standard deviations; `{ low = 512, high = 2048 }`,
    uniform; or `{ fixed = 1024 }`. Requests of one fixed length finish together, so that the server
    gets all new requests at once: use `fixed` only to compare with results measured that way.

    Attributes:
        path: JSONL, CSV or Parquet file, a folder with one, or a pattern such as
            "data/train-*.parquet" for all files in the order of their names. None generates
            synthetic prompts.
        columns: Names of the columns of "prompt" (text or a list of token ids), "reference"
            (compared with an answer) and "output_tokens" (length of the answer). Columns not named
            here are not read, except the prompt's, which is "prompt" by default.
        trace: Whether the file is a recorded trace in Mooncake's JSONL format: "timestamp" in
            milliseconds, "input_length", "output_length" and "hash_ids", one id for each 512 tokens
            of a prompt. Prompts are synthetic: equal ids give equal text. For scenario OpenLoop.
        samples: Number of synthetic prompts.
        input_tokens: Lengths of synthetic prompts, with a word counted as a token; exact with
            `tokenizer`.
        output_tokens: Lengths of answers. Set the engine's `ignore_eos`, and `max_new_tokens` to
            the longest answer. With None, the engine's options decide the lengths.
        shared: Shared prefixes: `{ prefixes = 8, tokens = 512, share = 0.5 }` starts half of the
            prompts with one of 8 prefixes. None shares none.
        tokenizer: Model folder with the tokenizer, for synthetic prompts of exact length.
        seed: Seed of synthetic prompts.
        repeat: Whether all runs send the same prompts, to measure with a prefix cache. Otherwise
            each timed run inserts a few random words into the prompts.
    """

    path: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    trace: bool = False
    samples: int = 1024
    input_tokens: int | Mapping[str, Any] = 1024
    output_tokens: int | Mapping[str, Any] | None = None
    shared: Mapping[str, Any] | None = None
    tokenizer: str | None = None
    seed: int = 0
    repeat: bool = False

    def __post_init__(self) -> None:
        seed = ("seed", self.seed, type(self.seed) is int, "a whole number")
        trace = ("trace", self.trace, type(self.trace) is bool, "true or false")
        repeat = ("repeat", self.repeat, type(self.repeat) is bool, "true or false")
        self.check(seed, trace, repeat, samples="prompts")
        if self.path is None:
            _ = self.made_up
            self._refuse(("columns", "count", "trace"), "applies to a file; set path, or remove it")
            return
        made_up = [name for name in MADE_UP if getattr(self, name) != getattr(type(self), name)]
        if self.trace:
            made_up = [name for name in made_up if name not in ("tokenizer", "seed")]
            self._refuse(("columns",), "applies to a file of prompts; a trace has its own columns")
        self._refuse(made_up, "applies to generated prompts; remove it, or remove path")
        for part, column in self.columns.items():
            if part not in SAMPLE_FIELDS:
                fields, near = ", ".join(SAMPLE_FIELDS), get_close_matches(part, SAMPLE_FIELDS, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"valid are {fields}"
                raise self.wrong(f"key {part!r} of columns is unknown; {hint}", option="columns")
            if type(column) is not str:
                defect = f"columns.{part} = {column!r} is not a name of a column"
                raise self.wrong(defect, option="columns")

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            if getattr(self, name):
                raise self.wrong(f"{name} {reason}", option=(name, "path"))

    @property
    def made_up(self) -> SyntheticPrompts:
        output = self.output_tokens
        return SyntheticPrompts(
            seed=self.seed,
            input=Lengths.parse("input_tokens", self.input_tokens, least=1),
            # A time per token needs two.
            output=None if output is None else Lengths.parse("output_tokens", output, least=2),
            shared=Shared.parse(self.shared),
            tokenizer=self.tokenizer,
        )

    def find(self) -> Sequence[Path]:
        if self.tokenizer is not None:
            require_tokenizer(self.tokenizer)
        if self.path is None:
            return ()
        files = [Path(name) for name in sorted(glob.glob(self.path))]  # noqa: PTH207 - has a root
        if "*" not in self.path or not files:
            files = [find_file(Path(self.path), endings=ENDINGS, whole="file of prompts")]
        if self.trace and (len(files) > 1 or files[0].suffix != ".jsonl"):
            defect = f"trace = true needs one .jsonl file, but path = {self.path!r}"
            raise self.wrong(defect, option="path")
        for file in files:
            if file.suffix not in ENDINGS:
                endings = ", ".join(ENDINGS)
                defect = f"{file} has an unknown ending; rename or convert it to one of {endings}"
                raise self.wrong(defect, option="path")
            require_pyarrow(file)
        return files


class UserPromptsDataset(PromptDataset):
    """Prompts as text or token ids, optionally with the length of each answer.

    Synthetic prompts share no prefix unless `shared` is set, so a prefix cache has no hits until a
    prompt is repeated.
    """

    optional_libraries = ("pyarrow", "transformers")
    options = UserPromptsOptions

    _made_up: SyntheticPrompts | None = None
    _lengths: Sequence[int] | None = None
    _requests: Sequence[Request] = ()

    @property
    def made_up(self) -> bool:
        """Whether prompts are synthetic, so that their words may be replaced."""
        return self._made_up is not None

    def _read(self, options: UserPromptsOptions, files: Sequence[Path]) -> None:
        self.repeat = options.repeat
        if not files:
            self._made_up = options.made_up
            self._samples = range(options.samples)
            return
        if options.trace:
            self._requests = read_trace(files[0], options.count)
            self._made_up = TracePrompts(
                requests=self._requests, seed=options.seed, tokenizer=options.tokenizer
            )
            self._samples = range(len(self._requests))
            return
        names = {"prompt": "prompt", **options.columns}
        cells: dict[str, list[Any]] = {part: [] for part in names}
        for file in files:
            left = None if options.count is None else options.count - len(cells["prompt"])
            source, records = read(file, list(dict.fromkeys(names.values())))
            for row, record in islice(records, left):
                for part, name in names.items():
                    cells[part].append(_value(source, row, name, part, record[name]))
                _check_kind(source, row, names["prompt"], cells["prompt"])
            if not cells["prompt"] and left != 0:
                source.check_size(0, None)
        where = files[0] if len(files) == 1 else options.path
        require_enough(where, options.count, len(cells["prompt"]), "prompts")
        self._keep_cells(SampleFile(file=files[0]), cells)

    def _keep_cells(self, source: SampleFile, cells: Mapping[str, list[Any]]) -> None:
        prompts = cells["prompt"]
        template = Template("data set prompts", "{prompt}", ("prompt",))
        self._prompts = (
            TextPrompts(template, {"prompt": prompts})
            if isinstance(prompts[0], bytes)
            else TokenLists(source, "prompt", prompts)
        )
        self._samples = cells.get("reference") or [None] * len(prompts)
        self._lengths = cells.get("output_tokens")

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over prompts, references and lengths, or over the settings if synthetic."""
        if self._made_up is not None:
            return self._made_up.digest(len(self))
        is_text = isinstance(self._prompts, TextPrompts)
        self.kind = b"prompts text" if is_text else b"prompts tokens"
        return self._hash().hexdigest()

    def _content(self, index: int) -> tuple[bytes, bytes]:
        about = repr((self._samples[index], self.output_tokens(index)))
        return self._prompts.content(index), encode(about)

    def input(self, index: int) -> list[int] | str:
        if self._made_up is not None:
            return self._made_up.prompt(self._checked(index))
        return super().input(index)

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return the mean "input_tokens" if known, and "prefix_share" for synthetic prompts.

        "prefix_share" is the share of prompt tokens that belong to a prefix of an earlier prompt,
        if each prompt is sent once.
        """
        if self._made_up is None:
            return super().sizes(indices)
        shared = {"prefix_share": self._made_up.prefix_share(indices)}
        if self._made_up.tokenizer is None:
            return shared
        return {**shared, "input_tokens": fmean(map(self._made_up.input_tokens, indices))}

    def reference(self, index: int) -> Any:
        reference = self._sample(index)
        if self._made_up is None and reference is not None:
            return reference
        raise RunError(
            "dataset",
            "data set prompts: its samples have no references to compare answers with; set "
            'columns = { reference = "COLUMN" }, or leave out the scorer',
        )

    def output_tokens(self, index: int) -> int | None:
        if self._made_up is not None:
            return self._made_up.output_tokens(self._checked(index))
        return None if self._lengths is None else self._lengths[self._checked(index)]

    def arrival_s(self, index: int) -> float:
        """Return a request's arrival on the trace's clock [s]; raise RunError without a trace."""
        if not self._requests:
            raise RunError(
                "dataset",
                "data set prompts: its requests have no arrival times; set path to a trace "
                'and trace = true, or set arrivals = "poisson" in the scenario',
            )
        return self._requests[self._checked(index)].at_s


def _value(source: SampleFile, row: int, column: str, part: str, cell: Any) -> Any:
    if part == "reference":
        return source.text(row, column, cell)
    if part == "output_tokens":
        return _length(source, row, column, cell)
    if isinstance(cell, str):
        if not cell:
            raise source.wrong(row, column, "the prompt is empty")
        return encode(cell)
    if not isinstance(cell, list | np.ndarray):
        defect = f"a value of type {type(cell).__name__} is neither text nor a list of token ids"
        raise source.wrong(row, column, defect)
    return token_list(source, row, column, cell, "prompt")


def _length(source: SampleFile, row: int, column: str, cell: Any) -> int:
    digits = isinstance(cell, str) and cell.isascii() and cell.isdecimal() and len(cell) < 10
    return source.length(row, column, int(cell) if digits else cell)


def _check_kind(source: SampleFile, row: int, column: str, prompts: Sequence[Any]) -> None:
    if isinstance(prompts[0], bytes) != isinstance(prompts[-1], bytes):
        defect = "all prompts must be text, or all must be token ids; this one and the first differ"
        raise source.wrong(row, column, defect)
