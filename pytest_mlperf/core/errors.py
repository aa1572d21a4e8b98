"""Errors a user can act on: each message says what, where and what to do.

MlperfError
├── SuiteError          a suite file, a marker or an option is wrong (exit code 2)
├── BaselineError       a baseline file cannot be read or written
├── EnvironmentFault    this machine lacks what was asked for (exit code 3)
├── UnavailableError    a model or data set is not here: a skip, or a failure (--mlperf-fail-on)
└── RunError            an engine, LoadGen or a worker process broke: outcome ERROR
    └── LoggedError     its log tells more
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


class MlperfError(Exception):
    """Base class of every error this package raises for its user.

    Attributes:
        options: Names of the options at fault, the likeliest first: the message gets the line of
            the first one that the suite writes.
    """

    def __init__(self, message: str = "", *, option: str | Sequence[str] = ()) -> None:
        """Keep beside the message the option at fault, or several of which one is."""
        super().__init__(message)
        self.options = (option,) if isinstance(option, str) else tuple(option)


class SuiteError(MlperfError):
    """A suite file, a marker or an option is wrong."""


Rule = tuple[str, object, bool, str]
"""Of an option: its name, its value, whether that is valid, and what is expected."""


def require_options(subject: str, rules: Iterable[Rule]) -> None:
    """Refuse the first option that is not valid, in the name of an engine or builder."""
    for name, value, valid, expected in rules:
        if not valid:
            who = f"{subject}: " if subject else ""
            raise SuiteError(f"{who}{name} = {value!r} is not {expected}", option=name)


class BaselineError(MlperfError):
    """A baseline file cannot be read, written or compared."""


class EnvironmentFault(MlperfError):
    """This machine lacks what was asked for."""


TO_MEASURE = "pip install 'pytest-mlperf[loadgen]'"
"""What brings all that measures, where the package alone does not: see docs/install.md."""


REINSTALL = "pip install --force-reinstall mlcommons-loadgen"
"""What repairs a LoadGen that is installed and does not work."""


class UnavailableError(MlperfError):
    """A model or data set is not here; the message says what to set, `path` what is lacking."""

    def __init__(
        self, message: str = "", *, path: Path | str | None = None, option: str | Sequence[str] = ()
    ) -> None:
        """Keep beside the message what is not here."""
        super().__init__(message, option=option)
        self.path = None if path is None else Path(path)


class RunError(MlperfError):
    """A run broke before it could be judged.

    Attributes:
        layer: Which part broke: "engine", "dataset", "loadgen", "worker", "scorer", "sampler",
            "lease", "build", "gpu" where one was lost meanwhile, "infrastructure" where a node of
            a cluster was, or "pytest-mlperf" for what nobody foresaw.
        log: Path of the log to read, or None.
    """

    def __init__(self, layer: str, message: str, log: str | None = None) -> None:
        """Keep the layer and the log beside the message."""
        super().__init__(message)
        self.layer = layer
        self.log = log


class LoggedError(RunError):
    """One whose log, a file of its run's folder, tells more: its end is shown below the message."""


def text_of(error: BaseException) -> str:
    """Return the text of any exception in one line, whatever its `__str__` does."""
    try:
        return " ".join(str(error).split())
    except BaseException as broken:  # foreign code runs here
        return f"(no text: its __str__ raised {type(broken).__name__})"
