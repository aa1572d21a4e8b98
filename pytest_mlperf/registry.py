"""Find engines, data sets, scorers and builders by the name a suite uses."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from pytest_mlperf.core.errors import SuiteError

Group = Literal["engines", "datasets", "scorers", "builders"]

GIVEN = frozenset({"self", "dataset", "model", "precision"})
"""Parameters that the worker fills in; they are no options."""


@cache
def registered(group: Group) -> dict[str, EntryPoint]:
    """Return every registered extension of a group, built-in and third party alike."""
    return {found.name: found for found in entry_points(group=f"pytest_mlperf.{group}")}


def target(group: Group, use: str) -> str:
    """Return "package.module:name" for what a suite calls `use`; imports nothing.

    Raises:
        SuiteError: The name is not registered and is no "package.module:name".
    """
    known = registered(group)
    if use in known:
        return known[use].value
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", use):
        return use
    from pytest_mlperf.suite.values import nearest

    raise SuiteError(
        f"no {group[:-1]} {use!r} is installed{nearest(use, known)} "
        '(your own code: "package.module:name")'
    )


def check_options(group: Group, use: str, options: Mapping[str, Any]) -> None:
    """Check the options of a registered extension against its keyword-only parameters.

    The modules of registered extensions are light by contract, so this imports them; code named
    by "package.module:name" is only ever imported in the worker, which checks it there.

    Raises:
        SuiteError: An option is unknown, or is required and missing.
    """
    found = registered(group).get(use)
    if found is None:
        return
    check_call(f"{group[:-1]} {use!r}", resolve(found.value), options)


def wrong_values(group: Group, use: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with values of a kind that a registered extension does not take.

    Returns:
        A sentence by the name of each option.
    """
    found = registered(group).get(use)
    if found is None:
        return {}
    from pytest_mlperf.suite.kinds import said, wrong_kinds

    factory = resolve(found.value)
    return {name: said(factory, name, options[name]) for name in wrong_kinds(factory, options)}


def metrics(scorer: str) -> tuple[str, ...] | None:
    """Return the names of all metrics that a registered scorer can give; None: it does not say.

    It says so in its class attribute `metrics`, where its options do not decide them.
    """
    found = registered("scorers").get(scorer)
    return getattr(resolve(found.value), "metrics", None) if found else None


def resolve(name: str) -> Any:
    """Import what "package.module:name" names.

    Raises:
        ImportError, AttributeError: There is no such thing.
    """
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def look(use: str) -> Callable[..., None] | None:
    """Return what a registered data set has to find its files: a class method `look`, or None.

    It takes the adapter's options, opens no file, and raises UnavailableError with what is missing
    and what to put there. Of code named by "package.module:name" nothing is imported here.
    """
    found = registered("datasets").get(use)
    return getattr(resolve(found.value), "look", None) if found else None


def check_gpus(use: str, count: int, options: Mapping[str, Any]) -> None:
    """Let a registered engine refuse a number of GPUs that its options do not use.

    Raises:
        SuiteError: It does.
    """
    found = registered("engines").get(use)
    check = getattr(resolve(found.value), "check_gpus", None) if found else None
    if check is not None:
        check(count, options)


def check_call(what: str, factory: Any, options: Mapping[str, Any]) -> None:
    """Check options against the keyword parameters of a factory.

    Raises:
        SuiteError: An option is unknown, or is required and missing.
    """
    parameters = _parameters(factory)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = {p.name: p for p in parameters if p.name not in GIVEN}
    for option in options:
        if option not in known:
            from pytest_mlperf.suite.values import nearest

            raise SuiteError(f"{what} has no option {option!r}{nearest(option, known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in options:
            raise SuiteError(f"{what} needs the option {name!r}")


@lru_cache(maxsize=64)
def _parameters(factory: Any) -> tuple[inspect.Parameter, ...]:
    # A suite of thousands of cases names the same few factories again and again.
    return tuple(inspect.signature(factory).parameters.values())
