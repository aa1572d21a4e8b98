"""Which number an answer to a question of GSM8K gives, and whether it is the right one.

Source of the rule: language/mixtral-8x7b/evaluate-accuracy.py of
https://github.com/mlcommons/inference.
"""

from __future__ import annotations

import re

NEXT_QUESTION = "\nQ:"
"""What follows is no longer the answer: the model goes on with a question of its own."""

DELIMITER = "The answer is"

NUMBER = re.compile(r"-?[\d,]*\.?\d+")
"""A number, perhaps with a sign, commas between its digits, and a point."""


def answer(text: str) -> str:
    """Return the number that a text gives as its answer, without commas, or "" without one.

    It is the first number after the last "The answer is", else the last number of all.
    """
    own = text.partition(NEXT_QUESTION)[0]
    _, delimiter, rest = own.rpartition(DELIMITER)
    first = NUMBER.search(rest) if delimiter else None
    if first is not None:
        return first[0].replace(",", "")
    numbers: list[str] = NUMBER.findall(own)
    return numbers[-1].replace(",", "") if numbers else ""


def is_right(text: str, target: str) -> bool:
    """Return whether a text's answer and a target are the same number, as float64.

    A target that is no number, such as "1,000", is never met.
    """
    try:
        return float(answer(text)) == float(target)
    except ValueError:
        return False
