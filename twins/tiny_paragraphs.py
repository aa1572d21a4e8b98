"""Draw paragraphs, questions and answers from a small grammar: what a tiny BERT is trained on.

A paragraph states facts about a few subjects, all invented. A question asks for one fact of one
subject; other sentences state the same of other subjects, and other facts of the same one, so that
neither the question's words nor the subject's name alone find the answer. All text here and from
here is this project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase, digits

from pytest_mlperf.adapters.datasets.squad._features import SPECIAL, basic_tokens

Value = Callable[[Random], tuple[str, ...]]
"""Draws an answer: the text as it is in the paragraph, then parts of it that are right, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """Something to say of a subject, and to ask for.

    Attributes:
        value: Draws what is said.
        statements: Sentences with {S} for the subject and {V} for the value.
        questions: With {S} for the subject.
    """

    value: Value
    statements: tuple[str, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A question and its answers.

    Attributes:
        question: Its text.
        fact: What it asks for, of whatever subject.
        answers: Where each starts in the paragraph, in characters, and its text. The first is the
            longest; it contains the others.
    """

    question: str
    fact: Fact
    answers: tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Paragraph:
    """A text, and a question for each of its sentences in a random order."""

    title: str
    context: str
    asked: tuple[Asked, ...]


def words(text: str) -> tuple[str, ...]:
    """Split at spaces."""
    return tuple(text.split())


HEADS = words("Bra Kel Mor Tas Vin Dul Fer Gos Hal Jun Lir Nev Pol Rus Sem Tor Ulm Wes Yor Zan")
TAILS = words("bek dor fal gan hus jor kin lom mar nat pel rik sut tev vos wyn zim lad ost ard")
TRADES = words("miller baker weaver smith carpenter teacher doctor farmer potter printer")
GOODS = words(
    "copper salt wool honey glass timber cheese silk grain leather paper wine tin oil soap rope"
)
COLOURS = words("red blue green white black yellow brown grey purple orange")
PLACES = words("forest valley hill desert lake coast island mountain marsh meadow")


def name(random: Random) -> str:
    """Return one of 400 names of two word pieces."""
    return random.choice(HEADS) + random.choice(TAILS)


def a_name(random: Random) -> tuple[str, ...]:
    """Return a name."""
    return (name(random),)


def a_person(random: Random) -> tuple[str, ...]:
    """Return somebody by trade and name; the name alone is right, too."""
    own = name(random)
    return (f"the {random.choice(TRADES)} {own}", own)


def a_year(random: Random) -> tuple[str, ...]:
    """Return a year."""
    return (str(random.randrange(1100, 2000)),)


def a_number(random: Random) -> tuple[str, ...]:
    """Return a round number of four digits."""
    return (f"{random.randrange(10, 100)}00",)


def a_colour(random: Random) -> tuple[str, ...]:
    """Return one colour, or two."""
    first, second = random.sample(COLOURS, 2)
    return (first if random.random() < 0.5 else f"{first} and {second}",)


def some_goods(random: Random) -> tuple[str, ...]:
    """Return one to three goods."""
    *most, last = random.sample(GOODS, random.randint(1, 3))
    return (f"{', '.join(most)} and {last}" if most else last,)


def a_place(random: Random) -> tuple[str, ...]:
    """Return a place with a name; the name alone is right, too."""
    own = name(random)
    return (f"the {random.choice(PLACES)} of {own}", own)


def fact(value: Value, statements: str, questions: str) -> Fact:
    """Return a fact; statements and questions are parted by a bar."""
    return Fact(
        value=value,
        statements=tuple(statements.split(" | ")),
        questions=tuple(questions.split(" | ")),
    )


KINDS: dict[str, tuple[Fact, ...]] = {
    "Towns": (
        fact(
            a_name,
            "The town of {S} lies on the river {V}. | The river {V} flows through {S}.",
            "Which river flows through {S}? | On which river does {S} lie?",
        ),
        fact(
            a_year,
            "{S} was founded in {V}. | In the year {V}, settlers founded {S}.",
            "When was {S} founded? | In which year did settlers found {S}?",
        ),
        fact(
            a_person,
            "The mayor of {S} is {V}. | {V} became mayor of {S} in spring.",
            "Who is the mayor of {S}? | Which mayor does {S} have?",
        ),
        fact(
            some_goods,
            "The market of {S} sells {V}. | Traders buy {V} in {S}.",
            "What does the market of {S} sell? | What do traders buy in {S}?",
        ),
        fact(
            a_number,
            "About {V} people live in {S}. | {S} is home to {V} people.",
            "How many people live in {S}? | To how many people is {S} home?",
        ),
        fact(
            a_colour,
            "The walls of {S} are {V}. | {S} has walls that are painted {V}.",
            "What colour are the walls of {S}? | How are the walls of {S} painted?",
        ),
    ),
    "Ships": (
        fact(
            a_person,
            "The captain of the {S} is {V}. | {V} commands the {S}.",
            "Who commands the {S}? | Who is the captain of the {S}?",
        ),
        fact(
            a_year,
            "The {S} was built in {V}. | Workers finished the {S} in {V}.",
            "When was the {S} built? | When did workers finish the {S}?",
        ),
        fact(
            some_goods,
            "The {S} carries {V}. | Her crew loaded the {S} with {V}.",
            "What does the {S} carry? | With what did the crew load the {S}?",
        ),
        fact(
            a_name,
            "The home port of the {S} is {V}. | From {V}, the {S} sails every month.",
            "What is the home port of the {S}? | From where does the {S} sail?",
        ),
        fact(
            a_colour,
            "The sails of the {S} are {V}. | One knows the {S} by her {V} sails.",
            "What colour are the sails of the {S}? | Which sails does the {S} have?",
        ),
    ),
    "Painters": (
        fact(
            a_year,
            "{S} was born in {V}. | The painter {S} came to the world in {V}.",
            "When was {S} born? | In which year did {S} come to the world?",
        ),
        fact(
            a_person,
            "{S} learned painting from {V}. | {V} taught {S} how to paint.",
            "Who taught {S}? | From whom did {S} learn painting?",
        ),
        fact(
            a_place,
            "{S} liked to paint {V}. | A famous picture by {S} shows {V}.",
            "What did {S} like to paint? | What does a famous picture by {S} show?",
        ),
        fact(
            a_number,
            "A picture by {S} costs {V} coins. | A museum paid {V} coins for a work of {S}.",
            "How many coins does a picture by {S} cost? | How much did a museum pay for {S}?",
        ),
        fact(
            a_name,
            "{S} has a studio in {V}. | {S} moved to {V} and opened a studio there.",
            "Where is the studio of {S}? | Where did {S} open a studio?",
        ),
    ),
    "Rivers": (
        fact(
            a_place,
            "The {S} rises in {V}. | The source of the {S} is in {V}.",
            "Where does the {S} rise? | Where is the source of the {S}?",
        ),
        fact(
            a_number,
            "The {S} is {V} miles long. | Over {V} miles, the {S} winds to the sea.",
            "How long is the {S}? | How many miles does the {S} wind?",
        ),
        fact(
            a_person,
            "A bridge over the {S} was built by {V}. | {V} built a bridge across the {S}.",
            "Who built a bridge over the {S}? | By whom was the {S} bridged?",
        ),
        fact(
            a_year,
            "The {S} last froze in {V}. | In {V}, ice covered the {S}.",
            "When did the {S} freeze? | In which year did ice cover the {S}?",
        ),
        fact(
            a_name,
            "The {S} ends in a bay near {V}. | Near {V}, the {S} reaches the sea.",
            "Near which town does the {S} end? | Where does the {S} reach the sea?",
        ),
    ),
}


def draw(random: Random, *, sentences: int) -> Paragraph:
    """Draw a paragraph.

    Args:
        random: Decides everything.
        sentences: How many, 1 to 15, each with a fact; they are about one to three subjects.
    """
    title = random.choice(list(KINDS))
    facts = KINDS[title]
    subjects: list[str] = []
    while len(subjects) < 3:
        if (own := name(random)) not in subjects:
            subjects.append(own)
    least = -(-sentences // len(facts))
    subjects = subjects[: random.randint(max(least, min(2, sentences)), 3)]
    pairs = [(subject, each) for subject in subjects for each in facts]
    context, asked = "", []
    for subject, each in random.sample(pairs, sentences):
        text, *parts = each.value(random)
        before, _, after = random.choice(each.statements).replace("{S}", subject).partition("{V}")
        context += f"{' ' * bool(context)}{before}"
        # A sentence that starts with a value starts with a capital.
        written = text if before else text[0].upper() + text[1:]
        start = len(context)
        question = random.choice(each.questions).replace("{S}", subject)
        right = [(start, written), *((start + text.index(part), part) for part in parts)]
        asked.append(Asked(question=question, fact=each, answers=tuple(right)))
        context += written + after
    random.shuffle(asked)
    return Paragraph(title=title, context=context, asked=tuple(asked))


def vocabulary() -> list[str]:
    """Return the lines of vocab.txt: BERT's special pieces, every word, and parts of the others."""
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert set(known) == set(SPECIAL)
    characters = [*ascii_lowercase, *digits]
    pairs = [f"{number:02}" for number in range(100)]
    pieces = [
        *".,?",
        *characters,
        *pairs,
        *(head.lower() for head in HEADS),
        *sorted(set(_words())),
    ]
    pieces += [f"##{each}" for each in (*characters, *pairs, *TAILS)]
    return list(dict.fromkeys([*known, *pieces]))


def _words() -> Iterator[str]:
    """Yield every word of the grammar, in lower case."""
    texts = [each for facts in KINDS.values() for own in facts for each in own.statements]
    texts += [each for facts in KINDS.values() for own in facts for each in own.questions]
    for text in texts:
        yield from basic_tokens(text.replace("{S}", "").replace("{V}", ""))
    for several in (TRADES, GOODS, COLOURS, PLACES, ("and", "the", "of")):
        yield from several
