"""Read the streaming data of MLPerf's DLRM v3: user requests in time order."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from pytest_mlperf.adapters.datasets.files import FileDataset, FileOptions, wrong
from pytest_mlperf.adapters.lazy import NDArray, np

ADVICE = "get the data as README.md of MLPerf's dlrm_v3 reference says"

MIN_LIKED_RATING = 3.5

STEP_FIELDS = 4
"""Fields of a user's time step: candidates, their ratings, history, its ratings."""

EXTRA_TIME_STEPS = 2
"""Time steps of a row outside the stream: the initial history, and one for evaluation."""

MAX_ROW_BYTES = 1 << 26
"""Maximum bytes of one user's row; a row of MLPerf's data has about 0.4 MB."""

LOOK_REQUESTS = 1000
FILES = (
    "offset.csv",
    "requests_per_ts.csv",
    "requests_per_ts_offset.csv",
    "users_cumsum_per_ts.csv",
)


@dataclass(frozen=True, kw_only=True)
class StreamingOptions(FileOptions, dataset="streaming", noun="requests"):
    """Options of the data set streaming.

    Attributes:
        path: Folder with 0.csv, 1.csv and so on, offset.csv, requests_per_ts.csv,
            requests_per_ts_offset.csv and users_cumsum_per_ts.csv; or with these in sampled_data.
        steps: Number of time steps in the data.
        first_step: First time step with requests; earlier steps are history.
        share: Share of each step's requests to use, starting from the first; MLPerf computed its
            reference scores with 0.1.
        max_history: Maximum number of actions in a user's history, starting from the first. The
            default is MLPerf's sequence length of 16,384, less 32 candidates and 1 for the user.
        max_candidates: Maximum number of candidates per request, starting from the first.
    """

    path: str
    steps: int = 100
    first_step: int = 90
    share: float = 1.0
    max_history: int = 16_351
    max_candidates: int = 2048

    def __post_init__(self) -> None:
        number = type(self.share) in (int, float)
        share = "share", self.share, number and 0 < self.share <= 1, "above 0 and at most 1"
        most = self.steps if type(self.steps) is int else 1 << 62
        begins = type(self.first_step) is int and 0 <= self.first_step < most
        step = ("first_step", self.first_step, begins, "a whole number from 0 to steps - 1")
        units = {"steps": "time steps", "max_history": "actions", "max_candidates": "candidates"}
        self.check(share, step, **units)

    def find(self) -> Path:
        folder = Path(self.path)
        if not (folder / FILES[0]).is_file():
            folder /= "sampled_data"
        missing = [name for name in (*FILES, "0.csv") if not (folder / name).is_file()]
        location = folder if folder.is_dir() else Path(self.path)
        problem = f"{location}: {', '.join(missing)} of the streaming data not found; {ADVICE}"
        self.require((not missing, f"{problem}, or set the data set's path to their folder"))
        return folder


class StreamingDataset(FileDataset[tuple[int, int, int]]):
    """Requests in time order, step by step.

    MLPerf's reference answers the requests in this order, whatever samples LoadGen issues, because
    each step needs the history before it (`in_order`). A performance run cycles through the
    requests in this order; an accuracy run issues each request once, by its index. The reference
    shuffles the requests of a step without a seed; here they keep the order of the file.
    Source: recommendation/dlrm_v3/datasets/synthetic_streaming.py in mlcommons/inference on GitHub.

    When the data set is built, all offsets, users and counts are checked, but only the rows of
    1,000 evenly spaced requests. The digest covers the same data.
    """

    options = StreamingOptions
    in_order: ClassVar[bool] = True

    def _read(self, options: StreamingOptions, files: Path) -> None:
        self._folder = files
        self._places = _offsets(files)
        self._rows = [Lines(files / f"{number}.csv") for number in range(len(self._places))]
        self._users = len(self._places[0])
        self._stream = self._streamed()
        steps = range(options.first_step, options.steps)
        requests = [(step, *each) for step in steps for each in self._requests_of(step)]
        if not requests:
            defect = f"no request is left with share = {options.share:g}"
            raise wrong(files, defect, "set share higher, or first_step lower")
        self._keep(requests, options.count, files)
        self.digest = self._checked_digest()

    def input(self, index: int) -> dict[str, Any]:
        """Read one request.

        "step": time step, counted from `first_step`; "query": position of the request in its step.
        "history" (past items) with its "ratings", and "candidates" with their "labels" (0 or 1),
        are one-dimensional arrays; items are int64.
        """
        step, query, user = self._sample(index)
        line = self._line(user)
        names = ("candidates", "candidate_ratings", "history", "ratings")
        fields = dict(zip(names, self._parsed(line, step, user), strict=True))
        labels = fields.pop("candidate_ratings") >= MIN_LIKED_RATING
        return {
            "step": step - self._asked.first_step,
            "query": query,
            "user": user,
            **fields,
            "labels": labels.astype("i8"),
        }

    def reference(self, index: int) -> dict[str, Any]:
        sample = self.input(index)
        return {name: sample[name] for name in ("step", "query", "labels")}

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return {"parts": mean number of candidates in the first `LOOK_REQUESTS` requests}."""
        looked = list(indices)[:LOOK_REQUESTS]
        return {"parts": fmean(len(self.input(index)["candidates"]) for index in looked)}

    def _requests_of(self, step: int) -> list[tuple[int, int]]:
        users, ends = self._stream[step]
        file = self._folder / "requests_per_ts.csv"
        if len(ends) != len(self._places) or ends != sorted(ends) or ends[-1:] != [len(users)]:
            raise wrong(
                self._folder / "users_cumsum_per_ts.csv",
                f"time step {step} needs {len(self._places)} ascending numbers, one for each file "
                f"of users, the last of them {len(users)} (users of this step in {file.name}), but "
                f"has {len(ends)} numbers that end with {ends[-3:]}",
                ADVICE,
            )
        begin = 0
        for number, end in enumerate(ends):
            first = number * self._users
            for user in users[begin:end]:
                if not first <= user < first + self._users:
                    defect = f"time step {step} has user {user}, who is not in {number}.csv"
                    raise wrong(file, defect, ADVICE)
            begin = end
        return list(enumerate(users[: int(len(users) * self._asked.share)]))

    def _streamed(self) -> dict[int, tuple[list[int], list[int]]]:
        counted = _lists(self._folder / "users_cumsum_per_ts.csv")
        (starts,) = _lists(self._folder / "requests_per_ts_offset.csv")[:1] or [[]]
        options = self._asked
        if not len(counted) == len(starts) == options.steps:
            raise wrong(
                self._folder,
                f"requests_per_ts_offset.csv has {len(starts)} time steps and "
                f"users_cumsum_per_ts.csv has {len(counted)}, but steps = {options.steps}",
                "set steps to the number of time steps in the data, and first_step below it",
            )
        rows = Lines(self._folder / "requests_per_ts.csv")
        return {
            step: (_whole(rows.file, rows.line_from(starts[step])), counted[step])
            for step in range(options.first_step, options.steps)
        }

    def _line(self, user: int) -> bytes:
        number, row = divmod(user, self._users)
        return self._rows[number].line_from(int(self._places[number][row]))

    def _parsed(self, line: bytes, step: int, user: int) -> list[NDArray[Any]]:
        fields, options = _fields(line), self._asked
        source = f"{self._folder}: user {user}"
        expected = STEP_FIELDS * (options.steps + EXTRA_TIME_STEPS)
        if len(fields) != expected:
            steps = options.steps
            defect = f"the row has {len(fields)} fields, but steps = {steps} needs {expected}"
            raise wrong(source, defect, "set steps to the number of time steps in the data")
        rows = [fields[n : n + STEP_FIELDS] for n in range(0, expected, STEP_FIELDS)]
        # The row before that of `first_step` is for evaluation, and no history.
        earlier = [*rows[: options.first_step + 1], *rows[options.first_step + 2 : step + 2]]
        past = [row for row in earlier if row[0]]
        texts = [
            *rows[step + 2][:2],
            ",".join(row[2] for row in past),
            ",".join(row[3] for row in past),
        ]
        limits = [options.max_candidates] * 2 + [options.max_history] * 2
        try:
            arrays = [
                np.array(text.split(",") if text else [], np.int64 if even else np.float64)
                for text, even in zip(texts, (True, False, True, False), strict=True)
            ]
        except (ValueError, OverflowError) as error:
            raise wrong(source, f"time step {step}: {error}", ADVICE) from error
        lengths, values = [len(each) for each in arrays], np.concatenate(arrays)
        if not lengths[0] or lengths[::2] != lengths[1::2] or not np.isfinite(values).all():
            defect = (
                f"time step {step} has {lengths[0]} candidates with {lengths[1]} ratings, and "
                f"{lengths[2]} actions with {lengths[3]} ratings, but needs a candidate, and a "
                "finite rating for each candidate and action"
            )
            raise wrong(source, defect, ADVICE)
        if (arrays[0] < 0).any() or (arrays[2] < 0).any():
            raise wrong(source, f"time step {step} has a negative item number", ADVICE)
        return [each[:limit] for each, limit in zip(arrays, limits, strict=True)]

    def _checked_digest(self) -> str:
        options = self._asked
        settings = (options.steps, options.first_step, options.max_history, options.max_candidates)
        total = hashlib.sha256(f"streaming {settings}".encode())
        total.update(repr(self._samples).encode())
        for index in sorted({n * len(self) // LOOK_REQUESTS for n in range(LOOK_REQUESTS)}):
            step, _, user = self._samples[index]
            line = self._line(user)
            self._parsed(line, step, user)
            total.update(line)
        return total.hexdigest()


class Lines:
    """Read lines of a file by their byte offsets, without memory-mapping it; thread-safe."""

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise wrong(file.parent, f"{file.name} is not there", ADVICE)
        self.file = file
        self._open = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._open)

    def line_from(self, start: int) -> bytes:
        """Return the line that begins at a byte offset, without its line end."""
        line, piece = b"", 1 << 14
        while b"\n" not in line[-piece:]:
            if len(line) > MAX_ROW_BYTES:
                defect = f"the row at byte {start} has more than {MAX_ROW_BYTES:,} bytes"
                raise wrong(self.file, defect, ADVICE)
            read = os.pread(self._open, piece, start + len(line))
            line, piece = line + read, 2 * piece
            if not read:
                break
        line = line.partition(b"\n")[0].rstrip(b"\r")
        if not line or (start and os.pread(self._open, 1, start - 1) != b"\n"):
            raise wrong(self.file, f"no row begins at byte {start}", ADVICE)
        return line


def _fields(line: bytes) -> list[str]:
    csv.field_size_limit(sys.maxsize)  # the default is 128 KiB; MAX_ROW_BYTES limits a line
    return next(csv.reader([line.decode("ascii", "replace")]), [])


def _whole(file: Path, line: bytes) -> list[int]:
    fields = _fields(line)
    text = fields[0].strip() if len(fields) == 1 else ""
    try:
        numbers = json.loads(text if text.startswith("[") else f"[{text}]")
    except (ValueError, RecursionError):
        numbers = [None]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise wrong(file, f"{line[:60]!r} is not a list of numbers", ADVICE)
    return list(numbers)


def _lists(file: Path) -> list[list[int]]:
    return [_whole(file, line) for line in file.read_bytes().splitlines() if line]


def _offsets(folder: Path) -> list[NDArray[np.int64]]:
    offsets = [np.array(row, np.int64) for row in _lists(folder / FILES[0])]
    if not offsets or not len(offsets[0]) or len({len(row) for row in offsets}) > 1:
        counts = [len(row) for row in offsets[:3]]
        defect = f"every file must have the same number of users, but they have {counts}"
        raise wrong(folder / FILES[0], defect, ADVICE)
    return offsets
