"""Load add-ons, call their hooks, and report their faults."""

from __future__ import annotations

import contextlib
import inspect
import io
import time
import tokenize
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pluggy
import pytest
from _pytest.outcomes import OutcomeException

from pytest_mlperf import hookspecs
from pytest_mlperf.core.addons import Criterion
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, text_of

GROUP = f"{hookspecs.__package__}.addons"

ADDONS = "mlperf-addons"
"""Name by which pytest's plugin manager knows the add-ons."""

EXIT_ENVIRONMENT = 3
"""Exit code if this machine, or an installed package, lacks something that the user needs."""

REPORTING = frozenset({"mlperf_case_facts", "mlperf_session_finished"})
"""Hooks that change no verdict, no option and no test: a fault in one of them ends nothing."""

SLOW_S = 5.0
"""Duration above which the call of a hook is reported."""


Taken = TypeVar("Taken")


FAULTS = (Exception, SystemExit, OutcomeException)
"""Exceptions treated as faults of an add-on; a KeyboardInterrupt comes from the user."""

LOOP_ENDS = (pytest.UsageError, pytest.Session.Failed, pytest.Session.Interrupted, OutcomeException)
"""Exceptions by which `mlperf_runtestloop` may end a session."""


class AddOnError(MlperfError):
    """Report a fault in an add-on that may change verdicts, options or which tests run."""


@dataclass(eq=False)
class AddOn:
    """Describe an installed add-on.

    Attributes:
        title: "add-on cost (acme-cost 1.2)", for messages.
        hooks: Names of the hooks it implements; read from its source if it cannot be loaded.
    """

    name: str
    title: str
    hooks: frozenset[str] = frozenset()


class _Manager(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if name.startswith("mlperf_") and inspect.isroutine(getattr(plugin, name, None)):
            return super().parse_hookimpl_opts(plugin, name) or {}
        return None


@dataclass
class AddOns:
    """Load and call the add-ons of a session.

    Attributes:
        warnings: Lines for the summary, each once.
        errors: Faults that end the session with exit code 3.
        options: Declarations of the add-ons' options by name.
    """

    warnings: dict[str, None] = field(default_factory=dict)
    errors: dict[str, None] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._manager = _Manager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._loaded: dict[object, AddOn] = {}

    def load(self, is_blocked: Callable[[str], bool]) -> None:
        """Load installed add-ons by name, except those that `-p no:mlperf-NAME` blocks."""
        entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
        for entry in entries:
            if is_blocked(f"mlperf-{entry.name}"):
                continue
            addon = AddOn(entry.name, _title(entry))
            try:
                others = [one for one in entries if one.name == entry.name and one != entry]
                if others and not _is_ours(entry):
                    raise AddOnError(f"{_title(others[0])} has the same name")
                with self._watched(addon, "loading"):
                    plugin = entry.load()
                self._register(addon, plugin)
            except FAULTS as error:
                addon.hooks = addon.hooks or _hooks_in_source(entry)
                # Ours do nothing that no option asks for, and a kernel may stand alone.
                alone = isinstance(error, ModuleNotFoundError) and _is_ours(entry)
                critical = False if alone else addon.hooks - REPORTING
                self._fault(addon, "cannot be loaded", error, critical=critical)

    def _register(self, addon: AddOn, plugin: Any) -> None:
        addon.hooks = frozenset(name for name in dir(plugin) if name.startswith("mlperf_"))
        for name in sorted(addon.hooks):
            if not inspect.isroutine(getattr(plugin, name)):
                raise AddOnError(f"{name} is not a function")
        built_for = getattr(plugin, "API", None)
        if built_for != hookspecs.API:
            stated = "not declared" if built_for is None else repr(built_for)
            raise AddOnError(f"API is {stated}; this version needs API = {hookspecs.API}")
        if unknown := sorted(addon.hooks - set(vars(hookspecs))):
            raise AddOnError(f"no hook {unknown[0]}")
        self._manager.register(plugin, addon.name)
        self._loaded[plugin] = addon

    def declare(self, group: Callable[[], Any]) -> None:
        """Call each add-on's `mlperf_addoptions` with a new `group()`; collect the options."""
        for hook in reversed(self._manager.hook.mlperf_addoptions.get_hookimpls()):
            addon, options = self._loaded[hook.plugin], group()
            try:
                with self._watched(addon, "mlperf_addoptions"):
                    hook.function(options)
                if taken := sorted(self.options.keys() & options.declared.keys()):
                    raise ValueError(f"another add-on has the option {taken[0]!r}")
            except FAULTS as error:
                self._fault(addon, "raised in mlperf_addoptions", error, critical=True)
            else:
                self.options |= options.declared

    def call(self, hook: str, take: Callable[[Any], Taken], **arguments: Any) -> Iterator[Taken]:
        """Call a hook of each add-on; yield the values that are not None, validated by `take`.

        Raises:
            AddOnError: A hook outside `REPORTING` raised, or `take` rejected its value.
        """
        for implementation in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            addon = self._loaded[implementation.plugin]
            try:
                with self._watched(addon, hook):
                    value = implementation.function(
                        *(arguments[name] for name in implementation.argnames)
                    )
                    taken = None if value is None else take(value)
            except FAULTS as error:
                if hook == "mlperf_runtestloop" and isinstance(error, LOOP_ENDS):
                    raise
                message = self._fault(addon, f"raised in {hook}", error, hook not in REPORTING)
                if hook not in REPORTING:
                    raise AddOnError(message) from error
            else:
                if taken is not None:
                    yield taken

    def first(self, hook: str, **arguments: Any) -> Any:
        """Call a hook of the add-ons until one returns a value; return it, or None if none does."""
        takes = {"mlperf_collect_file": as_collector, "mlperf_runtestloop": as_true}
        return next(self.call(hook, takes[hook], **arguments), None)

    def add_messages(self, warnings: Iterable[str], errors: Iterable[str]) -> None:
        """Add warnings and errors that an xdist worker or a cluster node reported."""
        self.warnings |= dict.fromkeys(warnings)
        self.errors |= dict.fromkeys(errors)

    @contextlib.contextmanager
    def _watched(self, addon: AddOn, moment: str) -> Iterator[None]:
        began, printed = time.monotonic(), io.StringIO()
        try:
            if moment == "mlperf_runtestloop":  # tests run in it
                yield
            else:
                with contextlib.redirect_stdout(printed):
                    yield
        finally:
            if text := printed.getvalue().strip():
                line = text.splitlines()[0]
                self._warn(f"{addon.title} must not print in {moment}, but printed: {line}")
            if (seconds := time.monotonic() - began) > SLOW_S and moment != "mlperf_runtestloop":
                self._warn(f"{addon.title} is slow: {seconds:.0f} s in {moment}")

    def _fault(self, addon: AddOn, event: str, error: BaseException, critical: object) -> str:
        if isinstance(error, EnvironmentFault):  # what the user asked for cannot be done
            message = f"{addon.title}: {text_of(error)}"
            self.errors[message] = None
            return message
        named = isinstance(error, (AddOnError, pluggy.PluginValidationError))
        reason = text_of(error) if named else f"{type(error).__name__}: {text_of(error)}"
        cure = f"fix or uninstall it, or disable it: -p no:mlperf-{addon.name}"
        message = f"{addon.title} {event}: {reason}{_place(error)}; {cure}"
        if critical:
            self.errors[message] = None
        else:
            self._warn(message)
        return message

    def _warn(self, message: str) -> None:
        self.warnings[f"WARNING {message}"] = None


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if len(frames) > 1 else ""


def _is_ours(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "pytest-mlperf"


def _title(entry: EntryPoint) -> str:
    installed = entry.dist
    return f"add-on {entry.name}" + (
        f" ({installed.name} {installed.version})" if installed is not None else ""
    )


def _hooks_in_source(entry: EntryPoint) -> frozenset[str]:
    try:
        spec = find_spec(entry.module)
        source = Path(str(spec and spec.origin)).read_text("utf-8")
        words = [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline)]
        names = set(vars(hookspecs) if ("import", "*") in pairwise(words) else words)
    except FAULTS:  # a package above it may raise anything
        names = set(vars(hookspecs))
    return frozenset(name for name in names if name.startswith("mlperf_"))


def addons_of(config: pytest.Config) -> AddOns:
    """Return the add-ons of a pytest config."""
    addons: AddOns = config.pluginmanager.getplugin(ADDONS)
    return addons


MAX_FACT_CHARACTERS = 500
"""Maximum length of a fact; longer texts are cut."""

MAX_FACTS = 20


def as_facts(value: object) -> dict[str, str]:
    """Validate the value that an add-on returned from `mlperf_case_facts`: short texts by title."""
    facts: Mapping[Any, Any] = value if isinstance(value, Mapping) else {None: None}
    words = [word for pair in facts.items() for word in pair]
    if not all(isinstance(word, str) for word in words) or len(facts) > MAX_FACTS:
        raise TypeError(f"returned {value!r:.80}, not a mapping of at most {MAX_FACTS} texts")
    return {title[:80]: fact[:MAX_FACT_CHARACTERS] for title, fact in facts.items()}


def as_lines(value: Iterable[str] | str) -> list[str]:
    """Convert the value that an add-on returned from `mlperf_session_finished` to lines."""
    return [value] if isinstance(value, str) else [str(line) for line in value]


def as_criterion(value: object) -> Criterion:
    """Validate the value that an add-on returned from `mlperf_verdict`."""
    from pytest_mlperf.core.verdict import Outcome  # which no project without suites loads

    if not isinstance(value, Criterion):
        raise TypeError(f"returned {value!r:.80}, not a Criterion")
    texts: tuple[object, ...] = (value.headline, *value.notes)
    if not all(isinstance(text, str) and text for text in texts):
        raise TypeError("headline and notes of a Criterion must be strings")
    if value.fails and not Outcome(value.outcome).fails:
        raise ValueError(f"a Criterion cannot fail a test with outcome {value.outcome!r}")
    return value


def as_collector(value: object) -> pytest.Collector:
    """Validate the value that an add-on returned from `mlperf_collect_file`."""
    if not isinstance(value, pytest.Collector):
        raise TypeError(f"returned {value!r:.80}, not a pytest.Collector")
    return value


def as_true(value: object) -> bool:
    """Return True if an add-on's `mlperf_runtestloop` returned True; else raise TypeError."""
    if value is not True:
        raise TypeError(f"returned {value!r:.80}, not True or None")
    return True
