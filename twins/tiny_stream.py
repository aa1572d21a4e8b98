"""Draw what users do from tastes that are known: what a tiny DLRM v3 is trained and asked on.

Each user has a taste for every category of items, each item a quality. A rating is the mean of
both, with chance added: so the probability that a user likes an item is known, and with it the
entropy that no predictions can be expected to be below.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_mlperf.adapters.datasets.streaming import MIN_LIKED_RATING

if TYPE_CHECKING:
    from numpy.typing import NDArray

ITEMS, CATEGORIES, USERS = 1000, 8, 300
STEPS, FIRST_STEP = 10, 7
SAMPLED = 0.5
"""Share of the users who do something in a step."""

CANDIDATES, ACTIONS = (8, 16), (4, 8)
"""How many a request and a step have, at least and at most."""

CHANCE = np.array([-2.0, -0.7, 0.7, 2.0])
"""Of a user's mood, each as likely."""


class Actions(NamedTuple):
    """Items of one user, and the ratings given."""

    items: NDArray[np.int64]
    ratings: NDArray[np.float64]


class Stream:
    """Users, items, and actions drawn from them by NumPy's first generator, which never changes."""

    def __init__(self, seed: int) -> None:
        """Plant tastes and qualities."""
        self._seed = seed
        drawing = np.random.RandomState(seed)
        self.tastes = drawing.choice([5.0, 4.0, 3.0, 1.5], (USERS, CATEGORIES))
        self.qualities = drawing.choice(
            [5.0, 4.0, 3.0, 2.0, 1.0], ITEMS, p=[0.2, 0.25, 0.25, 0.2, 0.1]
        )

    def drawing(self, part: int) -> np.random.RandomState:
        """Return the generator of a part: other parts have other actions."""
        return np.random.RandomState([self._seed, part])

    def draw(
        self, drawing: np.random.RandomState, user: int, between: tuple[int, int], steps: int = 1
    ) -> Actions:
        """Draw the actions of some steps."""
        count = int(drawing.randint(between[0], between[1] + 1, steps).sum())
        items = drawing.randint(0, ITEMS, count)
        sums = self._sums(user, items) + drawing.choice(CHANCE, count)
        return Actions(items, np.round(np.clip(sums / 2, 1.0, 5.0), 2))

    def chances(self, user: int, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability that a user likes each item."""
        sums = self._sums(user, items)[:, None] + CHANCE
        return np.asarray((np.round(np.clip(sums / 2, 1.0, 5.0), 2) >= MIN_LIKED_RATING).mean(1))

    def _sums(self, user: int, items: NDArray[np.int64]) -> NDArray[np.float64]:
        category = items // (ITEMS // CATEGORIES)
        return np.asarray(self.tastes[user, category] + self.qualities[items])

    def files(self, part: int) -> dict[str, bytes]:
        """Return MLPerf's five files of these users."""
        drawing = self.drawing(part)
        rows: list[list[str]] = []
        asked: list[list[int]] = [[] for _ in range(STEPS)]
        for user in range(USERS):
            row = []
            # What came before all, the steps before the first that is asked, one for evaluation.
            for step in [-1, *range(FIRST_STEP), None, *range(FIRST_STEP, STEPS)]:
                drawn = drawing.random_sample() < SAMPLED
                candidates = self.draw(drawing, user, CANDIDATES)
                actions = self.draw(drawing, user, ACTIONS)
                if step is not None and step >= 0:
                    if not drawn:
                        row += [""] * 4
                        continue
                    asked[step].append(user)
                row += [_text(each) for pair in (candidates, actions) for each in pair]
            rows.append(row)
        users, offsets = _csv(rows)
        requests, starts = _csv([[_text(step)] for step in asked])
        counts = [[str(len(step))] for step in asked]
        return {
            "0.csv": users,
            "offset.csv": _csv([[_text(offsets)]])[0],
            "requests_per_ts.csv": requests,
            "requests_per_ts_offset.csv": _csv([[_text(starts)]])[0],
            "users_cumsum_per_ts.csv": _csv(counts)[0],
        }


def _text(values: list[int] | NDArray[np.int64] | NDArray[np.float64]) -> str:
    return ",".join(map(str, np.asarray(values).tolist()))


def _csv(rows: list[list[str]]) -> tuple[bytes, list[int]]:
    """Return rows as Python's csv writes them, and where each begins."""
    text, starts = io.StringIO(newline=""), []
    writer = csv.writer(text)
    for row in rows:
        starts.append(text.tell())
        writer.writerow(row)
    return text.getvalue().encode("ascii"), starts
