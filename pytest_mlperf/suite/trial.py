"""Try a registered extension: are its options of the right kinds, are its files here?"""

from __future__ import annotations

import json
import types
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from pytest_mlperf.core.declaration import declaration_of
from pytest_mlperf.core.errors import MlperfError, SuiteError
from pytest_mlperf.core.untrusted_text import shown
from pytest_mlperf.registry import Group, check_options, registered, resolve

TYPE_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}

ITEM_WORDS: Mapping[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}

ARRAYS = (list, tuple, abc.Sequence, abc.Collection, abc.Iterable)
TABLE_TYPES = (dict, abc.Mapping, abc.MutableMapping)


def wrong_values(group: Group, use: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return, by option, what is wrong with a value that a registered extension does not take."""
    entry = registered(group).get(use)
    if entry is None:
        return {}
    factory = resolve(entry.value)
    return {
        name: wrong_value(factory, name, options[name]) for name in wrong_kinds(factory, options)
    }


def wrong_kinds(factory: Callable[..., Any], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of each option whose value no annotation allows.

    Only what is sure: an annotation that is not understood allows everything.
    """
    for name, value in options.items():
        if not fits(value, annotation_of(factory, name)):
            yield name


def wrong_value(factory: Callable[..., Any], name: str, value: Any) -> str:
    """Return what is wrong with a value that `wrong_kinds` names, and what is needed."""
    return f"{name} is {shown(value)}; {needed(annotation_of(factory, name))} is needed"


def annotation_of(factory: Callable[..., Any], name: str) -> Any:
    """Return the type of an option; Any where there is none, or none that can be read."""
    option = declaration_of(factory).options.get(name)
    return option.annotation if option else Any


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
        parts = [one for one in inside if one is not types.NoneType]
        return " or ".join(dict.fromkeys(map(needed, parts)))
    many = ITEM_WORDS.get(inside[0]) if len(inside) == 1 else None
    words: dict[Any, str] = {
        **TYPE_WORDS,
        **dict.fromkeys(ARRAYS, f"an array of {many}" if many else "an array"),
        **dict.fromkeys(TABLE_TYPES, "a table"),
        Literal: f"one of {', '.join(map(repr, inside))}",
    }
    return words.get(origin, getattr(annotation, "__name__", str(annotation)))


ABSENT = "/there/is/no/model"
"""Stands for a model that is not here, where options are to be checked all the same."""


def try_engine(use: str, *, options: Mapping[str, Any], model: str | None, precision: str) -> None:
    """Build a registered engine, which checks options and looks for its model; load nothing.

    Raises:
        SuiteError: An option is wrong.
        UnavailableError: The model is not here.
        EnvironmentFault: This machine lacks something else.
    """
    entry = registered("engines").get(use)
    if entry is None:
        return
    check_options("engines", use, options)
    for name, defect in wrong_values("engines", use, options).items():
        raise SuiteError(f"engine {use}: {defect}", option=name)
    try:
        resolve(entry.value)(dataset=None, model=model, precision=precision, **options)
    except MlperfError:
        raise
    except ValueError as error:
        raise SuiteError(str(error)) from None
    except Exception:  # noqa: S110 - one that wants its data set at once: the worker will see
        pass


def written(at_fault: Iterable[str], options: Iterable[str]) -> tuple[str, ...]:
    """Return the end of the key path of the first option at fault that a table has; () for none."""
    present = set(options)
    return next(((option,) for option in at_fault if option in present), ())
