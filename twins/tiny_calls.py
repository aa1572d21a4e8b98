"""Draw requests with functions that may be called, as BFCL's files have them, and the right calls.

Functions are made of a verb, goods and one to three parameters, whose names vary: which function is
meant, and what its parameters are called, only their descriptions say. All text here and from here
is this project's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

VERBS = ("order", "rent", "sell", "ship", "repair", "paint")
GOODS = ("lamps", "chairs", "tables", "boats", "bikes", "sofas", "tents", "pianos")
COLOURS = ("red", "blue", "green", "white", "black", "yellow", "grey", "brown")
CITIES = ("Oslo", "Rome", "Paris", "Lima", "Cairo", "Delhi", "Tokyo", "Quito", "Bern", "Turin")
EXTRAS = ("wheels", "bells", "locks", "covers", "screws", "labels")
NO_CALL = "None of these functions does that."
"""The answer where no function fits."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a parameter may be about.

    Attributes:
        names: That it may have.
        schema: BFCL's description of it.
        draw: Draws a value.
        phrase: How a request says a value.
        place: Where in a request that stands: low numbers before the goods.
    """

    names: tuple[str, ...]
    schema: Mapping[str, Any]
    draw: Callable[[Random], Any]
    phrase: Callable[[Any], str]
    place: int


KINDS: Mapping[str, Kind] = {
    "count": Kind(
        names=("count", "number", "amount"),
        schema={"type": "integer", "description": "How many."},
        draw=lambda random: random.randint(2, 30),
        phrase=str,
        place=0,
    ),
    "colour": Kind(
        names=("colour", "shade", "tint"),
        schema={"type": "string", "description": "Which colour."},
        draw=lambda random: random.choice(COLOURS),
        phrase=str,
        place=1,
    ),
    "extras": Kind(
        names=("extras", "parts", "options"),
        schema={
            "type": "array",
            "items": {"type": "string"},
            "description": "What comes with it.",
        },
        draw=lambda random: random.sample(EXTRAS, random.randint(1, 2)),
        phrase=lambda value: f"with {' and '.join(value)}",
        place=2,
    ),
    "city": Kind(
        names=("city", "town", "place"),
        schema={"type": "string", "description": "Where."},
        draw=lambda random: random.choice(CITIES),
        phrase=lambda value: f"in {value}",
        place=3,
    ),
    "price": Kind(
        names=("price", "cost", "budget"),
        schema={"type": "float", "description": "At which price."},
        draw=lambda random: random.randint(2, 30) + 0.5,
        phrase=lambda value: f"for {value} euros",
        place=4,
    ),
    "urgent": Kind(
        names=("urgent", "express", "fast"),
        schema={"type": "boolean", "description": "Whether at once."},
        draw=lambda random: random.random() < 0.5,
        phrase=lambda value: "now" if value else "later",
        place=5,
    ),
}
TEXTS = ("colour", "city")
"""Kinds of text: in Java and JavaScript, BFCL takes no other arguments than text."""

FOREIGN = ("simple_java", "simple_javascript")
CALLS: Mapping[str, tuple[int, int, int]] = {
    **dict.fromkeys(("simple_python", *FOREIGN, "live_simple"), (1, 1, 1)),
    **dict.fromkeys(("multiple", "live_multiple"), (3, 1, 1)),
    **dict.fromkeys(("parallel", "live_parallel"), (1, 1, 2)),
    **dict.fromkeys(("parallel_multiple", "live_parallel_multiple"), (3, 2, 1)),
    "irrelevance": (1, 0, 1),
    "live_irrelevance": (2, 0, 1),
}
"""By BFCL's subset: functions that may be called, how many of them are, and how often each."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function that may be called: `parameters` are kinds by the name that they have here."""

    verb: str
    goods: str
    parameters: Mapping[str, str]

    @property
    def name(self) -> str:
        """Return its name as BFCL's files have it."""
        return f"{self.verb}.{self.goods}"

    def described(self, *, is_foreign: bool = False) -> dict[str, Any]:
        """Return its description as BFCL's files have it, in Python or in another language."""
        schemas = {name: dict(KINDS[kind].schema) for name, kind in self.parameters.items()}
        if is_foreign:
            for schema in schemas.values():
                schema["type"] = "String"
        return {
            "name": self.name,
            "description": f"{self.verb} {self.goods}",
            "parameters": {
                "type": "dict",
                "properties": schemas,
                "required": list(schemas),
            },
        }

    def arguments(self, random: Random) -> dict[str, Any]:
        """Draw what it is called with."""
        return {name: KINDS[kind].draw(random) for name, kind in self.parameters.items()}

    def said(self, arguments: Mapping[str, Any]) -> str:
        """Return a call of it as somebody asks for it."""
        parts = {KINDS[kind].place: "" for kind in KINDS}
        for name, kind in self.parameters.items():
            parts[KINDS[kind].place] = KINDS[kind].phrase(arguments[name])
        words = (
            self.verb,
            parts[0],
            parts[1],
            self.goods,
            *(parts[place] for place in (2, 3, 4, 5)),
        )
        return " ".join(filter(None, words))


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request: who asks for it in which words, what may be called, and what is right.

    Attributes:
        subset: BFCL's.
        text: What a user says.
        functions: BFCL's descriptions of those that may be called.
        calls: The right ones: the function's name with its arguments; none where none fits.
    """

    subset: str
    text: str
    functions: tuple[Mapping[str, Any], ...]
    calls: tuple[tuple[str, Mapping[str, Any]], ...]

    @property
    def answer(self) -> str:
        """Return what the model is to write: calls in Qwen's form, or a sentence."""
        return "\n".join(_written(name, values) for name, values in self.calls) or NO_CALL


def _written(name: str, arguments: Mapping[str, Any]) -> str:
    parts = "".join(
        f"<parameter={parameter}>\n"
        f"{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for parameter, value in arguments.items()
    )
    return f"<tool_call>\n<function={name.replace('.', '_')}>\n{parts}</function>\n</tool_call>"


def draw(random: Random, subset: str) -> Request:
    """Draw a request of a subset of BFCL."""
    offered, called, times = CALLS[subset]
    is_foreign = subset in FOREIGN
    drawn = _functions(random, max(1, offered + (not called)), is_foreign=is_foreign)
    asked = drawn[-1:] if not called else random.sample(drawn, called)
    functions = drawn[:-1] if not called else drawn
    calls = [(one, one.arguments(random)) for one in asked for _ in range(times)]
    said = ", and ".join(one.said(arguments) for one, arguments in calls)
    return Request(
        subset=subset,
        text=f"Could you please {said}?" if subset.startswith("live") else f"{said}.",
        functions=tuple(one.described(is_foreign=is_foreign) for one in functions),
        calls=tuple((one.name, arguments) for one, arguments in calls) if called else (),
    )


def _functions(random: Random, count: int, *, is_foreign: bool) -> list[Function]:
    """Draw functions, each of which has its verb or its goods in common with the first."""
    verb, goods = random.choice(VERBS), random.choice(GOODS)
    others = [(verb, one) for one in GOODS if one != goods]
    others += [(one, goods) for one in VERBS if one != verb]
    pairs = [(verb, goods), *random.sample(others, count - 1)]
    random.shuffle(pairs)
    return [
        Function(verb=verb, goods=goods, parameters=_parameters(random, is_foreign=is_foreign))
        for verb, goods in pairs
    ]


def _parameters(random: Random, *, is_foreign: bool) -> dict[str, str]:
    kinds: Sequence[str] = TEXTS if is_foreign else tuple(KINDS)
    chosen = random.sample(kinds, random.randint(1, min(3, len(kinds))))
    return {random.choice(KINDS[kind].names): kind for kind in chosen}


def files(requests: Sequence[Request]) -> dict[str, str]:
    """Return the content of BFCL's files by their names, for requests of all its subsets."""
    content: dict[str, str] = {}
    for subset in CALLS:
        chosen = [one for one in requests if one.subset == subset]
        names = [f"{subset}_{number}" for number in range(len(chosen))]
        content[f"BFCL_v4_{subset}.json"] = _lines(
            {
                "id": name,
                "question": [[{"role": "user", "content": one.text}]],
                "function": list(one.functions),
            }
            for name, one in zip(names, chosen, strict=True)
        )
        if CALLS[subset][1]:
            content[f"possible_answer/BFCL_v4_{subset}.json"] = _lines(
                {
                    "id": name,
                    "ground_truth": [
                        {called: {key: [value] for key, value in arguments.items()}}
                        for called, arguments in one.calls
                    ],
                }
                for name, one in zip(names, chosen, strict=True)
            )
    return content


def _lines(rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
