"""What a worker and its replicas say to each other: tuples, gathered for a moment."""

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
"""What is put within this time is sent together: a message costs both sides more than ten samples.
The first where little is put; the second at most, where much is."""

MAX_GATHERED = 20
"""So many are waited for where more than `MAX_GATHERED` come within `BURST_GATHER_SECONDS`."""

LOAD, UNLOAD, SUBMIT, ASK, NULL, STOP = "load", "unload", "submit", "ask", "null", "stop"
"""What a worker says; all but `SUBMIT` is answered with `ANSWER`."""

LATENESS = "client_lateness"
"""What a worker asks for that a replica completes with the way of samples to it."""

LOADED, ANSWER, ERROR = "loaded", "answer", "error"
FIRST, NEXT, ENDED, ATTACHED = "first", "next", "ended", "attached"
STREAMED, DONE, LOST = "streamed", "done", "lost"
"""What a replica says; the seven last ones carry the time at which it was so."""

OF_REPLICAS = frozenset((LOADED, ANSWER, ERROR))
"""Messages about a replica itself, and not about samples."""

Flags = tuple[bool, bool, bool, float, str]
"""What a sink wants: `wants_output`, `times_tokens`, `needs_first_tokens`, `may_fail`."""

Message = Sequence[Any]

LENGTH_HEADER = Struct("=Q")
READ_BYTES = 1 << 16
"""Bytes that are read at a time: more than is said within a moment but of long lists."""


class Pipe:
    """Sends lists of messages; any thread may send, one thread receives."""

    def __init__(self, descriptor: int) -> None:
        """Talk through a connected socket."""
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        self._rest = b""

    def fileno(self) -> int:
        """Return the descriptor, to wait on."""
        return self._socket.fileno()

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages in order; an OSError says that the other side is gone."""
        data = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._socket.sendall(LENGTH_HEADER.pack(len(data)) + data)

    def receive(self) -> list[Message]:
        """Wait for messages and return all; EOFError or OSError if the other side is gone."""
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

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class Gathering:
    """Hands on what any thread puts, in order, together with what else comes within a moment."""

    def __init__(self, take: Callable[[list[Any]], None], name: str) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self.put = self._queue.put
        self._take = take
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        queue, rate, sent_s = self._queue, 0.0, time.perf_counter()
        while True:
            items: list[Any] = []
            if (
                rate * BURST_GATHER_SECONDS > MAX_GATHERED / 4
            ):  # a look at each moment: to be woken costs more
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
"""Ids by their place: the number of a list, the position of the first of them, and how many."""

MIN_REMEMBERED_LENGTH = 64
"""Lists at least this long are remembered by both sides: most engines complete in their order."""

NUMBERED, LIST_BITS = 1 << 59, 32
"""First id of a long list in a replica, beyond every address that LoadGen takes for an id; one list
has no more than 2^32. Packing the ids themselves would cost a tenth of the rate of Offline."""


def numbered(number: int, count: int) -> list[int]:
    """Return the ids that a replica has for a long list with a number."""
    first = NUMBERED + (number << LIST_BITS)
    return list(range(first, first + count))


class Lists:
    """Long lists of ids that both sides know, so that what is done of them needs no ids."""

    def __init__(self) -> None:
        self._lists: dict[int, Sequence[int]] = {}
        self._expected: dict[int, tuple[int, int]] = {}
        self._left: dict[int, int] = {}

    def add(self, number: int, ids: Sequence[int]) -> None:
        """Remember a list, which nobody changes, by the number that the worker gave it."""
        if len(ids) >= MIN_REMEMBERED_LENGTH:
            self._lists[number], self._left[number] = ids, len(ids)
            self._expected[ids[0]] = (number, 0)

    def place(self, ids: Sequence[int]) -> Place | None:
        """Return the place of ids that are what is next of a list; None: they are not."""
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

    def real(self, ids: Sequence[Any]) -> Sequence[Any]:
        """Return the worker's ids for a replica's; what is in no list is as it is."""
        if not self._lists:
            return ids
        return [self._id(each) if isinstance(each, int) else each for each in ids]

    def _id(self, sample: int) -> int:
        number, position = divmod(sample - NUMBERED, 1 << LIST_BITS)
        listed = self._lists.get(number, ())
        return listed[position] if position < len(listed) else sample

    def ids(self, place: Place) -> Sequence[int]:
        """Return the ids of a place."""
        number, start, count = place
        ids = self._lists[number][start : start + count]
        self._left[number] -= count  # places may come in another order than they were made in
        if not self._left[number]:
            del self._lists[number], self._left[number]
        return ids


def joined(messages: Iterable[Message]) -> Sequence[Message]:
    """Return a replica's messages with those in one that follow each other within a moment.

    Each costs the worker as much as ten samples, so that what was so within a moment is told at
    once, with the time of the last.
    """
    result: list[list[Any]] = [[None]]
    for message in messages:
        if not _adds(result[-1], message):
            result.append([*message])
    for message in result:
        if len(message) > 2 and type(message[2]) is list:
            message[2] = packed(message[2])
    return result[1:]


def _adds(before: list[Any], message: Message) -> bool:
    """Add a message to the one before it, or return that they must be two."""
    kind, stamp_s, *_ = message
    if kind != before[0] or kind not in (FIRST, NEXT, DONE):
        return False
    ids, more = before[2], message[2]
    if type(ids) is not type(more):
        return False
    place = type(ids) is tuple
    moment_s = BURST_GATHER_SECONDS if place else GATHER_SECONDS
    if stamp_s // moment_s != before[1] // moment_s:
        return False
    if place and more[:2] != (ids[0], ids[1] + ids[2]):
        return False
    if kind == DONE and not _adds_counts(before, message):
        return False
    before[1] = stamp_s
    if place:
        before[2] = (*ids[:2], ids[2] + more[2])
    else:
        ids += more
    return True


def _adds_counts(before: list[Any], message: Message) -> bool:
    """Add counts of tokens; outputs are few, and a wrong number of counts is told as it is."""
    _, _, ids, outputs, counts = before
    _, _, more_ids, more_outputs, more = message
    if outputs is not None or more_outputs is not None or (counts is None) != (more is None):
        return False
    if counts is not None:
        if len(counts) != _samples(ids) or len(more) != _samples(more_ids):
            return False
        before[4] = [*counts, *more]
    return True


def _samples(ids: Sequence[int]) -> int:
    return ids[2] if type(ids) is tuple else len(ids)


def packed(ids: Sequence[int]) -> bytes | list[int | str]:
    """Return ids as 64-bit numbers; where an engine has some of its own, those in words."""
    try:
        return array("Q", ids).tobytes()
    except (TypeError, OverflowError):
        return [repr(each)[:100] if _fault(each) else each for each in ids]


def _fault(sample: object) -> bool:
    return not isinstance(sample, int) or not 0 <= sample < 1 << 64


def unpacked(data: bytes | list[int | str]) -> list[Any]:
    """Return what `packed` was given."""
    return array("Q", data).tolist() if isinstance(data, bytes) else data
