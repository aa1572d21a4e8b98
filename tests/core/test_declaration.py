"""What an extension declares: a class of options, else the keywords of its constructor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_mlperf.core.declaration import declaration_of


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Options.

    Attributes:
        batch_size: Samples at once.
    """

    batch_size: int = 1


class Declares:
    options = Sizes

    def __init__(self, *, dataset: Any, **options: Any) -> None: ...


class Inherits(Declares):
    """Adds nothing."""


class Replaces(Declares):
    def __init__(self, *, dataset: Any, slow: str) -> None:
        super().__init__(dataset=dataset)


class Adds(Declares):
    def __init__(self, *, dataset: Any, slow: str, **options: Any) -> None:
        super().__init__(dataset=dataset, **options)


class Again(Replaces):
    options = Sizes


class Plain:
    def __init__(self, *, dataset: Any, threads: int = 2, **more: Any) -> None: ...


def test_options_are_those_of_the_class_that_says_last() -> None:
    for factory, names, takes_more in (
        (Declares, {"batch_size"}, False),
        (Inherits, {"batch_size"}, False),
        (Replaces, {"slow"}, False),
        (Adds, {"batch_size", "slow"}, False),
        (Again, {"batch_size"}, False),
        (Plain, {"threads"}, True),
    ):
        declaration = declaration_of(factory)
        assert (set(declaration.options), declaration.takes_more) == (names, takes_more)
