"""Test option values against the annotations of their functions.

Only certain errors are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pytest_mlperf.core.declaration import declaration_of, kind
from pytest_mlperf.registry import Group, registered, resolve
from pytest_mlperf.suite.trial import (
    annotation_of,
    fits,
    wrong_options,
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


RIGHT: dict[str, tuple[object, ...]] = {
    "whole": (3,),
    "number": (3, 0.5),
    "text": ("",),
    "switch": (True,),
    "maybe": (None, 3),
    "either": (False, "default"),
    "names": (["cpu"], ("cpu",), []),
    "pairs": ([1, "a"],),
    "table": ({"cuda": {"device_id": 0}},),
    "one_of": ("b",),
    "marked": (1,),
    "unknown": ("anything",),
    "called": ("anything",),
    "free": (object(),),
    "bare": (1,),
    "no_parameter": (1,),
}


def test_fitting_and_undecidable_values_pass() -> None:
    refused = [
        (name, value)
        for name, values in RIGHT.items()
        for value in values
        if wrong_options(takes, {name: value})
    ]

    assert refused == []


WRONG: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("whole", ("8", 0.5, True), "a whole number"),
    ("number", ("0.1", False), "a number"),
    ("text", (3,), "text"),
    ("switch", (1, "yes"), "true or false"),
    ("maybe", ("3",), "a whole number"),
    ("either", (1,), "true or false or text"),
    ("names", ("cuda", [1]), "an array of texts"),
    ("pairs", (3,), "an array"),
    ("table", (["cuda"], {"cuda": 1}), "a table"),
    ("one_of", ("c",), "one of 'a', 'b'"),
    ("marked", ("1",), "a whole number"),
)


def test_values_outside_of_an_annotation_are_refused_with_the_expected_type() -> None:
    for name, values, words in WRONG:
        for value in values:
            message = f"{name} is {value!r}; {words} is needed"
            assert wrong_options(takes, {name: value}) == {name: message}


GROUPS: tuple[Group, ...] = ("engines", "datasets", "scorers")


def test_the_defaults_of_every_registered_extension_fit_their_own_annotations() -> None:
    for group, use, extension in ((g, *each) for g in GROUPS for each in registered(g).items()):
        factory = resolve(extension.value)
        defaults = {
            name: option.default
            for name, option in declaration_of(factory).options.items()
            if option.default is not None
        }
        assert wrong_values(group, use, defaults) == {}
        for name in declaration_of(factory).options:
            assert annotation_of(factory, name) is not Any, f"{use}.{name} cannot be read"


def test_an_annotation_in_words() -> None:
    rows: list[Any] = [
        (int | None, "a whole number"),
        (list[float], "an array of numbers"),
        (bytes, "bytes"),
    ]
    assert [kind(annotation, article=True) for annotation, _ in rows] == [
        words for _, words in rows
    ]
    assert fits(None, None)
    assert not fits(0, None)
