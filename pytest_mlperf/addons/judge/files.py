"""Read result files: find them, recognise their format by content, and remove duplicates."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pytest_mlperf import EnvironmentFault, MlperfError
from pytest_mlperf.addons.judge.model import ToolRun
from pytest_mlperf.addons.judge.readers.fields import JsonObject
from pytest_mlperf.extension import inflate, parse_json, some, text_of
from pytest_mlperf.stores.foreign import content_of

MAX_RESULT_BYTES = 512 * 2**20
"""Largest file: a serving benchmark of 20,000 requests with all its details has 300 MB."""

MAX_VALUES = 20_000_000

READ_SUFFIXES = (".json", ".jsonl", ".csv", ".txt", ".gz", ".ndjson")
"""Files of a folder that must be readable; others may be anything."""

_SIDE_FILES = (
    *(".pytorch.json", "mlperf_log_detail.txt", "mlperf_log_accuracy.json"),
    *("mlperf_log_trace.json", "benchmarks.json.lock", "machine.json"),
)
"""Files that tools write next to their results."""


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """Hold the content of one result file or folder.

    Attributes:
        path: Path of the file, or of the folder if the tool writes one per run.
        text: Content; "" for a folder.
    """

    path: Path
    text: str = ""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return hashlib.sha256(self.text.encode("utf-8", "backslashreplace")).hexdigest()

    @cached_property
    def values(self) -> list[Any]:
        """JSON value of the file, or of each line; [] if not JSON; MlperfError if cut off."""
        start = self.text.lstrip()[:1]
        if start not in ("{", "["):
            return []
        try:
            return [_json(self.text)]
        except ValueError as error:
            whole = MlperfError(_broken_json(self.path, self.text, error))
        lines = [line for line in self.text.splitlines() if line.strip()]
        values = []
        for position, line in enumerate(lines, start=1):
            try:
                values.append(_json(line))
            except ValueError:
                if position == 1:  # one JSON value over several lines
                    raise whole from None
                raise MlperfError(
                    f"{self.path}: line {position} is not complete JSON: was the tool stopped "
                    "while it wrote? Remove the line, or measure again"
                ) from None
        return values

    @cached_property
    def objects(self) -> list[JsonObject]:
        """JSON objects of the file: one per line, those of its only list, or the only one."""
        values = self.values
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        return [JsonObject(value) for value in values if isinstance(value, dict)]

    @property
    def head(self) -> JsonObject:
        """First JSON object of the file; empty if there is none."""
        return next(iter(self.objects), JsonObject())

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        """Rows of a CSV file by column heading; empty if the text is not CSV."""
        heading = self.text.partition("\n")[0]
        separator = max(",;\t", key=heading.count)
        if self.text.lstrip()[:1] in ("{", "[") or separator not in heading:
            return []
        with contextlib.suppress(csv.Error):
            table = csv.DictReader(io.StringIO(self.text), delimiter=separator)
            names = Counter(table.fieldnames)
            if (name := max(names, key=lambda name: names[name])) and names[name] > 1:
                raise MlperfError(f"{self.path}: two columns have the name {name!r}; rename one")
            rows = list(table)
            if rows and None in rows[-1].values() and not self.text.endswith("\n"):
                raise MlperfError(
                    f"{self.path}: the last row of the table is cut off: was the tool stopped "
                    "while it wrote? Measure again"
                )
            return [{k: v for k, v in row.items() if isinstance(k, str)} for row in rows]
        return []


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Define how the result files of one tool are recognised and read.

    Attributes:
        title: Name of the tool in messages.
        recognise: Checks by its content whether a file is a result of the tool.
        read: Returns the runs in a file; `run_of` fills in the common fields.
        of_folders: Whether the tool writes a folder for each run.
        suspicious: Gets new / baseline ratios by metric; returns the metrics whose definition seems
            to have changed between versions of the tool, each with a reason.
    """

    title: str
    recognise: Callable[[ResultFile], bool]
    read: Callable[[ResultFile], Iterable[ToolRun]]
    of_folders: bool = False
    suspicious: Callable[[Mapping[str, float]], Mapping[str, str]] | None = None


def has_keys(*keys: str, marks: Iterable[str] = ()) -> Callable[[ResultFile], bool]:
    """Return a function that recognises a document by the keys of its first object.

    Args:
        marks: Keys of which the object must have at least one; empty for no such condition.
    """
    return lambda document: (
        document.head.keys() >= set(keys)
        and (not marks or not document.head.keys().isdisjoint(marks))
    )


def run_of(document: ResultFile, tool: str, index: int | None = None, **more: Any) -> ToolRun:
    """Create a run from a file or its JSON object `index` (from 0); `more` has its other fields."""
    source, digest = str(document.path), document.digest
    if index is not None and len(document.objects) > 1:
        source = f"{source}:{index + 1}"
        content = json.dumps(document.objects[index], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()
    folder = document.path if not document.text else document.path.parent
    return ToolRun(tool=tool, source=source, digest=digest, folder=str(folder), **more)


@cache
def readers() -> Mapping[str, Reader]:
    """Return all readers by name; raise EnvironmentFault if one cannot be loaded."""
    loaded: dict[str, Reader] = {}
    for entry in sorted(entry_points(group="pytest_mlperf.readers"), key=lambda entry: entry.name):
        owner = f"reader {entry.name} ({entry.dist.name if entry.dist else entry.module})"
        if entry.name in loaded:
            raise EnvironmentFault(f"{owner}: two packages have a reader of this name; remove one")
        try:
            reader = entry.load()
        except Exception as error:  # code of another package may raise anything
            raise EnvironmentFault(f"{owner} cannot be loaded: {text_of(error)}") from error
        if not isinstance(reader, Reader):
            raise EnvironmentFault(f"{owner} is not a Reader; update or remove the package")
        loaded[entry.name] = reader
    return loaded


def title_of(tool: str) -> str:
    """Return the display name of a tool, or the given name if no reader has it."""
    return readers()[tool].title if tool in readers() else tool


def read_text(path: Path) -> ResultFile:
    """Read a text file; unpack gzip.

    Raises:
        MlperfError: The file is empty, binary, too large or cannot be read.
    """
    content = content_of(path, "result file", MAX_RESULT_BYTES)
    if content[:2] == b"\x1f\x8b":
        try:
            content = inflate(content, MAX_RESULT_BYTES)
        except (ValueError, gzip.BadGzipFile) as error:
            raise MlperfError(f"{path}: {error}") from None
    if not content.strip():
        raise MlperfError(f"{path}: the file is empty: did the tool stop early? Measure again")
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise MlperfError(f"{path}: not a text file; give the tool's JSON, JSON lines or CSV")
    return ResultFile(path=path, text=text)


@dataclass(frozen=True, kw_only=True)
class Side:
    """Hold the baseline's or the new runs, oldest first if times are known, and notes on files."""

    runs: tuple[ToolRun, ...]
    notes: tuple[str, ...] = ()


def read_side(paths: Sequence[Path], table: Reader | None = None) -> Side:
    """Return the runs in files and folders as one side of a comparison; count duplicates once.

    Args:
        table: Reader for tables whose columns the user named; None if the user named none.

    Raises:
        MlperfError: A file cannot be read or recognised, or no run was found.
        EnvironmentFault: A reader of another package cannot be loaded.
    """
    runs: dict[str, ToolRun] = {}
    notes: list[str] = []
    unknown: list[str] = []
    for path in paths:
        for document in _results_in(path, unknown) if path.is_dir() else [read_text(path)]:
            try:
                reader = _recognised(document, table)
            except UnknownFormatError:
                if not path.is_dir():
                    raise
                unknown.append(document.path.name)
                continue
            for run in _read(reader, document):
                if not _is_distinct(run):
                    origin = f"{run.digest} {document.path.resolve()}".encode()
                    run = replace(run, digest=hashlib.sha256(origin).hexdigest())  # noqa: PLW2901
                first = runs.setdefault(identity(run), run)
                if first is not run:
                    notes.append(f"{run.source} is the same run as {first.source}: counted once")
    if unknown:
        notes.append(f"left out, not written by a known tool: {some(unknown)}")
    if not runs:
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise MlperfError(f"{' '.join(map(str, paths))}: no result file found{reasons}")
    ordered = sorted(runs.values(), key=lambda run: (run.started is None, run.started or 0.0))
    notes += dict.fromkeys(note for run in ordered for note in run.notes)
    return Side(runs=tuple(ordered), notes=tuple(notes))


MIN_FIGURES = 4
"""Figures from which two equal runs without a time are the same run: one rounded figure may well
repeat."""


def _is_distinct(run: ToolRun) -> bool:
    figures = sum(len(point.metrics) + len(point.scores) for point in run.points)
    return run.started is not None or figures >= MIN_FIGURES


def identity(run: ToolRun) -> str:
    """Return a text that is equal for copies of a run, reformatted ones included."""
    if not _is_distinct(run) or not any(point.metrics for point in run.points):
        return run.digest
    return repr((run.tool, run.started, run.points))


def refuse_shared(base: Side, now: Side) -> None:
    """Raise MlperfError if both sides contain the same run; allow it for runs with scores only."""
    measured = [run for run in base.runs if any(p.metrics for p in run.points)]
    old = {key: run.source for run in measured for key in (run.digest, identity(run))}
    for run in now.runs:
        if source := old.get(run.digest) or old.get(identity(run)):
            raise MlperfError(
                f"{run.source} and {source} are the same run, which cannot be compared with "
                "itself; remove it from one side"
            )


def _read(reader: Reader, document: ResultFile) -> list[ToolRun]:
    try:
        runs = list(reader.read(document))
    except MlperfError:
        raise
    except Exception as error:  # a reader meets what no tool wrote
        reason = f"{type(error).__name__}: {text_of(error)}"
        raise MlperfError(
            f"{document.path}: looks like output of {reader.title}, but its fields differ from "
            f"those of the known versions ({reason}); is it complete, and of a known version?"
        ) from error
    if not any(run.points for run in runs):
        raise MlperfError(
            f"{document.path}: contains no measurement of {reader.title}; see the tool's own output"
        )
    return list(map(_redacted, runs))


_SECRETS = re.compile(
    r"(?i)(?P<key>[\w-]*(?:api-?_?key|token|password|secret|bearer)[=: ]+)(?P<value>[^\s'\"]+)"
)
_LOGIN = re.compile(r"(?P<scheme>\w+://)[^/\s@]+@")


def redacted(text: str) -> str:
    """Replace secrets in a text by ***, and remove user names and passwords from URLs."""
    text = _LOGIN.sub(r"\g<scheme>", text)
    return _SECRETS.sub(r"\g<key>***", text)


def _redacted(run: ToolRun) -> ToolRun:
    named = {name: f"{name}={text}" for name, text in run.details.items()}
    details = {name: redacted(text).partition("=")[2] for name, text in named.items()}
    points = tuple(replace(p, name=redacted(p.name)) for p in run.points)
    return replace(run, points=points, details=details)


class UnknownFormatError(MlperfError):
    """Report that no reader of `addons/judge/readers` recognises a file's format."""


def _recognised(document: ResultFile, table: Reader | None) -> Reader:
    folder = document.path.is_dir()
    fitting = [
        reader
        for name, reader in readers().items()
        if reader.of_folders == folder and _fits(name, reader, document)
    ]
    if table is not None and (document.rows or document.objects):
        return table
    if len(fitting) > 1:
        raise MlperfError(
            f"{document.path}: looks like output of {' and of '.join(r.title for r in fitting)}; "
            "give the original file of one tool"
        )
    if fitting:
        return fitting[0]
    if set(document.head) == {"error"}:
        raise MlperfError(f"{document.path}: holds only an error: the tool measured nothing")
    shape = _shape(document)
    titles = ", ".join(sorted(reader.title for reader in readers().values()))
    figures = any(isinstance(value, int | float) for value in document.head.values())
    hint = "; for a table of your own name its columns with --column"
    raise UnknownFormatError(
        f"{document.path}: {shape}, not written by a known tool. Known tools: {titles}"
        f"{hint if document.rows or figures else ''}"
    )


def reader_of_file(path: Path) -> str:
    """Return the display name of the tool that wrote a file; "" if unknown or unreadable."""
    try:
        return _recognised(read_text(path), None).title
    except MlperfError:
        return ""


def _fits(name: str, reader: Reader, document: ResultFile) -> bool:
    try:
        return reader.recognise(document)
    except MlperfError:
        raise
    except Exception as error:  # code of another package may raise anything
        reason = f"{type(error).__name__}: {text_of(error)}"
        raise EnvironmentFault(f"reader {name} cannot be used: it raised {reason}") from error


def _shape(document: ResultFile) -> str:
    if document.head:
        keys = ", ".join(list(document.head)[:5])
        return f"JSON with the keys {keys}"
    return "a CSV table" if document.rows else "JSON" if document.values else "a text"


def _results_in(
    folder: Path, unknown: list[str], parents: frozenset[Path] = frozenset()
) -> Iterator[ResultFile]:
    """Yield `folder` if it is one result, else the results in it; add other names to `unknown`."""
    parents |= {folder.resolve()}
    whole = ResultFile(path=folder)
    if any(r.of_folders and _fits(name, r, whole) for name, r in readers().items()):
        yield whole
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.resolve() not in parents:  # else a link back
                yield from _results_in(path, unknown, parents)
        elif not path.name.endswith(_SIDE_FILES):
            try:
                document = read_text(path)
            except MlperfError:  # an empty or cut result is an error, a picture is none
                if path.suffix in READ_SUFFIXES:
                    raise
                unknown.append(path.name)
            else:
                yield document


def _json(text: str) -> Any:
    return parse_json(text, max_values=MAX_VALUES, repeated_keys=True)


def _broken_json(path: Path, text: str, error: ValueError) -> str:
    end = isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip()) - 1
    if end or (isinstance(error, json.JSONDecodeError) and error.msg.startswith("Unterminated")):
        return f"{path}: the JSON is cut off: was the tool stopped while it wrote? Measure again"
    return f"{path}: not valid JSON: {text_of(error)}"
