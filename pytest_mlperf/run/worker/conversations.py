"""Group samples into conversations, and choose the next request of each slot."""

from __future__ import annotations

import heapq
import math
import random
import reprlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset


@dataclass(frozen=True, slots=True)
class NextRequest:
    """Identify the next request of a slot.

    Attributes:
        index: Index of the sample.
        conversation: Number of the conversation in the run; None without one.
        turn: Turn in the recorded conversation, from 1; None without one.
    """

    index: int
    conversation: int | None = None
    turn: int | None = None


class Conversations:
    """Hold ordered samples; a conversation begins at each sample that has no pause before it.

    Attributes:
        begins: Indices of the samples that start a conversation.
    """

    def __init__(self, indices: Sequence[int], pauses_s: Sequence[float | None] = ()) -> None:
        """Store samples, and the pause before each of them [s]; () if all are independent."""
        self.indices = indices
        self._pauses_s = pauses_s
        self.begins = [n for n in indices if pauses_s[n] is None] if pauses_s else indices

    @property
    def has_turns(self) -> bool:
        """Whether samples are turns of conversations."""
        return bool(self._pauses_s)

    def pause_s(self, index: int) -> float | None:
        """Return the pause between a sample's answer and the next turn [s]; None after the last."""
        following = index + 1
        return self._pauses_s[following] if following < len(self._pauses_s) else None

    def turn(self, index: int) -> int | None:
        """Return the turn of a sample, from 1; None if it is independent."""
        if not self.has_turns:
            return None
        return index + 1 - self.begins[bisect_right(self.begins, index) - 1]


def conversations(dataset: Dataset, indices: Sequence[int]) -> Conversations:
    """Group samples into conversations by `dataset.pause_s`; without it, all are independent."""
    ask = getattr(dataset, "pause_s", None)
    if not callable(ask):
        return Conversations(indices)
    pauses_s: list[float | None] = [ask(index) for index in range(len(dataset))]
    for index, pause_s in enumerate(pauses_s):
        is_time = isinstance(pause_s, int | float) and 0 <= pause_s < math.inf
        if (not is_time and pause_s is not None) or (index == 0 and is_time):
            needed = "None, because no sample comes before it" if index == 0 else "seconds or None"
            raise RunError(
                "dataset",
                f"the data set's pause_s of sample {index} is {reprlib.repr(pause_s)}; it must be "
                f"{needed}",
            )
    return Conversations(range(len(dataset)), pauses_s)


class Slots:
    """Choose the next request of each slot (one request in flight); make slots wait in pauses."""

    def __init__(self, pool: Conversations, draw: random.Random, first: int) -> None:
        """Store the conversations to draw, a random generator, and the number of the first draw."""
        self._all, self._draw = pool, draw
        # A separate generator, so that later draws do not depend on when slots were filled.
        self._young = random.Random(draw.random()) if pool.has_turns else draw
        self._now: dict[int, NextRequest] = {}
        self._due: list[tuple[float, int]] = []
        self.count = first

    def next(self, slot: int) -> NextRequest:
        """Return a slot's next turn, or the first one of another conversation.

        A slot's first conversation starts at a random turn, to mix short and long histories.
        """
        previous = self._now.get(slot)
        if previous is not None and self._all.pause_s(previous.index) is not None:
            index, number = previous.index + 1, previous.conversation
        else:
            index = (
                self._young.choice(self._all.indices)
                if previous is None
                else self._draw.choice(self._all.begins)
            )
            number, self.count = self.count, self.count + 1
        turn = self._all.turn(index)
        self._now[slot] = NextRequest(index, number if turn else None, turn)
        return self._now[slot]

    def pause(self, slot: int, ended_s: float) -> float:
        """Delay a slot's next turn by its pause, from `ended_s` on; return the pause, or 0 [s]."""
        pause_s = self._all.pause_s(self._now[slot].index) or 0.0
        if pause_s:
            heapq.heappush(self._due, (ended_s + pause_s, slot))
        return pause_s

    @property
    def waiting(self) -> int:
        """Number of slots whose next request waits for the end of a pause."""
        return len(self._due)

    @property
    def due_s(self) -> float:
        """Time at which the next pause ends; infinity without one."""
        return self._due[0][0] if self._due else math.inf

    def pop(self) -> int:
        """Remove and return the slot whose pause ends next."""
        return heapq.heappop(self._due)[1]
