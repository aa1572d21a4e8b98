"""Read every answer in LoadGen's log line by line, including logged tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pytest_mlperf.core.answer_forms import converted
from pytest_mlperf.core.compliance import LoggedAnswer
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.run.worker.clocks import RUN_FILE, TOKENS_FILE
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.foreign import UnfitError, lines_of

BRACKETS = (b"", b"[", b"]")

MAX_LINE_BYTES = 2**31
"""Maximum size of an answer in hex; two images of 1024 x 1024 have 13 MB."""

MAX_COUNTS = 2**31


def logged_answers(log: Path) -> Iterator[LoggedAnswer]:
    """Yield a log's answers in order; raise RunError at an invalid line."""
    try:
        for number, line in enumerate(lines_of(log, MAX_LINE_BYTES), start=1):
            text = line.strip().removesuffix(b",")
            if text not in BRACKETS:
                yield _answer(log, number, text)
    except OSError as error:
        raise RunError("loadgen", f"cannot read {log}: {error.strerror}", str(log)) from error
    except UnfitError as error:
        raise RunError(
            "loadgen", f"{log} cannot be read as a log: it is {error}", str(log)
        ) from None


def answer_forms(folder: Path) -> tuple[str, ...]:
    """Return (format of the engine's answers, format in the log); () if they are equal."""
    path = folder / RUN_FILE
    try:
        run = parse_json(path.read_bytes()) if path.exists() else {"result": {}}
        return tuple(map(str, run["result"].get("answer_forms", ())))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError("worker", f"cannot read {path}: {error}", str(path)) from None


def engine_answers(log: Path, samples: Collection[int] | None = None) -> dict[int, bytes]:
    """Return the first answer to each sample (of `samples`, if given), in the engine's format."""
    forms, outputs = answer_forms(log.parent)[::-1], dict[int, bytes]()
    for answer in logged_answers(log):
        if samples is None or answer.index in samples:
            outputs.setdefault(answer.index, answer.data)
    try:
        return {n: converted(o, forms) for n, o in outputs.items()} if forms else outputs
    except ValueError as error:
        raise RunError("loadgen", f"{log} is damaged: {error}", str(log)) from None


def token_counts(folder: Path) -> dict[int, list[int]]:
    """Return the token counts of a run's answers, by data set index; {} if not counted."""
    path = folder / TOKENS_FILE
    try:
        counts = parse_json(path.read_bytes(), max_values=MAX_COUNTS) if path.exists() else {}
        return {int(index): [int(tokens) for tokens in each] for index, each in counts.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RunError("worker", f"cannot read {path}: {error}", str(path)) from None


def write_answers(log: Path, outputs: Sequence[bytes]) -> None:
    """Write answers of samples 0, 1, … in LoadGen's format."""
    lines = [
        f'{{ "seq_id" : {n}, "qsl_idx" : {n}, "data" : "{output.hex().upper()}" }}'
        for n, output in enumerate(outputs)
    ]
    atomic.write_text(log, "[\n" + ",\n".join(lines) + "\n]\n")


def _answer(log: Path, number: int, text: bytes) -> LoggedAnswer:
    try:
        entry = parse_json(text)
        first = entry.get("token_data")
        tokens = entry.get("token_count")
        return LoggedAnswer(
            index=int(entry["qsl_idx"]),
            data=bytes.fromhex(entry["data"]),
            tokens=None if tokens is None else int(tokens),
            first=None if first is None else bytes.fromhex(first),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        damage = f"{log}:{number} is damaged: {text[:60]!r} is not an answer"
        raise RunError("loadgen", damage, str(log)) from None
