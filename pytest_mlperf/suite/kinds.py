"""Whether the value of an option is of a kind that its parameter's annotation allows."""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections import abc
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from pytest_mlperf.suite.values import shown

WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}

MANY: Mapping[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}

ARRAYS = (list, tuple, abc.Sequence, abc.Collection, abc.Iterable)
TABLES = (dict, abc.Mapping, abc.MutableMapping)


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
    if any(get_origin(one) is abc.Callable for one in (annotation, *get_args(annotation))):
        return True  # a name of one, perhaps
    try:
        # As JSON: a suite's arrays may stand for tuples, and "8" never for 8.
        TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    except Exception:  # noqa: S110 - no annotation that pydantic knows, or a value beyond JSON
        pass
    return True


def needed(annotation: Any) -> str:
    """Return what an annotation wants, in a suite's words: "a whole number or text"."""
    origin, inside = get_origin(annotation) or annotation, get_args(annotation)
    if origin is Annotated:
        return needed(inside[0])
    if origin in (Union, types.UnionType):
        given = [one for one in inside if one is not types.NoneType]
        return " or ".join(dict.fromkeys(map(needed, given)))
    many = MANY.get(inside[0]) if len(inside) == 1 else None
    words: dict[Any, str] = {
        **WORDS,
        **dict.fromkeys(ARRAYS, f"an array of {many}" if many else "an array"),
        **dict.fromkeys(TABLES, "a table"),
        Literal: f"one of {', '.join(map(repr, inside))}",
    }
    return words.get(origin, getattr(annotation, "__name__", str(annotation)))
