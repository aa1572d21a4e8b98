"""What a worker and its replicas say to each other: tuples, gathered for a moment."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

MOMENT_S, LONG_S = 50e-6, 1e-3
"""What is put within this time is sent together: a message costs both sides more than ten samples.
The first where little is put; the second at most, where much is."""

TOGETHER = 20
"""So many are waited for where more than `TOGETHER` come within `LONG_S`."""

LOAD, UNLOAD, SUBMIT, ASK, NULL, STOP = "load", "unload", "submit", "ask", "null", "stop"
"""What a worker says; all but `SUBMIT` is answered with `ANSWER`."""

LOADED, ANSWER, ERROR = "loaded", "answer", "error"
FIRST, NEXT, ENDED, ATTACHED, DONE = "first", "next", "ended", "attached", "done"
"""What a replica says; the five last ones carry the time at which it was so."""

Message = tuple[Any, ...]


class Pipe:
    """Sends lists of messages; any thread may send, one thread receives."""

    def __init__(self, descriptor: int) -> None:
        """Talk through a connected socket."""
        self._connection = Connection(descriptor)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor, to wait on."""
        return self._connection.fileno()

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages in order.

        Raises:
            OSError: The other side is gone.
        """
        data = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._connection.send_bytes(data)

    def receive(self) -> list[Message]:
        """Wait for messages.

        Raises:
            EOFError, OSError: The other side is gone.
        """
        data = self._connection.recv_bytes()
        messages: list[Message] = pickle.loads(data)  # noqa: S301 - of this run's own process
        return messages

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class Gathering:
    """Hands on what any thread puts, in order, together with what else comes within a moment."""

    def __init__(self, take: Callable[[list[Any]], None], name: str) -> None:
        """Start the thread that calls `take`."""
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self.put = self._queue.put
        self._take = take
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        queue, rate, sent_s = self._queue, 0.0, time.perf_counter()
        while True:
            items = []
            if rate * LONG_S > TOGETHER / 4:  # a look at each moment: to be woken costs more
                wait_s = max(MOMENT_S, min(TOGETHER / rate, LONG_S))
            else:
                wait_s = MOMENT_S
                items.append(queue.get())
            time.sleep(wait_s)
            with contextlib.suppress(Empty):
                while True:
                    items.append(queue.get_nowait())
            if items:
                self._take(items)
            now_s = time.perf_counter()
            rate = (rate + len(items) / (now_s - sent_s)) / 2
            sent_s = now_s


Place = tuple[int, int, int]
"""Ids by their place: the number of a list, the position of the first of them, and how many."""

ID_BYTES = 8
"""Bytes of a packed id."""

LONG = 64
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
        """Know none."""
        self._lists: dict[int, Sequence[int]] = {}
        self._expected: dict[int, tuple[int, int]] = {}
        self._left: dict[int, int] = {}

    def add(self, number: int, ids: Sequence[int]) -> None:
        """Remember a list, which nobody changes, by the number that the worker gave it."""
        if len(ids) >= LONG:
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


def joined(before: Message, message: Message) -> Message | None:
    """Return one message for two that follow each other in a replica; None: they must be two.

    Each costs the worker as much as ten samples, so that what was so within a moment is told at
    once, with the time of the last.
    """
    kind, stamp_s, *_ = message
    if kind != before[0] or kind not in (FIRST, NEXT, DONE):
        return None
    first, ids = before[2], message[2]
    both: bytes | Place
    if type(first) is type(ids) is bytes:
        both, moment_s = first + ids, MOMENT_S
    elif type(first) is type(ids) is tuple and ids[:2] == (first[0], first[1] + first[2]):
        both, moment_s = (first[0], first[1], first[2] + ids[2]), LONG_S
    else:
        return None
    if stamp_s // moment_s != before[1] // moment_s:
        return None
    return (kind, stamp_s, both) if kind != DONE else _joined_done(before, message, both)


def _joined_done(before: Message, message: Message, ids: bytes | Place) -> Message | None:
    """Return the same for `DONE`: outputs are few, and a wrong count of tokens is told as it is."""
    *_, outputs, n_tokens = before
    _, stamp_s, _, more_outputs, more_tokens = message
    if any(each is not None for each in (outputs, more_outputs)):
        return None
    if (n_tokens is None) != (more_tokens is None):
        return None
    if n_tokens is None:
        return DONE, stamp_s, ids, None, None
    if len(n_tokens) != _samples(before[2]) or len(more_tokens) != _samples(message[2]):
        return None
    return DONE, stamp_s, ids, None, [*n_tokens, *more_tokens]


def _samples(ids: bytes | Place) -> int:
    return len(ids) // ID_BYTES if isinstance(ids, bytes) else ids[2]


def with_packed(message: Message) -> Message:
    """Return a worker's message whose lists are packed."""
    return tuple(
        packed(part) if isinstance(part, Sequence) and not isinstance(part, str) else part
        for part in message
    )


def packed(ids: Sequence[int]) -> bytes | list[str]:
    """Return ids as 64-bit numbers; ids of an engine's own that are none, in words."""
    try:
        return array("Q", ids).tobytes()
    except (TypeError, OverflowError):
        return [repr(each)[:100] for each in ids]


def unpacked(data: bytes | list[str]) -> list[Any]:
    """Return what `packed` was given."""
    return array("Q", data).tolist() if isinstance(data, bytes) else data
