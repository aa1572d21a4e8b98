"""Define what add-ons declare and return: options, commands, output formats, criteria."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class Command:
    """Declare a subcommand of `pytest-mlperf`.

    Attributes:
        summary: One-line description in `--help`.
        module: Module with `HELP` (description, "examples:" and examples), `add_arguments(parser)`
            and `run(parsed)`, which returns the exit code.
        group: Heading in `--help`: "Start", "Judge", "Accept", "Several machines", "MLPerf",
            "Reference", or another one.
        doctor: Module for `doctor`: its `checks()` yields name, state ("ok", "note", "defective"),
            text and remedy of each check of the working folder; "" for none.
    """

    summary: str
    module: str
    group: str = "Add-ons"
    doctor: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """Declare an output format of a session's results or of a results database.

    Attributes:
        module: Module with `report(session)`, which returns the text. A format of a database has
            `write(store_url, folder)`, which returns the number of pages. Printed text goes to
            stderr, an exception is reported in one line.
        libraries: Required modules, each with the argument of `pip install`.
        of_store: Whether the format converts a results database to a folder of files.
    """

    module: str
    libraries: Mapping[str, str] = field(default_factory=dict)
    of_store: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Criterion:
    """Hold the result of an add-on's own check of a verdict.

    A criterion can fail a test that passes, but never pass a test that fails.

    Attributes:
        headline: Text after the outcome on the first line, at most about 60 characters.
        fails: Whether the test fails; otherwise the criterion is shown as a note.
        outcome: Outcome of the failed test, e.g. "GATE FAIL".
        notes: Further sentences for the failure message.
    """

    headline: str
    fails: bool = True
    outcome: str = "GATE FAIL"
    notes: tuple[str, ...] = ()


Setting = TypeVar("Setting")


def checked(
    kind: Callable[[str], Setting], fits: Callable[[Setting], bool]
) -> Callable[[str], Setting]:
    """Create a converter from `kind` that raises ValueError for values that `fits` rejects."""

    def convert(text: str) -> Setting:
        value = kind(text)
        if not fits(value):
            raise ValueError
        return value

    return convert


def one_of(*words: str) -> Callable[[str], str]:
    """Create a converter that accepts only these words; others raise ValueError."""
    return checked(str, words.__contains__)


@dataclass(frozen=True, kw_only=True)
class SessionOption:
    """Describe a session option; `convert` parses its text or raises ValueError.

    Attributes:
        bare: Value if the user gives the option without one; None if a value is required.
        ini_only: Whether only ini files (or pytest's `-o`) can set the option.
        beside: Whether the option affects neither measurements nor verdicts nor baselines.
        elsewhere: Whether a non-default value lets cases run on other machines.
        group: Group in `pytest --help`: "everyday", "ci" or "mlperf".
    """

    metavar: str
    help: str
    convert: Callable[[str], object]
    default: object = None
    bare: str | None = None
    ini_only: bool = False
    beside: bool = False
    elsewhere: bool = False
    group: str = "everyday"


def option_of(metavar: str, text: str, default: object, more: Mapping[str, Any]) -> SessionOption:
    """Create an option with help `text` and fields `more`; metavar "a|b" allows only a or b."""
    usual = one_of(*metavar.split("|")) if "|" in metavar else str
    return SessionOption(metavar=metavar, help=text, default=default, **{"convert": usual, **more})


class OptionGroup:
    """Collect the options of an add-on; each is a command-line option and an ini setting."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = taken
        self.declared: dict[str, SessionOption] = {}

    def add(self, name: str, metavar: str, text: str, default: object = None, **more: Any) -> None:
        """Declare the option `--mlperf-NAME` and the ini setting `mlperf_NAME`.

        Args:
            name: Python identifier; `max_cost` becomes `--mlperf-max-cost`.
            metavar: Placeholder of the value in `--help`; "a|b" accepts only these words.
            text: Help text of the option, with each percent sign doubled.
            default: Value if the option is not set; converted only if it is a string.
            **more: Fields of `SessionOption`. `convert` parses a text and raises ValueError if it
                is invalid; a Path is relative to the folder of the command or ini file.

        Raises:
            ValueError: The name is in use or no identifier, or the help has a single percent sign.
        """
        if not name.isidentifier():
            raise ValueError(
                f"option {name!r} must be a Python identifier, e.g. max_cost for --mlperf-max-cost"
            )
        if name in self.declared or name in self._taken:
            raise ValueError(f"option {name!r} exists; choose another name")
        try:
            _ = text % {}
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"help of option {name!r}: write %% for a percent sign") from None
        self.declared[name] = option_of(metavar, text, default, more)
