"""Whether the value of an option is of a kind that its parameter's annotation allows."""

from __future__ import annotations

import inspect
import sys
import types
from collections import abc
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pytest_mlperf.suite.values import shown

WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}


def wrong_kinds(factory: Callable[..., Any], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of each option whose value no annotation allows.

    Only what is sure: an annotation that is not understood allows everything.
    """
    for name, value in options.items():
        if not fits(value, annotation_of(factory, name)):
            yield name


def said(factory: Callable[..., Any], name: str, value: Any) -> str:
    """Return what is wrong with a value that `wrong_kinds` names, and what is needed."""
    return f"{name} is {shown(value)}; {needed(annotation_of(factory, name))} is needed"


def annotation_of(factory: Callable[..., Any], name: str) -> Any:
    """Return the annotation of a parameter; Any where there is none, or none that can be read."""
    parameter = inspect.signature(factory).parameters.get(name)
    annotation = parameter.annotation if parameter else Any
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    made_by = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    module = sys.modules.get(getattr(made_by, "__module__", ""))
    try:
        return eval(annotation, vars(module) if module else {})  # noqa: S307 - its own source
    except Exception:  # imported for type checkers only
        return Any


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value may stand where something of an annotation is wanted; yes when in doubt."""
    origin, inside = _parts(annotation)
    if origin in WORDS:
        return _is(value, origin)
    check = FITS.get(origin)
    return check(value, inside) if check else True


def needed(annotation: Any) -> str:
    """Return what an annotation wants, in a suite's words: "a whole number or text"."""
    origin, inside = _parts(annotation)
    if origin in WORDS:
        return WORDS[origin]
    words = NEEDED.get(origin)
    return words(inside) if words else getattr(annotation, "__name__", str(annotation))


def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return list and (int,) for list[int]; what is no generic is given back."""
    origin = get_origin(annotation) or annotation
    if origin is Annotated:
        return _parts(get_args(annotation)[0])
    known = isinstance(origin, Hashable) and (origin in WORDS or origin in FITS)
    return (origin if known else object), get_args(annotation)


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        kind = int if isinstance(value, int) else float
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _array(value: Any, inside: tuple[Any, ...]) -> bool:
    # Several arguments are those of a tuple, place by place.
    each = inside[0] if len(inside) == 1 else Any
    return isinstance(value, list | tuple) and all(fits(one, each) for one in value)


def _table(value: Any, inside: tuple[Any, ...]) -> bool:
    each = inside[1] if len(inside) == 2 else Any
    return isinstance(value, Mapping) and all(fits(one, each) for one in value.values())


def _either(value: Any, inside: tuple[Any, ...]) -> bool:
    return any(fits(value, one) for one in inside)


def _words_of_either(inside: tuple[Any, ...]) -> str:
    given = [one for one in inside if one is not types.NoneType]
    return " or ".join(dict.fromkeys(map(needed, given)))


def _words_of_array(inside: tuple[Any, ...]) -> str:
    many = MANY.get(inside[0]) if len(inside) == 1 else None
    return f"an array of {many}" if many else "an array"


ARRAYS = (list, tuple, abc.Sequence, abc.Collection, abc.Iterable)
TABLES = (dict, abc.Mapping, abc.MutableMapping)

MANY: Mapping[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}

FITS: Mapping[Any, Callable[[Any, tuple[Any, ...]], bool]] = {
    None: lambda value, _: value is None,
    types.NoneType: lambda value, _: value is None,
    Literal: lambda value, inside: value in inside,
    **dict.fromkeys((Union, types.UnionType), _either),
    **dict.fromkeys(ARRAYS, _array),
    **dict.fromkeys(TABLES, _table),
}
"""Whether a value fits a generic with these arguments."""

NEEDED: Mapping[Any, Callable[[tuple[Any, ...]], str]] = {
    Literal: lambda inside: f"one of {', '.join(map(repr, inside))}",
    **dict.fromkeys((Union, types.UnionType), _words_of_either),
    **dict.fromkeys(ARRAYS, _words_of_array),
    **dict.fromkeys(TABLES, lambda _: "a table"),
}
"""What such a generic wants, in words."""
