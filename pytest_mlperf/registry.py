"""Find engines, data sets, scorers and builders by their name in suites."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pytest_mlperf.core.declaration import declaration_of
from pytest_mlperf.core.errors import EnvironmentFault, SuiteError, text_of
from pytest_mlperf.core.removed import find_removed
from pytest_mlperf.core.untrusted_text import nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Group = Literal["engines", "datasets", "scorers", "builders"]

AnyGroup = Group | Literal["addons", "calibration", "commands", "formats"]

Declared = TypeVar("Declared")

ALIASES = {
    "engines.null:": "builtin.null:",
    "datasets.synthetic:": "builtin.synthetic:",
    "scorers.clip_fid:": "adapters.scorers.images:",
    "scorers.mean_ap:": "adapters.scorers.detection:",
    "scorers.rouge:": "adapters.scorers.rouge.scorer:",
    **{
        f"{group}.": f"adapters.{group}."
        for group in ("builders", "datasets", "engines", "scorers")
    },
}
"""Present module by former module; the first match counts. Accepted baselines, suites and entry
points of other packages contain former names."""


@cache
def registered(group: AnyGroup) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; on a name clash, this package's own."""
    return {entry.name: entry for entry in all_registered(group)}  # our own entry wins


@cache
def all_registered(group: AnyGroup) -> list[EntryPoint]:
    """Return all entry points of a group; those of this package come last."""
    from importlib.metadata import entry_points  # a fifth of a worker's start

    return sorted(entry_points(group=f"pytest_mlperf.{group}"), key=is_own)


def clash(group: AnyGroup, name: str) -> str:
    """Return an error message if several other packages register a name, else ""."""
    entry = registered(group).get(name)
    if entry is None or is_own(entry):
        return ""
    titles = sorted(title_of(other) for other in all_registered(group) if other.name == name)
    return f"several packages have this name: {', '.join(titles)}" if len(titles) > 1 else ""


def is_own(entry: EntryPoint) -> bool:
    """Check whether an entry point belongs to this package."""
    return entry.module.partition(".")[0] == __package__


def title_of(entry: EntryPoint) -> str:
    """Return name and distribution of an entry point: "pdf (acme-pdf 1.2)"."""
    installed = entry.dist
    return f"{entry.name} ({installed.name} {installed.version})" if installed else entry.name


def declared(
    group: Literal["commands", "formats"],
    kind: type[Declared],
    broken: Callable[[str, str], Declared],
) -> dict[str, Declared]:
    """Return the objects that a group's entry points declare, by name; print nothing to stdout.

    Args:
        kind: The class of these objects.
        broken: Makes a substitute from the error message and module of an entry point that cannot
            be loaded, because one broken add-on must not end a session.
    """
    declarations = {}
    for name, entry in registered(group).items():
        try:
            if reason := clash(group, name):
                raise SuiteError(reason)
            with contextlib.redirect_stdout(sys.stderr):
                value = resolve(entry.value)
            if not isinstance(value, kind):
                raise TypeError(f"it is no {kind.__name__}")
        except (Exception, SystemExit) as error:
            value = broken(text_of(error), entry.module)
        declarations[name] = value
    return declarations


@cache
def current_target(target: str) -> str:
    """Return a target "package.module:name" with the new path if its module was moved."""
    name = target.removeprefix(f"{__package__}.")
    if name != target:
        for former, present in ALIASES.items():
            if name.startswith(former):
                return f"{__package__}.{present}{name.removeprefix(former)}"
    return target


def target(group: AnyGroup, use: str) -> str:
    """Return "package.module:name" for a suite's `use`; raise SuiteError if nothing matches."""
    installed = registered(group)
    if reason := clash(group, use):
        raise SuiteError(f"{group[:-1]} {use!r}: {reason}; uninstall all but one")
    if use in installed:
        return current_target(installed[use].value)
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", use):
        return current_target(use)

    raise SuiteError(
        f"no {group[:-1]} {use!r} is installed{nearest(use, installed)} "
        '(your own code: "package.module:name")'
    )


def name_of(group: Group, target: str) -> str:
    """Return the registered name of the target "package.module:name", else the target itself."""
    names = {current_target(entry.value): name for name, entry in registered(group).items()}
    return names.get(current_target(target), target)


def check_options(group: Group, use: str, options: Mapping[str, Any]) -> None:
    """Raise for invalid options of extension `use`; a user's class is checked by the worker."""
    entry = registered(group).get(use)
    if entry is None:
        return
    check_call(f"{group[:-1]} {use!r}", resolve(entry.value), options)


def metrics(scorer: str) -> tuple[str, ...] | None:
    """Return the metrics of a registered scorer; None if its options determine them."""
    declared: tuple[str, ...] | None = class_attribute("scorers", scorer, "metrics")
    return declared


def class_attribute(group: Group, use: str, name: str) -> Any:
    """Return an attribute of a registered extension's class; None if either does not exist."""
    entry = registered(group).get(use)
    return getattr(resolve(entry.value), name, None) if entry else None


def first_suites() -> dict[str, tuple[str, str]]:
    """Return by engine its example suite (TOML) and the parts of it that a user must edit."""
    suites = {}
    for name, entry in sorted(registered("engines").items(), key=lambda item: item[0]):
        try:
            engine = resolve(entry.value)
            if edits := vars(engine).get("first_suite"):  # not that of a base class
                home = importlib.import_module(engine.__module__).__package__ or ""
                text = files(home).joinpath("first_suite.toml").read_text("utf-8")
                suites[name] = text, str(edits)
        except Exception:  # noqa: S112 - one engine that is broken takes no other's suite away
            continue
    return suites


def resolve(name: str) -> Any:
    """Import "package.module:name"; raise ImportError or AttributeError if it is missing."""
    module, _, attribute = current_target(name).partition(":")
    return getattr(importlib.import_module(module), attribute)


def imported(noun: str, target: str, options: Mapping[str, Any] | None = None) -> Any:
    """Import "package.module:name", and check the options for its call.

    Raises:
        EnvironmentFault: The module cannot be imported.
        SuiteError: The module has no such name, or an option is unknown or missing.
    """
    try:
        factory = resolve(target)
    except (ImportError, AttributeError) as error:
        fault = EnvironmentFault if isinstance(error, ImportError) else SuiteError
        from pytest_mlperf.core.imports import not_imported  # few processes need it

        reason = not_imported(target, error)
        raise fault(f"{noun} {target!r} cannot be imported: {reason}") from error
    if options is not None:
        check_call(f"{noun} {target!r}", factory, options)
    return factory


def file_finder(use: str) -> Callable[..., None] | None:
    """Return the method `look` of data set `use`, which checks its files; None if it has none."""
    finds: Callable[..., None] | None = class_attribute("datasets", use, "look")
    return finds


def parallelism(use: str, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the options whose product is an engine process's number of GPUs; None if unknown."""
    ask = class_attribute("engines", use, "parallelism")
    return None if ask is None else ask(options)


def device_option(use: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (option, value) by which an engine's options select the device; None if unknown."""
    ask = class_attribute("engines", use, "works_on")
    return None if ask is None else ask(options)


def is_client(use: str) -> bool:
    """Check whether a registered engine is a client of a server."""
    return bool(class_attribute("engines", use, "client"))


def clients_of(use: str, options: Mapping[str, Any]) -> int:
    """Return the number of client processes of a registered engine."""
    ask = class_attribute("engines", use, "clients")
    return 1 if ask is None else ask(options)


def harness(use: str) -> str:
    """Return the load generator of an engine's Concurrency runs; "" if it is this package's own."""
    return class_attribute("engines", use, "harness") or ""


def is_timed(use: str) -> bool:
    """Check whether an engine's speed is measured; it is not if it only replays answers."""
    return class_attribute("engines", use, "timed") is not False


def check_call(title: str, factory: Any, options: Mapping[str, Any]) -> None:
    """Raise SuiteError if an option is unknown to a factory, or a required one is missing."""
    declaration = declaration_of(factory)
    if declaration.takes_more:
        return
    accepted = declaration.options
    for option in options:
        if option not in accepted:
            removed = find_removed("key", title, option)
            lack = f"{title} has no option {option!r}{nearest(option, accepted)}"
            raise SuiteError(str(removed or lack), option=option)
    for name, declared in accepted.items():
        if declared.required and name not in options:
            raise SuiteError(f"{title} needs the option {name!r}", option=name)
