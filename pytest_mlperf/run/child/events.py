"""Read the events of a child process; reject any other data that it sends.

A worker shares its process with an engine and its libraries, whose output is untrusted: it may be
endless, JSON but no event, or an event with other fields. After the checks here, callers can rely
on an event's fields. Workers in other Pythons must not import this module, as its libraries may be
missing there.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.numbers import MAX_COUNT, MAX_MAGNITUDE, MAX_RATE, MAX_SECONDS, MIN_RATE
from pytest_mlperf.core.reason import SignKey
from pytest_mlperf.core.untrusted_text import broken, encodable
from pytest_mlperf.processes import PIPE_READ_BYTES
from pytest_mlperf.run.child.protocol import Event

MAX_EVENT_BYTES = 8 * 2**20
MAX_QUOTED_BYTES = 60
POLL_SECONDS = 0.5
Check = Callable[[Any], bool]
"""Whether a field may have a value."""


def is_text(value: object) -> bool:
    """Check whether a value is a string."""
    return type(value) is str


def is_flag(value: object) -> bool:
    """Check whether a value is a bool."""
    return type(value) is bool


def is_count(value: object) -> bool:
    """Check whether a value is an integer from 0 to `MAX_COUNT`."""
    return type(value) is int and 0 <= value <= MAX_COUNT


def is_number(value: object) -> bool:
    """Check whether a value is a finite number of magnitude `MAX_MAGNITUDE` at most."""
    return type(value) in (int, float) and abs(value) <= MAX_MAGNITUDE  # type: ignore[arg-type]


def is_duration(value: object) -> bool:
    """Check whether a value is a time from 0 to `MAX_SECONDS`."""
    return is_number(value) and 0 <= value <= MAX_SECONDS  # type: ignore[operator]


def is_rate(value: object) -> bool:
    """Check whether a value is a number from `MIN_RATE` to `MAX_RATE`."""
    return is_number(value) and MIN_RATE <= value <= MAX_RATE  # type: ignore[operator]


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    """Return a check that a value is a list whose items pass `check`."""
    return lambda value: type(value) is list and all(map(check, value))


def by_name(check: Check) -> Check:
    """Return a check that a value is a dictionary whose values pass `check`."""
    return lambda value: type(value) is dict and all(map(check, value.values()))


def record(**fields: Check) -> Check:
    """Return a check that a value is a dictionary with exactly these keys, whose values pass."""
    return lambda value: (
        type(value) is dict
        and value.keys() == fields.keys()
        and all(check(value[name]) for name, check in fields.items())
    )


def _is_setting(value: object) -> bool:
    return type(value) is dict and optional(is_rate)(value.get("target_qps"))


def _is_phase(value: object) -> bool:
    return value in {"performance", "accuracy"} if type(value) is str else False


Fields = Mapping[str, Check]

ERROR: Fields = {
    "layer": is_text,
    "kind": is_text,
    "message": is_text,
    "designed": is_flag,
    "log": optional(is_text),
    "traceback": is_text,
}

_TIMES = "own_s foreign_s waited_s stolen_s throttled_s pressure_s memory_some_s memory_full_s"

REPLICA = record(
    name=is_text,
    gpus=list_of(is_text),
    samples=is_count,
    throughput=is_duration,
    latency_s=is_duration,
    shares=list_of(is_duration),
)

CONTENTION = record(
    **dict.fromkeys(_TIMES.split(), optional(is_duration)),
    **dict.fromkeys(("switches", "faults", "swapped_in"), optional(is_count)),
    window_s=is_duration,
    cores=is_count,
    others=by_name(is_duration),
    serves=optional(is_flag),
)

OF_WORKER: Mapping[str, Fields] = {
    "python": {
        "prefix": is_text,
        "executable": is_text,
        "version": is_text,
        "versions": by_name(is_text),
        "system": optional(is_text),
    },
    "started": {"pid": is_count},
    "loading": {},
    "loaded": {
        "engine": by_name(is_text),
        "dataset": record(
            digest=is_text,
            samples=is_count,
            sizes=by_name(is_number),
            fixed_lengths=is_flag,
            inputs=by_name(is_text),
            input_s=optional(is_duration),
        ),
        "files": list_of(is_text),
        "load_s": is_duration,
        "pages": optional(list_of(is_text)),
    },
    "warmed": {"warmup_s": is_duration, "takes_s": optional(is_duration)},
    "probed": {"target_qps": is_rate},
    "running": {"phase": _is_phase, "expected": is_count, "settings": _is_setting},
    "progress": {
        "phase": is_text,
        "done": is_count,
        "outstanding": is_count,
        "fault": optional(is_text),
        "elapsed_s": is_duration,
    },
    "finished": {
        "phase": _is_phase,
        "folder": is_text,
        "result": record(
            issued=is_count,
            completed=is_count,
            duration_s=is_duration,
            within_se=is_duration,
            token_metrics=by_name(is_number),
            notes=lambda value: by_name(is_text)(value) and set(value) <= set(SignKey),
            faults=list_of(is_text),
            completing_threads=is_count,
            client=by_name(is_duration),
            accepted_drafts=optional(is_count),
            contention=optional(CONTENTION),
            finishes=by_name(is_count),
            replicas=list_of(REPLICA),
            peak_bytes=optional(is_count),
            clock_moved_s=is_number,
            slow_start=by_name(is_number),
            corrected=is_flag,
            hidden_share=optional(is_duration),
            answer_counts=by_name(is_count),
            answer_forms=list_of(is_text),
            salt=is_text,
            stages=by_name(is_duration),
        ),
    },
    "ready": {},
    "leaving": {},
    "error": ERROR,
}
"""Fields of a worker's events, see `protocol.Event`."""

NEXT_EVENTS: Mapping[str, Collection[str]] = {
    "": {"python", "started"},
    "python": {"started"},
    "started": {"loading"},
    "loading": {"loaded"},
    "loaded": {"warmed", "ready"},
    "warmed": {"probed", "running"},
    "probed": {"running"},
    "running": {"finished"},
    "finished": {"ready"},
    "ready": {"running", "leaving"},
    "leaving": {},
}
"""Events that may follow each one, besides progress and errors; no phase comes twice."""

ANY_TIME = {"progress", "error"}


class NoEventError(ValueError):
    """Report that a line is not a valid event; the message says why."""


@dataclass
class ChildEvents:
    """Receive the events of one child through a pipe.

    Attributes:
        layer: Part that errors about invalid events blame, such as "worker".
        ended: Returns whether the child has ended: its descendants may keep the pipe open.
        follows: Allowed successors by event name; None allows any order.
    """

    descriptor: int
    kinds: Mapping[str, Fields]
    layer: str
    whose: str
    log: str
    ended: Callable[[], bool]
    follows: Mapping[str, Collection[str]] | None = None
    _last: str = field(default="", init=False)
    _buffer: bytes = field(default=b"", init=False)

    def next(self, timeout_s: float) -> Event | None:
        """Return the next event; None after `timeout_s`, or after `POLL_SECONDS` if shorter.

        The short wait lets callers check their own limits. Raises EOFError if the child has ended.
        """
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            if len(line) > MAX_EVENT_BYTES:
                raise self._refused(line, f"{len(line):,} bytes without the end of a line")
            if not self._readable(timeout_s):
                return None
            chunk = os.read(self.descriptor, PIPE_READ_BYTES)
            if not chunk:
                raise EOFError
            self._buffer += chunk
            return self.next(0) if b"\n" in chunk else None
        self._buffer = rest
        if len(line) > MAX_EVENT_BYTES:
            raise self._refused(line, f"{len(line):,} bytes in one line")
        try:
            event = event_of(line, self.kinds)
        except NoEventError as error:
            raise self._refused(line, str(error)) from None
        name = event["event"]
        if self.follows is not None and name not in ANY_TIME:
            if name not in self.follows[self._last]:
                after = f"after {self._last!r}" if self._last else "as the first one"
                raise self._refused(line, f"{name!r} is not expected {after}")
            self._last = name
        return event

    def _readable(self, timeout_s: float) -> bool:
        ended = self.ended()  # check first, so that all its events are in the pipe
        wait_s = 0.0 if ended else max(0.0, min(timeout_s, POLL_SECONDS))
        if select.select([self.descriptor], [], [], wait_s)[0]:
            return True
        if ended:
            raise EOFError
        return False

    def _refused(self, line: bytes, reason: str) -> RunError:
        quoted_line = broken(repr(line[:MAX_QUOTED_BYTES])) + (
            "…" if len(line) > MAX_QUOTED_BYTES else ""
        )
        return RunError(
            self.layer,
            f"the {self.whose} or a library wrote to the pipe that is reserved for pytest-mlperf: "
            f"{quoted_line} ({reason}); it must write to stdout, or to files that it opened",
            self.log,
        )


def event_of(line: bytes, kinds: Mapping[str, Fields]) -> Event:
    """Parse a line as an event; raise NoEventError if it is not a valid event."""
    event = read_json(line)
    if type(event) is not dict or not is_text(event.get("event")):
        raise NoEventError("not an object that names an event")
    fields = kinds.get(event["event"])
    if fields is None:
        raise NoEventError("an unknown event")
    if wrong := (fields.keys() | {"event"}) ^ event.keys():
        raise NoEventError(f"an event with wrong fields: {broken(', '.join(sorted(wrong)))}")
    if wrong := {name for name, check in fields.items() if not check(event[name])}:
        raise NoEventError(f"an event with a wrong value of {', '.join(sorted(wrong))}")
    return event


def read_json(text: bytes | str) -> Any:
    """Parse a child's JSON; raise NoEventError if it is invalid."""
    try:
        return encodable(json.loads(text, object_pairs_hook=_once, parse_constant=_no_number))
    except NoEventError:
        raise
    except (ValueError, RecursionError):
        raise NoEventError("no JSON") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise NoEventError("JSON with a duplicate key")
    return fields


def _no_number(name: str) -> None:
    raise NoEventError(f"JSON with {name}")
