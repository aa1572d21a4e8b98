"""What an add-on declares or returns: options, commands, report formats, criteria.

A module of declarations imports nothing else, so that `--help` and a session load no add-on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand of `pytest-mlperf`.

    Attributes:
        summary: Its line in `--help`.
        module: Has `HELP` (description, "examples:" and examples), `add_arguments(parser)` and
            `run(parsed)`, which returns the exit code.
        group: Heading in `--help`: "Start", "Judge", "Accept", "Several machines", "MLPerf",
            "Reference", or another one.
    """

    summary: str
    module: str
    group: str = "Add-ons"


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A form in which a session's results, or a store, are written.

    Attributes:
        module: Has `report(session)`, which returns the text; of a store
            `write(store_url, folder)`, which returns how many pages it wrote. What they print goes
            to stderr; what they raise is told in one line.
        libraries: Modules that it needs, each with what `pip install` takes.
        of_store: It is made of a store, and is a folder.
    """

    module: str
    libraries: Mapping[str, str] = field(default_factory=dict)
    of_store: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Criterion:
    """A further criterion for a verdict, by an add-on.

    It can fail a test, and cannot make one pass: a verdict that fails already gets it as a note.

    Attributes:
        headline: What follows the outcome on the first line, at most some 60 characters.
        fails: It fails the test; else it is a note.
        outcome: The outcome of a test that it fails, one that fails a test: "GATE FAIL".
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
    """Return what takes a value of a kind that fits; nan fits no range."""

    def convert(text: str) -> Setting:
        value = kind(text)
        if not fits(value):
            raise ValueError
        return value

    return convert


def one_of(*words: str) -> Callable[[str], str]:
    """Return what takes one of these words."""
    return checked(str, words.__contains__)


@dataclass(frozen=True, kw_only=True)
class SessionOption:
    """How one option is set; `convert` turns its text into a value and raises ValueError.

    Attributes:
        bare: Its value if it stands without one; None if it needs a value.
        ini_only: It is seldom set, and in ini files alone (or by pytest's `-o`).
        beside: It changes no measurement, no verdict and no record.
        elsewhere: Set to anything but its default, it lets cases run on other machines.
        attached: Its value follows "=" only, and is a word of `metavar`; `bare` is set.
        group: Where `pytest --help` lists it: "everyday", "ci" (and several machines), "mlperf"
            (and energy).
    """

    metavar: str
    help: str
    convert: Callable[[str], object]
    default: object = None
    bare: str | None = None
    ini_only: bool = False
    beside: bool = False
    elsewhere: bool = False
    attached: bool = False
    group: str = "everyday"


def option_of(metavar: str, text: str, default: object, more: Mapping[str, Any]) -> SessionOption:
    """Return an option; without `convert` it takes a word of several, else any text."""
    usual = one_of(*metavar.split("|")) if "|" in metavar else str
    return SessionOption(metavar=metavar, help=text, default=default, **{"convert": usual, **more})


class OptionGroup:
    """Where an add-on declares its options, each also a setting of ini files."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        """Declare none yet; some names are taken."""
        self._taken = taken
        self.declared: dict[str, SessionOption] = {}

    def add(self, name: str, metavar: str, text: str, default: object = None, **more: Any) -> None:
        """Declare the option `--mlperf-NAME`, and the ini setting `mlperf_NAME`.

        Args:
            name: A Python identifier; `max_cost` becomes `--mlperf-max-cost`.
            metavar: What stands for its value in `--help`; "a|b": it takes these words.
            text: Its help; a percent sign is written twice.
            default: Its value where it is not set; it is not converted, unless it is a string.
            **more: `convert` turns a text into a value, and raises ValueError for one that is not
                valid; a Path is taken from the folder of the command, or of the ini file. `bare` is
                its value on the command line without one; `ini_only=True` leaves it out there;
                `beside=True`: nothing of what is measured and judged depends on it;
                `elsewhere=True`: other than its default, it lets cases run on other machines;
                `group` is where `pytest --help` lists it: "everyday", "ci" or "mlperf".

        Raises:
            ValueError: The name is taken, or is no identifier.
        """
        if not name.isidentifier():
            raise ValueError(f"option {name!r}: max_cost is a name; it becomes --mlperf-max-cost")
        if name in self.declared or name in self._taken:
            raise ValueError(f"there is an option {name!r} already")
        try:
            _ = text % {}
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"help of option {name!r}: write %% for a percent sign") from None
        self.declared[name] = option_of(metavar, text, default, more)
