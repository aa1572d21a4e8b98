"""Exchange messages between a worker and its replicas, in batches."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from struct import Struct
from typing import Any

GATHER_SECONDS, BURST_GATHER_SECONDS = 50e-6, 1e-3
"""Messages within this time are sent together, as each costs both sides more than ten samples do.
The first applies at low rates; the second is the maximum at high rates."""

MAX_GATHERED = 20
"""Number of messages to wait for at high rates, within `BURST_GATHER_SECONDS`."""

LOAD, UNLOAD, SUBMIT, ASK, NULL, STOP = "load", "unload", "submit", "ask", "null", "stop"
"""Kinds of a worker's messages; each except `SUBMIT` gets an `ANSWER`."""

LATENESS = "client_lateness"
"""Question for the engine's lateness, to which a replica adds the delay of samples."""

LOADED, ANSWER, ERROR = "loaded", "answer", "error"
FIRST, NEXT, ENDED, ATTACHED = "first", "next", "ended", "attached"
STREAMED, DONE, LOST = "streamed", "done", "lost"
"""Kinds of a replica's messages; the last seven carry a time stamp."""

OF_REPLICAS = frozenset((LOADED, ANSWER, ERROR))
"""Kinds of messages about the replica itself instead of samples."""

Flags = tuple[bool, bool, bool, float, str]
"""A sink's `wants_output`, `times_tokens`, `needs_first_tokens`, `may_fail` and `run`."""

Message = Sequence[Any]

LENGTH_HEADER = Struct("=Q")
READ_BYTES = 1 << 16


class Pipe:
    """Send and receive lists of messages; any thread may send, one thread receives."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self.fileno, self.close = self._socket.fileno, self._socket.close
        self._lock = threading.Lock()
        self._rest = b""

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages in order; raise OSError if the peer is gone."""
        data = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._socket.sendall(LENGTH_HEADER.pack(len(data)) + data)

    def receive(self) -> list[Message]:
        """Wait for messages, and return all; raise EOFError or OSError if the peer is gone."""
        data, begin, messages = self._rest, 0, list[Message]()
        while True:
            end = first = begin + LENGTH_HEADER.size
            if len(data) >= first:
                end += LENGTH_HEADER.unpack_from(data, begin)[0]
            if len(data) >= end > first:
                messages += pickle.loads(data[first:end])  # noqa: S301 - of this run's own process
                begin = end
            elif messages:
                self._rest = data[begin:]
                return messages
            else:
                more = self._socket.recv(max(READ_BYTES, end - len(data)))
                if not more:
                    raise EOFError
                data += more


class Gathering:
    """Collect items from all threads for a short time, and pass them to a function in order."""

    def __init__(self, take: Callable[[list[Any]], None], name: str) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self.put = self._queue.put
        self._take = take
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        queue, rate, sent_s = self._queue, 0.0, time.perf_counter()
        while True:
            items: list[Any] = []
            if rate * BURST_GATHER_SECONDS > MAX_GATHERED / 4:  # polling is cheaper than waking up
                wait_s = max(GATHER_SECONDS, min(MAX_GATHERED / rate, BURST_GATHER_SECONDS))
            else:
                wait_s = GATHER_SECONDS
                items.append(queue.get())
            time.sleep(wait_s)
            items += [queue.get_nowait() for _ in range(queue.qsize())]
            if items:
                self._take(items)
            now_s = time.perf_counter()
            rate = (rate + len(items) / (now_s - sent_s)) / 2
            sent_s = now_s


Place = tuple[int, int, int]
"""Position of ids in a long list: number of the list, first position, count."""

MIN_REMEMBERED_LENGTH = 64
"""Both sides store longer lists, because most engines complete samples in order."""

NUMBERED, LIST_BITS = 1 << 59, 32
"""First id of a replica's long list, above any address that LoadGen uses as an id; a list has up to
2^32 ids. Sending the ids themselves would cost a tenth of Offline's rate."""


def numbered(number: int, count: int) -> list[int]:
    first = NUMBERED + (number << LIST_BITS)
    return list(range(first, first + count))


class Lists:
    """Store long lists of sample ids at both ends of a pipe; messages hold positions in them."""

    def __init__(self) -> None:
        self._lists: dict[int, Sequence[int]] = {}
        self._expected: dict[int, tuple[int, int]] = {}
        self._left: dict[int, int] = {}

    def add(self, number: int, ids: Sequence[int]) -> None:
        """Store `ids` under `number` if they are many; the caller must not modify them later."""
        if len(ids) >= MIN_REMEMBERED_LENGTH:
            self._lists[number], self._left[number] = ids, len(ids)
            self._expected[ids[0]] = (number, 0)

    def locate(self, ids: Sequence[int]) -> Place | None:
        """Return (list number, start, length) if `ids` come next in a stored list, else None."""
        if not len(ids) or (expected := self._expected.pop(ids[0], None)) is None:
            return None
        number, start = expected
        listed, end = self._lists[number], start + len(ids)
        if (ids if type(ids) is list else list(ids)) != listed[start:end]:
            return None
        if end < len(listed):
            self._expected[listed[end]] = (number, end)
        else:
            del self._lists[number]
        return number, start, len(ids)

    def worker_ids(self, ids: Sequence[Any]) -> Sequence[Any]:
        """Convert ids that are positions in stored lists to the worker's ids; keep other ids."""
        if not self._lists:
            return ids
        return [self._id(each) if isinstance(each, int) else each for each in ids]

    def _id(self, sample: int) -> int:
        number, position = divmod(sample - NUMBERED, 1 << LIST_BITS)
        listed = self._lists.get(number, ())
        return listed[position] if position < len(listed) else sample

    def ids(self, span: Place) -> Sequence[int]:
        number, start, count = span
        ids = self._lists[number][start : start + count]
        self._left[number] -= count  # places may arrive out of order
        if not self._left[number]:
            del self._lists[number], self._left[number]
        return ids


def merge_messages(messages: Iterable[Message]) -> Sequence[Message]:
    """Merge consecutive messages of equal kind and about equal time, as each costs much to send."""
    result: list[list[Any]] = [[None]]
    for message in messages:
        if not _try_merge(result[-1], message):
            result.append([*message])
    for message in result:
        if len(message) > 2 and type(message[2]) is list:
            message[2] = packed(message[2])
    return result[1:]


def _try_merge(previous: list[Any], message: Message) -> bool:
    """Merge `message` into `previous` if kinds and (nearly) times agree; return whether merged."""
    kind, stamp_s, *_ = message
    if kind != previous[0] or kind not in (FIRST, NEXT, DONE):
        return False
    ids, more = previous[2], message[2]
    if type(ids) is not type(more):
        return False
    is_place = type(ids) is tuple
    moment_s = BURST_GATHER_SECONDS if is_place else GATHER_SECONDS
    if stamp_s // moment_s != previous[1] // moment_s:
        return False
    if is_place and more[:2] != (ids[0], ids[1] + ids[2]):
        return False
    if kind == DONE and not _adds_counts(previous, message):
        return False
    previous[1] = stamp_s
    if is_place:
        previous[2] = (*ids[:2], ids[2] + more[2])
    else:
        ids += more
    return True


def _adds_counts(previous: list[Any], message: Message) -> bool:
    _, _, ids, outputs, counts = previous
    _, _, more_ids, more_outputs, more = message
    if outputs is not None or more_outputs is not None or (counts is None) != (more is None):
        return False
    if counts is not None:
        if len(counts) != _samples(ids) or len(more) != _samples(more_ids):
            return False
        previous[4] = [*counts, *more]
    return True


def _samples(ids: Sequence[int]) -> int:
    return ids[2] if type(ids) is tuple else len(ids)


def packed(ids: Sequence[int]) -> bytes | list[int | str]:
    """Encode ids as 64-bit integers; return a list if an engine's ids are not such integers."""
    try:
        return array("Q", ids).tobytes()
    except (TypeError, OverflowError):
        return [repr(each)[:100] if _fault(each) else each for each in ids]


def _fault(sample: object) -> bool:
    return not isinstance(sample, int) or not 0 <= sample < 1 << 64


def unpacked(data: bytes | list[int | str]) -> list[Any]:
    return array("Q", data).tolist() if isinstance(data, bytes) else data
