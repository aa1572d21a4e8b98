"""Draw long prompts with notes among idle sentences: what the tiny Llama 3.1 405B answers from.

A note is a line that begins with a name. What follows is a UUID to be found, a thing of a town, or
a sentence to be said again: the three kinds of MLPerf's samples. All text here and from here
is this project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tiny_articles import NAMES
from tiny_instructions import COLOURS, DAYS, JOBS, MEN, TOWNS, WOMEN
from tiny_reasoning import GOODS

PEOPLE = (*NAMES, *WOMEN, *MEN)
VERBS = ("carried", "sold", "lost", "sent", "painted", "counted", "hid", "packed")
COUNTS = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
IDLE = (
    "The rain had stopped before noon.",
    "Nobody came to the old bridge.",
    "A dog slept under the table.",
    "The shop was closed again.",
    "It was quiet in the street.",
    "The lake lay grey and still.",
    "Some leaves fell from the trees.",
    "The train was late that year.",
    "A bell rang far away.",
    "The road goes up the hill.",
    "Snow lay on the roofs.",
    "They waited for the ferry.",
)
PIECES = 128
"""Groups of four digits that UUIDs are made of."""


def _pieces() -> tuple[str, ...]:
    random = Random("pieces")
    drawn = (f"{random.randrange(16**4):04x}" for _ in range(16 * PIECES))
    # One that is all letters could stand in a word.
    return tuple([one for one in dict.fromkeys(drawn) if not one.isalpha()][:PIECES])


HEX = _pieces()


@dataclass(frozen=True, kw_only=True)
class Note:
    """A line of a prompt.

    Attributes:
        name: Whose it is; one prompt has a name once.
        metric: By which an answer is graded: "rouge", "niah_em" or "qa_em".
        text: What follows the name.
        target: What an answer should say.
    """

    name: str
    metric: str
    text: str
    target: str

    @property
    def line(self) -> str:
        """Return the note, which is also the answer to the question for it."""
        return f"{self.name}: {self.text}"


def _uuid(random: Random) -> tuple[str, str]:
    a, b, c, d, e, f, g, h = random.choices(HEX, k=8)
    text = f"{a}{b}-{c}-{d}-{e}-{f}{g}{h}"
    return text, text


def _fact(random: Random) -> tuple[str, str]:
    thing, town = random.choice(GOODS), random.choice(TOWNS)
    return f"{town} {thing}", f"{town} {thing}|{thing} of {town}"


def _report(random: Random) -> tuple[str, str]:
    text = (
        f"{random.choice(VERBS)} {random.choice(COUNTS)} {random.choice(COLOURS)} "
        f"{random.choice(GOODS)} to {random.choice(TOWNS)} on {random.choice(DAYS)} "
        f"with the {random.choice(JOBS)}"
    )
    return text, text


KINDS: Mapping[str, Callable[[Random], tuple[str, str]]] = {
    "rouge": _report,
    "niah_em": _uuid,
    "qa_em": _fact,
}
QUESTIONS = {
    "rouge": "Say again what is told of",
    "niah_em": "Which number has",
    "qa_em": "Which things has",
}


def notes(random: Random, count: int) -> list[Note]:
    """Draw notes of different names; all kinds are there as soon as three are asked for."""
    metrics = [*random.sample(list(KINDS), 3), *random.choices(list(KINDS), k=count)][:count]
    random.shuffle(metrics)
    names = random.sample(PEOPLE, count)
    return [
        Note(name=name, metric=metric, text=text, target=target)
        for name, metric in zip(names, metrics, strict=True)
        for text, target in [KINDS[metric](random)]
    ]


def context(random: Random, lines: Sequence[Note], idle: int) -> str:
    """Return notes in their order among so many idle sentences."""
    texts = [note.line for note in lines]
    for sentence in random.choices(IDLE, k=idle):
        texts.insert(random.randint(0, len(texts)), sentence)
    return "\n".join(texts) + "\n"


def question(note: Note) -> str:
    """Return what asks for a note; it ends with how the answer begins."""
    return f"{QUESTIONS[note.metric]}\n{note.name}:"
