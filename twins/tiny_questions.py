"""Draw questions with one right answer, as tiny twins of reasoning models are asked them.

All are worked out in one or two steps from small numbers; letters say what a division leaves. All
text here and from here is this project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

LETTERS = "ABCD"
LARGEST = 60
"""No number on the way is larger."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with its one right answer.

    Attributes:
        text: What is asked; two with the same text are the same.
        steps: What a model thinks on the way; the last step has the answer.
        answer: What it says at last.
        target: What its answer is graded by: a letter or a number.
    """

    text: str
    steps: tuple[str, ...]
    answer: str
    target: str


def letter(random: Random, steps: int) -> Question:
    """Draw a question with four options: what is left when a number is divided by four."""
    value, asked, thought = worked_out(random, steps - 1)
    asked.append("Divide it by 4.")
    thought.append(f"{value} = {value // 4} * 4 + {value % 4}.")
    right = LETTERS[value % 4]
    options = " ".join(f"{one}) {left}" for left, one in enumerate(LETTERS))
    return Question(
        text=f"{' '.join(asked)} What is left? {options}",
        steps=tuple(thought),
        answer=f"Answer: {right}",
        target=right,
    )


def number(random: Random, steps: int) -> Question:
    """Draw a sum of so many steps, answered by a number in a box."""
    value, asked, thought = worked_out(random, steps)
    return Question(
        text=f"{' '.join(asked)} Which number is it?",
        steps=tuple(thought),
        answer=f"\\boxed{{{value}}}",
        target=str(value),
    )


def worked_out(random: Random, steps: int) -> tuple[int, list[str], list[str]]:
    """Draw a number and so many steps from it.

    Returns:
        The number at last, what is asked, and what is thought.
    """
    value = random.randint(5, LARGEST - 10)
    asked, thought = [f"Start with {value}."], []
    for _ in range(steps):
        by = random.randint(2, 9)
        sign = random.choice([s for s in "+-" if 0 <= value + int(f"{s}{by}") <= LARGEST])
        asked.append(f"Add {by}." if sign == "+" else f"Take {by} away.")
        after = value + int(f"{sign}{by}")
        thought.append(f"{value} {sign} {by} = {after}.")
        value = after
    return value, asked, thought


KINDS: Mapping[str, Callable[[Random, int], Question]] = {"letter": letter, "number": number}


def different(kind: str, random: Random, steps: int, count: int) -> list[Question]:
    """Draw so many questions of a kind with different texts."""
    drawn: dict[str, Question] = {}
    while len(drawn) < count:
        one = KINDS[kind](random, steps)
        drawn.setdefault(one.text, one)
    return list(drawn.values())
