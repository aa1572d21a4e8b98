"""Read LoadGen's accuracy log: outputs by sample, one at a time, however large they are."""

from __future__ import annotations

import re
from binascii import unhexlify
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_mlperf.core.errors import RunError

ACCURACY = "mlperf_log_accuracy.json"

_ANSWER = re.compile(
    rb'\{ "seq_id" : \d+, "qsl_idx" : (\d{1,18}), "data" : "([0-9A-Fa-f]*)"[^{}]*\},?\n?'
)
"""One line of the log; LoadGen writes one line for each answer."""

_BESIDE = ({b"[", b"", b"]"}, {b"[", b"]"})
"""Other lines of the log, without and with answers: with none, an empty line stands there."""


class AccuracyLog(Mapping[int, bytes]):
    """The outputs of an accuracy run by LoadGen's sample index, in the order of the log.

    Only places are kept in memory: the images of a diffusion model take 31 GB in this log.
    MultiStream fills its last query with samples it issued before; of such a sample the first
    answer counts, as in MLPerf's reference scripts.
    """

    def __init__(self, path: Path) -> None:
        """Find the answers.

        Raises:
            RunError: The log is missing, damaged, cut or empty.
        """
        self._path = path
        self._places: dict[int, tuple[int, int]] = {}
        start, last = 0, b""
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    answer = _ANSWER.fullmatch(line)
                    # A byte is two digits; a pattern of pairs would take a hundred times as long.
                    if answer and (answer.end(2) - answer.start(2)) % 2 == 0:
                        place = start + answer.start(2), answer.end(2) - answer.start(2)
                        self._places.setdefault(int(answer[1]), place)
                    elif last == b"]" or line.strip() not in _BESIDE[bool(self._places)]:
                        what = f"{line[:60]!r} is no answer"
                        raise self._error(f"{path}:{number} is damaged: {what}")
                    start += len(line)
                    last = line[-3:].strip()
        except OSError as error:
            raise self._error(f"cannot read {path}: {error.strerror}") from error
        if last != b"]":
            raise self._error(f"{path} is cut: its closing bracket is missing")
        if not self._places:
            raise self._error(f"{path} is empty: LoadGen logged no answer of any sample")

    def __getitem__(self, index: int) -> bytes:
        """Read one output.

        Raises:
            KeyError: There is no answer for this sample.
            RunError: The file cannot be read any more, or what is there is no answer.
        """
        start, length = self._places[index]
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                return unhexlify(file.read(length))
        except (OSError, ValueError) as error:
            raise self._error(f"{self._path} changed while it was read: {error}") from error

    def __iter__(self) -> Iterator[int]:
        """Iterate over the samples in the order of the log."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return the number of samples that were answered."""
        return len(self._places)

    def _error(self, message: str) -> RunError:
        return RunError("loadgen", message, str(self._path))
