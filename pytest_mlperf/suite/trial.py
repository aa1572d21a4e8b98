"""Check a registered extension: the types of its options, and its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from pytest_mlperf.core.declaration import declaration_of, kind
from pytest_mlperf.core.errors import MlperfError, SuiteError
from pytest_mlperf.core.untrusted_text import quoted
from pytest_mlperf.registry import Group, check_options, registered, resolve


def wrong_values(group: Group, use: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return a message by option for values that a registered extension does not accept."""
    entry = registered(group).get(use)
    return wrong_options(resolve(entry.value), options) if entry else {}


def wrong_options(factory: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, str]:
    """Return an error message by option, for values that do not fit the type annotation."""
    types = {name: annotation_of(factory, name) for name in options}
    return {
        name: f"{name} is {quoted(value)}; {kind(types[name], article=True)} is needed"
        for name, value in options.items()
        if not fits(value, types[name])
    }


def annotation_of(factory: Callable[..., Any], name: str) -> Any:
    """Return the type of an option; Any if it has no readable annotation."""
    option = declaration_of(factory).options.get(name)
    return option.annotation if option else Any


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value fits an annotation; True if pydantic cannot check the annotation."""
    if any(get_origin(one) is Callable for one in (annotation, *get_args(annotation))):
        return True  # may be the name of a callable
    try:
        # In strict JSON mode an array may be a tuple, but "8" is never 8.
        TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    except Exception:  # noqa: S110 - no annotation that pydantic knows, or a value beyond JSON
        pass
    return True


ABSENT = "/there/is/no/model"
"""Stands for a missing model, so that options can be checked nevertheless."""


def try_engine(use: str, *, options: Mapping[str, Any], model: str | None, precision: str) -> None:
    """Build a registered engine, which checks options and looks for its model; load nothing.

    Raises:
        SuiteError: An option is wrong.
        UnavailableError: The model is missing.
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
    except Exception:  # noqa: S110 - if it needs its data set now, the worker checks it
        pass


def first_wrong_path(wrong_names: Iterable[str], options: Iterable[str]) -> tuple[str, ...]:
    """Return the key path of the first wrong option that an entry sets; () if it sets none."""
    present = set(options)
    return next(((option,) for option in wrong_names if option in present), ())
