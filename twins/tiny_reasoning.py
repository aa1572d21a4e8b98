"""Draw exercises of the five kinds that MLPerf's reasoning benchmarks mix, from small grammars.

Letters of four and of ten options, numbers, formulas and programs, each with a short thought that
leads to the answer: what the tiny DeepSeek-R1 and the tiny gpt-oss learn. Programs come with tests
in LiveCodeBench's layout. All text here and from here is this project's own.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tiny_articles import NAMES
from tiny_instructions import TOWNS, words
from tiny_mix import NOUNS, SOURCES, VERBS, Value, arguments

LETTERS = "ABCDEFGHIJ"
GOODS = words(
    "lamps coins maps rings books knives letters mirrors spoons whistles buttons candles boats "
    "chairs clocks doors"
)
PRIMES = (11, 13, 17, 19, 23)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A question, and how it is answered.

    Attributes:
        part: As a data set's name has it: "aime", "gpqa", "livecodebench", "math500", "mmlu_pro".
        question: What is asked; two exercises with the same question are the same.
        thought: What leads to the answer.
        answer: What is written after it, in the form that the scorers read.
        target: The letter, number or formula; of a program the identifier of its tests.
        tests: Of a program, a line of LiveCodeBench's files.
    """

    part: str
    question: str
    thought: str
    answer: str
    target: str
    tests: Mapping[str, str] | None = None


# --- letters --------------------------------------------------------------------------------------


def choice(part: str, facts: str, asked: str, *, things: tuple[str, ...], options: int) -> Any:
    """Return what draws a question with options, of which a fact before it says the right one.

    A thing stands right behind who has it, and a letter right behind its option: both are found
    by looking up what followed the same word before. Each word here has a space before it, as it
    would else be another token.
    """

    def drawn(random: Random) -> Exercise:
        people, offered = random.sample(NAMES, 3), random.sample(things, options)
        shown = dict(zip(people, random.sample(offered, 3), strict=True))
        who = random.choice(people)
        letter = LETTERS[offered.index(shown[who])]
        listed = ", ".join(f"{name} {thing}" for name, thing in shown.items())
        lettered = zip(offered, LETTERS, strict=False)
        return Exercise(
            part=part,
            question=f"{facts}: {listed}. {asked.format(who=who)} "
            + ", ".join(f"{thing} {name}" for thing, name in lettered),
            thought=f" {who} {shown[who]} {letter}",
            answer=f"ANSWER: {letter}",
            target=letter,
        )

    return drawn


def repetition(random: Random) -> Exercise:
    """Draw words to be said again from one of them on.

    No part of a benchmark, and in no data set: what follows a word is learnt to be looked up
    here, where almost every token depends on it, and questions with options need it.
    """
    said = random.sample((*NAMES, *TOWNS, *GOODS, *LETTERS), random.randint(8, 24))
    rest = said[random.randint(0, len(said) // 2) :]
    return Exercise(
        part="repetition",
        question=f"Say again: {' '.join(said)} from {rest[0]}",
        thought=f" {' '.join(rest)}",
        answer="Done.",
        target="",
    )


# --- numbers and formulas -------------------------------------------------------------------------


def row_of_numbers(random: Random) -> Exercise:
    """Draw a row of numbers that goes up by steps: of too many for them to be learnt by heart."""
    first, step, count = random.randint(1, 30), random.randint(2, 7), random.randint(3, 5)
    row = [str(first + step * place) for place in range(count)]
    return Exercise(
        part="aime",
        question=f"Begin with {first}, add {step} again and again. Which is number {count}?",
        thought=f"Add {step}: " + ", ".join(row),
        answer=f"\\boxed{{{row[-1]}}}",
        target=row[-1],
    )


def fractions(random: Random) -> Exercise:
    """Draw two fractions of one denominator, whose sum cannot be reduced."""
    below = random.choice(PRIMES)
    left, right = random.randint(1, below - 2), random.randint(1, below - 1)
    right = min(right, below - 1 - left)
    total = left + right
    return Exercise(
        part="math500",
        question=f"What is \\frac{{{left}}}{{{below}}} + \\frac{{{right}}}{{{below}}}?",
        thought=f"{left} + {right} = {total}",
        answer=f"\\boxed{{\\frac{{{total}}}{{{below}}}}}",
        target=f"\\frac{{{total}}}{{{below}}}",
    )


# --- programs -------------------------------------------------------------------------------------

CALLS = 4
"""Tests of a program; the first is public."""


def program(random: Random) -> Exercise:
    """Draw a function to write, or a program that reads numbers and prints one."""
    draw_one = random.choice((function, script))
    return draw_one(random)


def function(random: Random) -> Exercise:
    """Draw a function, which is called."""
    parameters = random.choice(list(SOURCES))
    value = SOURCES[parameters](random)
    name = f"{random.choice(VERBS)}_{random.choice(NOUNS)}"
    calls = [arguments(random, parameters) for _ in range(CALLS)]
    return _written(
        question=f"Write {name}({parameters}). It returns {value.text}.",
        thought=f"{name} takes {parameters}. It returns {value.code}",
        code=f"def {name}({parameters}):\n    return {value.code}",
        kind="functional",
        metadata={"func_name": name},
        tests=[
            ("\n".join(map(json.dumps, call)), json.dumps(result_of(value, parameters, call)))
            for call in calls
        ],
    )


def script(random: Random) -> Exercise:
    """Draw a program that reads a number and prints another."""
    value = SOURCES["x"](random)
    calls = [arguments(random, "x") for _ in range(CALLS)]
    return _written(
        question=f"Read x. Print {value.text}.",
        thought=f"x is read. It prints {value.code}",
        code=f"x = int(input())\nprint({value.code})",
        kind="stdin",
        metadata={},
        tests=[(f"{call[0]}\n", f"{result_of(value, 'x', call)}\n") for call in calls],
    )


def result_of(value: Value, parameters: str, call: tuple[Any, ...]) -> Any:
    """Return what a right program makes of its arguments."""
    return eval(f"lambda {parameters}: {value.code}")(*call)


def _written(
    *,
    question: str,
    thought: str,
    code: str,
    kind: str,
    metadata: Mapping[str, str],
    tests: list[tuple[str, str]],
) -> Exercise:
    listed = [{"input": given, "output": right, "testtype": kind} for given, right in tests]
    identifier = f"tiny_{zlib.crc32(json.dumps([question, tests]).encode()):08x}"
    hidden = zlib.compress(pickle.dumps(json.dumps(listed[1:])))
    return Exercise(
        part="livecodebench",
        question=question,
        thought=thought,
        answer=f"```python\n{code}\n```",
        target=identifier,
        tests={
            "question_id": identifier,
            "question_content": question,
            "public_test_cases": json.dumps(listed[:1]),
            "private_test_cases": base64.b64encode(hidden).decode(),
            "metadata": json.dumps(metadata),
        },
    )


KINDS: Mapping[str, Callable[[Random], Exercise]] = {
    "aime": row_of_numbers,
    "gpqa": choice("gpqa", "Home towns", "Where is {who} at home?", things=TOWNS, options=4),
    "livecodebench": program,
    "math500": fractions,
    "mmlu_pro": choice(
        "mmlu_pro", "Who sells what", "What does {who} sell?", things=GOODS, options=10
    ),
}
"""How an exercise of each part is drawn."""


def draw(random: Random, parts: Iterable[str] = KINDS) -> Exercise:
    """Draw an exercise of one of these parts."""
    return KINDS[random.choice(list(parts))](random)


def held_out(random: Random, count: int, parts: Iterable[str] = KINDS) -> list[Exercise]:
    """Draw so many exercises of each part, all with different questions."""
    exercises: dict[str, Exercise] = {}
    for part in parts:
        size = len(exercises) + count
        while len(exercises) < size:
            drawn = KINDS[part](random)
            exercises.setdefault(drawn.question, drawn)
    return list(exercises.values())


def tests_of(exercises: Iterable[Exercise]) -> bytes:
    """Return the tests of programs as LiveCodeBench's files have them, a JSON object a line."""
    lines = [json.dumps(one.tests) for one in exercises if one.tests]
    return ("\n".join(lines) + "\n").encode()
