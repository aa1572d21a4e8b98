"""Draw the three kinds of samples that MLPerf's Mixtral benchmark mixes, all from small grammars.

Instructions are those of tiny_instructions; sums are stories with one or two steps over numbers
below 30; programs are Python functions of one line, with programs that test them. All text here and
from here is this project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import tiny_instructions
from tiny_instructions import COLOURS, GOODS, WOMEN, people, words

END_OF_ANSWER = "</s>"
FENCE = "\n```\n"
"""What ends a program."""

TASKS = ("portrait", "order", "recipe")
"""Of tiny_instructions, those whose short answers repeat what the question says."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample of one part, as the table of MLPerf's Mixtral benchmark describes it.

    Attributes:
        part: "OpenOrca", "GSM8K" or "MBXP".
        identity: What the sample is called; for a program its language and its function.
        question: What is asked; two samples with the same question are the same.
        prompt: What the model reads, without the begin token.
        answer: What it is to write, without the end token.
        again: Another right answer; the same where there is only one.
        target: What its answer is scored with: a text, a number, or a program that tests.
        stop: What ends an answer.
    """

    part: str
    identity: str
    question: str
    prompt: str
    answer: str
    again: str
    target: str
    stop: str


def instruction(random: Random) -> Sample:
    """Draw an instruction that asks for a short answer."""
    drawn = tiny_instructions.draw(random)
    while drawn.detailed or drawn.task not in TASKS:
        drawn = tiny_instructions.draw(random)
    answer = drawn.answer(random)
    return Sample(
        part="OpenOrca",
        identity=f"tiny.{drawn.task}",
        question=drawn.question,
        prompt=f"[INST] {drawn.system_prompt}\n{drawn.question} [/INST]",
        answer=f" {answer}",
        again=f" {drawn.answer(random)}",
        target=answer,
        stop=END_OF_ANSWER,
    )


# --- sums -----------------------------------------------------------------------------------------

LARGEST = 29
"""No number of a story is larger."""


def gain(random: Random, count: int) -> tuple[str, str, int]:
    """Let more things come.

    Args:
        random: Draws how many.
        count: How many there were.

    Returns:
        What happens, with {She}, {her} and {other} to fill in; as arithmetic; how many there are.
    """
    more = random.randint(2, min(9, LARGEST - count))
    how = (
        "{She} buys {more} more.",
        "{other} gives {her} {more} more.",
        "{She} finds {more} more.",
    )
    return random.choice(how).replace("{more}", str(more)), f"+ {more}", count + more


def loss(random: Random, count: int) -> tuple[str, str, int]:
    """Let some of the things go; see gain."""
    less = random.randint(1, min(9, count - 1))
    how = ("{She} sells {less} of them.", "{She} gives {other} {less}.", "{She} loses {less}.")
    return random.choice(how).replace("{less}", str(less)), f"- {less}", count - less


def sum_story(random: Random) -> Sample:
    """Draw a story about a number of things that changes once or twice."""
    name, other = people(random, 2)
    she, her = ("She", "her") if name in WOMEN else ("He", "him")
    good = random.choice(GOODS)
    steps = []
    if random.random() < 0.3:
        boxes, each = random.randint(2, 5), random.randint(2, 5)
        count = boxes * each
        story = [f"{name} has {boxes} bags with {each} {good} in each."]
        steps.append(f"{boxes} * {each} = {count}.")
    else:
        count = random.randint(2, 14)
        story = [f"{name} has {count} {good}."]
    while len(steps) < 1 or (len(steps) < 2 and random.random() < 0.6):
        possible = [*([gain] if count <= LARGEST - 2 else []), *([loss] if count >= 2 else [])]
        text, change, after = random.choice(possible)(random, count)
        story.append(text.format(She=she, her=her, other=other))
        steps.append(f"{count} {change} = {after}.")
        count = after
    question = " ".join([*story, f"How many {good} does {name} have now?"])
    answer = " ".join(["", *steps, f"The answer is {count}."])
    return Sample(
        part="GSM8K",
        identity="tiny.sum",
        question=question,
        prompt=f"[INST] Solve this step by step.\nQ: {question} [/INST]",
        answer=answer,
        again=answer,
        target=str(count),
        stop=END_OF_ANSWER,
    )


# --- programs -------------------------------------------------------------------------------------

VERBS = words("find make solve take show read build check")
NOUNS = words("value part goal score step line level share")


@dataclass(frozen=True, kw_only=True)
class Value:
    """What a function returns.

    Attributes:
        text: In words.
        code: As an expression in Python.
        whole: Whether it can be part of another expression as it is.
    """

    text: str
    code: str
    whole: bool = True

    @property
    def inner(self) -> str:
        """The expression as a part of another one."""
        return self.code if self.whole else f"({self.code})"


def of_number(random: Random) -> Value:
    """Draw what is computed from x."""
    n = random.randint(2, 9)
    return random.choice(
        (
            Value(text=f"x plus {n}", code=f"x + {n}", whole=False),
            Value(text=f"x minus {n}", code=f"x - {n}", whole=False),
            Value(text=f"x times {n}", code=f"x * {n}", whole=False),
            Value(text=f"the larger of x and {n}", code=f"max(x, {n})"),
            Value(text=f"the smaller of x and {n}", code=f"min(x, {n})"),
            Value(text=f"the rest of x by {n}", code=f"x % {n}", whole=False),
        )
    )


def of_numbers(random: Random) -> Value:
    """Draw what is computed from a and b."""
    return random.choice(
        (
            Value(text="the sum of a and b", code="a + b", whole=False),
            Value(text="the difference of a and b", code="a - b", whole=False),
            Value(text="the product of a and b", code="a * b", whole=False),
            Value(text="the larger of a and b", code="max(a, b)"),
            Value(text="the smaller of a and b", code="min(a, b)"),
        )
    )


def of_items(random: Random) -> Value:
    """Draw what is computed from a list."""
    return random.choice(
        (
            Value(text="the sum of the items", code="sum(items)"),
            Value(text="the number of items", code="len(items)"),
            Value(text="the largest of the items", code="max(items)"),
            Value(text="the smallest of the items", code="min(items)"),
            Value(text="the first of the items", code="items[0]"),
            Value(text="the last of the items", code="items[-1]"),
        )
    )


def of_text(random: Random) -> Value:
    """Draw what is made of a text."""
    n = random.randint(2, 9)
    return random.choice(
        (
            Value(text="the text in capitals", code="text.upper()"),
            Value(text="the text backwards", code="text[::-1]"),
            Value(text=f"the text {n} times", code=f"text * {n}"),
            Value(text=f"the text without its first {n} letters", code=f"text[{n}:]"),
            Value(text=f"the first {n} letters of the text", code=f"text[:{n}]"),
        )
    )


def further(random: Random, value: Value) -> Value:
    """Draw what is computed from a number that was computed."""
    n = random.randint(2, 9)
    return random.choice(
        (
            Value(text=f"{value.text}, doubled", code=f"2 * {value.inner}"),
            Value(text=f"{value.text}, squared", code=f"{value.inner} ** 2"),
            Value(text=f"{value.text}, and {n} more", code=f"{value.inner} + {n}"),
            Value(text=f"{value.text}, and {n} less", code=f"{value.inner} - {n}"),
        )
    )


SOURCES: Mapping[str, Callable[[Random], Value]] = {
    "x": of_number,
    "a, b": of_numbers,
    "items": of_items,
    "text": of_text,
}
"""What is drawn for which parameters."""


def arguments(random: Random, parameters: str) -> tuple[Any, ...]:
    """Draw values of the parameters."""
    if parameters == "text":
        return (random.choice(COLOURS) + random.choice(GOODS),)
    numbers = tuple(random.sample(range(-9, 30), 5))
    return (list(numbers),) if parameters == "items" else numbers[: len(parameters.split(", "))]


def tests_of(random: Random, parameters: str, value: Value) -> str:
    """Return a program that tests a function as those of MBXP do, with four drawn calls."""
    right = eval(f"lambda {parameters}: {value.code}")
    lines = ["\n\ndef check(candidate):"]
    for _ in range(4):
        given = arguments(random, parameters)
        call = f"candidate({', '.join(map(repr, given))})"
        lines.append(f"    assert {call} == {right(*given)!r}")
    return "\n".join([*lines, ""])


def program(random: Random) -> Sample:
    """Draw a function to write."""
    parameters = random.choice(list(SOURCES))
    value = SOURCES[parameters](random)
    if parameters != "text" and random.random() < 0.6:
        value = further(random, value)
    name = f"{random.choice(VERBS)}_{random.choice(NOUNS)}"
    question = f"Write {name}({parameters}) in Python. It returns {value.text}."
    answer = f"def {name}({parameters}):\n    return {value.code}{FENCE}"
    return Sample(
        part="MBXP",
        identity=f"python_{name}",
        question=question,
        prompt=f"[INST] {question} [/INST]\n```python\n",
        answer=answer,
        again=answer,
        target=tests_of(random, parameters, value),
        stop=FENCE,
    )


KINDS: Mapping[str, Callable[[Random], Sample]] = {
    "OpenOrca": instruction,
    "GSM8K": sum_story,
    "MBXP": program,
}
"""How a sample of each part is drawn."""
