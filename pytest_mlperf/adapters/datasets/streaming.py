"""Read the streaming data of MLPerf's DLRM v3: requests of users in the order of their time."""

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
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_mlperf.adapters.datasets.files import FileDataset, FileOptions, wrong

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ADVICE = "get the data as README.md of MLPerf's dlrm_v3 reference says"

MIN_LIKED_RATING = 3.5
"""A candidate with this rating at least has label 1."""

STEP_FIELDS = 4
"""Of a user's time step: candidates, their ratings, history, its ratings."""

EXTRA_TIME_STEPS = 2
"""Time steps of a row beside those of the stream: what came before all, and one for evaluation."""

MAX_ROW_BYTES = 1 << 26
"""Bytes of one user's row; MLPerf's have about 0.4 MB."""

LOOK_REQUESTS = 1000
FILES = (
    "offset.csv",
    "requests_per_ts.csv",
    "requests_per_ts_offset.csv",
    "users_cumsum_per_ts.csv",
)


@dataclass(frozen=True, kw_only=True)
class StreamingOptions(FileOptions):
    """Where the files are, and which requests are asked.

    Attributes:
        path: Folder with 0.csv, 1.csv and so on, offset.csv, requests_per_ts.csv,
            requests_per_ts_offset.csv and users_cumsum_per_ts.csv; or one with these in
            sampled_data, as MLPerf distributes them.
        steps: Time steps of the data.
        first_step: The first that is asked; what was before is history.
        share: Of each step the first so many requests; MLPerf's reference scores were measured on
            0.1.
        max_history: Actions of a user at most, the first ones; MLPerf's 16,384 less 32 candidates
            and the user.
        max_candidates: Candidates of a request at most, the first ones.
    """

    path: str
    steps: int = 100
    first_step: int = 90
    share: float = 1.0
    max_history: int = 16_351
    max_candidates: int = 2048

    def __post_init__(self) -> None:
        number = type(self.share) in (int, float)
        share = "share", self.share, number and 0 < self.share <= 1, "above 0, and 1 at most"
        most = self.steps if type(self.steps) is int else 1 << 62
        begins = type(self.first_step) is int and 0 <= self.first_step < most
        step = ("first_step", self.first_step, begins, "a time step below steps, from 0 on")
        units = {"steps": "time steps", "max_history": "actions", "max_candidates": "candidates"}
        self.check("streaming", share, step, **units)

    def find(self) -> Path:
        folder = Path(self.path)
        if not (folder / FILES[0]).is_file():
            folder /= "sampled_data"
        missing = [name for name in (*FILES, "0.csv") if not (folder / name).is_file()]
        place = folder if folder.is_dir() else Path(self.path)
        problem = f"{place}: {', '.join(missing)} of the streaming data not found; {ADVICE}"
        self.require((not missing, f"{problem}, or set the data set's path to where they are"))
        return folder


class StreamingDataset(FileDataset[tuple[int, int, int]]):
    """Requests by index, in the order of their time: the first step's, then the next one's.

    MLPerf's reference answers requests in this order whatever sample LoadGen asks for, as a step's
    history must be there before the step (`in_order`): a performance run issues them so, round and
    round. An accuracy run asks each once, by its own index. The reference shuffles the requests of
    one step, by a generator without a seed; here they are in the order of the file.

    Source: recommendation/dlrm_v3/datasets/synthetic_streaming.py of
    https://github.com/mlcommons/inference.

    When the data set is built, all offsets, users and counts are checked, and the rows of 1,000
    requests, spread evenly; the digest covers the same.
    """

    options = StreamingOptions
    unit = "request"
    in_order: ClassVar[bool] = True

    def _read(self, asked: StreamingOptions, files: Path) -> None:
        self._asked, self._folder = asked, files
        self._places = _offsets(files)
        self._rows = [Lines(files / f"{number}.csv") for number in range(len(self._places))]
        self._users = len(self._places[0])
        self._stream = self._streamed()
        steps = range(asked.first_step, asked.steps)
        requests = [(step, *each) for step in steps for each in self._requests_of(step)]
        self._keep(requests, asked.count, files, f"the data set has {len(requests)} requests")
        self._digest = self._look_into()

    def input(self, index: int) -> dict[str, Any]:
        """Read one request.

        Its "step", counted from the first that is asked, "query", its place in the step, and
        "user"; "history" and its "ratings", "candidates" and their "labels", 0 or 1: arrays of one
        dimension, of which items are int64.
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
        """Return the mean number of candidates of the first of these requests, "parts"."""
        looked = list(indices)[:LOOK_REQUESTS]
        return {"parts": fmean(len(self.input(index)["candidates"]) for index in looked)}

    @property
    def digest(self) -> str:
        """Hex SHA-256 over options, the requests' users, and the rows of 1,000 of them."""
        return self._digest

    def _requests_of(self, step: int) -> list[tuple[int, int]]:
        users, ends = self._stream[step]
        file = self._folder / "requests_per_ts.csv"
        if len(ends) != len(self._places) or ends != sorted(ends) or ends[-1:] != [len(users)]:
            raise wrong(
                self._folder / "users_cumsum_per_ts.csv",
                f"time step {step} has {ends[-3:]} users up to its last files, and {len(users)} in "
                f"{file.name}",
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
        asked = self._asked
        if not len(counted) == len(starts) == asked.steps:
            raise wrong(
                self._folder,
                f"requests of {len(starts)} and {len(counted)} time steps are there, steps = "
                f"{asked.steps}",
                "set steps and first_step to those of the data",
            )
        rows = Lines(self._folder / "requests_per_ts.csv")
        return {
            step: (_whole(rows.file, rows.whole(starts[step])), counted[step])
            for step in range(asked.first_step, asked.steps)
        }

    def _line(self, user: int) -> bytes:
        number, row = divmod(user, self._users)
        return self._rows[number].whole(int(self._places[number][row]))

    def _parsed(self, line: bytes, step: int, user: int) -> list[NDArray[Any]]:
        import numpy as np

        fields, asked = _fields(line), self._asked
        place = f"{self._folder}: user {user}"
        if len(fields) != STEP_FIELDS * (asked.steps + EXTRA_TIME_STEPS):
            raise wrong(
                place,
                f"the row has {len(fields)} fields, not "
                f"{STEP_FIELDS * (asked.steps + EXTRA_TIME_STEPS)} for "
                f"steps = {asked.steps}",
                "set steps to that of the data",
            )
        rows = [
            fields[STEP_FIELDS * n : STEP_FIELDS * (n + 1)]
            for n in range(asked.steps + EXTRA_TIME_STEPS)
        ]
        # Of the step for evaluation, behind the one before the first that is asked, nothing is.
        before = [*rows[: asked.first_step + 1], *rows[asked.first_step + 2 : step + 2]]
        past = [row for row in before if row[0]]
        texts = [
            *rows[step + 2][:2],
            ",".join(row[2] for row in past),
            ",".join(row[3] for row in past),
        ]
        limits = [asked.max_candidates] * 2 + [asked.max_history] * 2
        try:
            arrays = [
                np.array(text.split(",") if text else [], np.int64 if even else np.float64)
                for text, even in zip(texts, (True, False, True, False), strict=True)
            ]
        except (ValueError, OverflowError) as error:
            raise wrong(place, f"time step {step}: {error}", ADVICE) from error
        lengths, values = [len(each) for each in arrays], np.concatenate(arrays)
        if not lengths[0] or lengths[::2] != lengths[1::2] or not np.isfinite(values).all():
            defect = f"has {lengths} candidates, ratings, actions and ratings"
            raise wrong(place, f"time step {step} {defect}, or one that is no number", ADVICE)
        if (arrays[0] < 0).any() or (arrays[2] < 0).any():
            raise wrong(place, f"time step {step} has an item below 0", ADVICE)
        return [each[:limit] for each, limit in zip(arrays, limits, strict=True)]

    def _look_into(self) -> str:
        asked = self._asked
        settings = (asked.steps, asked.first_step, asked.max_history, asked.max_candidates)
        total = hashlib.sha256(f"streaming {settings}".encode())
        total.update(repr(self._samples).encode())
        for index in sorted({n * len(self) // LOOK_REQUESTS for n in range(LOOK_REQUESTS)}):
            step, _, user = self._samples[index]
            line = self._line(user)
            self._parsed(line, step, user)
            total.update(line)
        return total.hexdigest()


class Lines:
    """Lines of a file by where they begin; read, not mapped, from any thread."""

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise wrong(file.parent, f"{file.name} is not there", ADVICE)
        self.file = file
        self._open = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._open)

    def whole(self, start: int) -> bytes:
        """Return the line that begins here, without its end."""
        line, piece = b"", 1 << 14
        while b"\n" not in line[-piece:]:
            if len(line) > MAX_ROW_BYTES:
                raise wrong(
                    self.file, f"the row at byte {start} is beyond {MAX_ROW_BYTES:,}", ADVICE
                )
            read = os.pread(self._open, piece, start + len(line))
            line, piece = line + read, 2 * piece
            if not read:
                break
        line = line.partition(b"\n")[0].rstrip(b"\r")
        if not line or (start and os.pread(self._open, 1, start - 1) != b"\n"):
            raise wrong(self.file, f"no row begins at byte {start}", ADVICE)
        return line


def _fields(line: bytes) -> list[str]:
    csv.field_size_limit(sys.maxsize)  # its own is 128 KiB; a line's is MAX_ROW_BYTES
    return next(csv.reader([line.decode("ascii", "replace")]), [])


def _whole(file: Path, line: bytes) -> list[int]:
    fields = _fields(line)
    text = fields[0].strip() if len(fields) == 1 else ""
    try:
        numbers = json.loads(text if text.startswith("[") else f"[{text}]")
    except (ValueError, RecursionError):
        numbers = [None]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise wrong(file, f"{line[:60]!r} is no list of numbers", ADVICE)
    return list(numbers)


def _lists(file: Path) -> list[list[int]]:
    return [_whole(file, line) for line in file.read_bytes().splitlines() if line]


def _offsets(folder: Path) -> list[NDArray[np.int64]]:
    import numpy as np

    offsets = [np.array(row, np.int64) for row in _lists(folder / FILES[0])]
    if not offsets or not len(offsets[0]) or len({len(row) for row in offsets}) > 1:
        counts = [len(row) for row in offsets[:3]]
        raise wrong(folder / FILES[0], f"files have {counts} users, not as many each", ADVICE)
    return offsets
