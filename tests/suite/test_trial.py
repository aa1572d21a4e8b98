"""Values of options against the annotations of what takes them: only what is sure is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from pytest_mlperf.core.declaration import declaration_of
from pytest_mlperf.registry import Group, registered, resolve
from pytest_mlperf.suite.trial import (
    annotation_of,
    fits,
    needed,
    wrong_kinds,
    wrong_value,
    wrong_values,
)

if TYPE_CHECKING:
    from decimal import Decimal


def takes(  # type: ignore[no-untyped-def]
    *,
    whole: int = 0,
    number: float = 0.0,
    text: str = "",
    switch: bool = False,
    maybe: int | None = None,
    either: bool | str = False,
    names: Sequence[str] | None = None,
    pairs: tuple[int, str] = (0, ""),
    table: Mapping[str, Mapping[str, Any]] | None = None,
    one_of: Literal["a", "b"] = "a",
    marked: Annotated[int, ["no key of a table"]] = 0,
    unknown: Decimal | None = None,
    called: Callable[[], int] | None = None,
    free: Any = None,
    bare=None,  # noqa: ANN001
) -> None: ...


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("whole", 3),
        ("number", 3),
        ("number", 0.5),
        ("text", ""),
        ("switch", True),
        ("maybe", None),
        ("maybe", 3),
        ("either", False),
        ("either", "default"),
        ("names", ["cpu"]),
        ("names", ("cpu",)),
        ("names", []),
        ("pairs", [1, "a"]),
        ("table", {"cuda": {"device_id": 0}}),
        ("one_of", "b"),
        ("marked", 1),
        ("unknown", "anything"),
        ("called", "anything"),
        ("free", object()),
        ("bare", 1),
        ("no_parameter", 1),
    ],
)
def test_what_fits_or_cannot_be_decided_is_let_pass(name: str, value: object) -> None:
    assert list(wrong_kinds(takes, {name: value})) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("whole", "8", "whole is '8'; a whole number is needed"),
        ("whole", 0.5, "whole is 0.5; a whole number is needed"),
        ("whole", True, "whole is True; a whole number is needed"),
        ("number", "0.1", "number is '0.1'; a number is needed"),
        ("number", False, "number is False; a number is needed"),
        ("text", 3, "text is 3; text is needed"),
        ("switch", 1, "switch is 1; true or false is needed"),
        ("switch", "yes", "switch is 'yes'; true or false is needed"),
        ("maybe", "3", "maybe is '3'; a whole number is needed"),
        ("either", 1, "either is 1; true or false or text is needed"),
        ("names", "cuda", "names is 'cuda'; an array of texts is needed"),
        ("names", [1], "names is [1]; an array of texts is needed"),
        ("pairs", 3, "pairs is 3; an array is needed"),
        ("table", ["cuda"], "table is ['cuda']; a table is needed"),
        ("table", {"cuda": 1}, "table is {'cuda': 1}; a table is needed"),
        ("one_of", "c", "one_of is 'c'; one of 'a', 'b' is needed"),
        ("marked", "1", "marked is '1'; a whole number is needed"),
    ],
)
def test_what_fits_no_part_of_an_annotation_is_told_with_what_is_needed(
    name: str, value: object, message: str
) -> None:
    assert list(wrong_kinds(takes, {name: value})) == [name]
    assert wrong_value(takes, name, value) == message


GROUPS: tuple[Group, ...] = ("engines", "datasets", "scorers")


@pytest.mark.parametrize("group", GROUPS)
def test_the_defaults_of_every_registered_extension_fit_their_own_annotations(group: Group) -> None:
    for use, found in registered(group).items():
        factory = resolve(found.value)
        defaults = {
            name: option.default
            for name, option in declaration_of(factory).options.items()
            if option.default is not None
        }
        assert wrong_values(group, use, defaults) == {}
        for name in declaration_of(factory).options:
            assert annotation_of(factory, name) is not Any, f"{use}.{name} cannot be read"


@pytest.mark.parametrize(
    ("annotation", "words"),
    [(int | None, "a whole number"), (list[float], "an array of numbers"), (bytes, "bytes")],
)
def test_an_annotation_in_words(annotation: Any, words: str) -> None:
    assert needed(annotation) == words
    assert fits(None, None)
    assert not fits(0, None)
