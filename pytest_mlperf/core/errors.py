"""Define errors that a user can act on: each message says what is wrong, where, and the fix.

MlperfError
├── SuiteError          a suite file, a marker or an option is wrong (exit code 2)
├── BaselineError       a baseline file cannot be read or written
├── EnvironmentFault    this machine lacks a requirement (exit code 3)
├── UnavailableError    a model or data set is missing: a skip, or a failure (--mlperf-fail-on)
└── RunError            an engine, LoadGen or a worker process broke: outcome ERROR
    └── LoggedError     its log has the details
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


class MlperfError(Exception):
    """Base class of every error this package raises for its user.

    Attributes:
        options: Names of the wrong options, most likely first; the message cites the line of the
            first one in the suite.
    """

    def __init__(self, message: str = "", *, option: str | Sequence[str] = ()) -> None:
        super().__init__(message)
        self.options = (option,) if isinstance(option, str) else tuple(option)


class SuiteError(MlperfError):
    """Report that a suite file, a marker or an option is wrong."""


Rule = tuple[str, object, bool, str]
"""An option's name, its value, whether it is valid, and the expected form."""


def require_options(subject: str, rules: Iterable[Rule]) -> None:
    """Raise SuiteError for the first invalid option of an engine or builder."""
    for name, value, valid, expected in rules:
        if not valid:
            who = f"{subject}: " if subject else ""
            raise SuiteError(f"{who}{name} = {value!r} is not {expected}", option=name)


class BaselineError(MlperfError):
    """Report that a baseline file cannot be read, written, or compared with results."""


class EnvironmentFault(MlperfError):
    """Report that the machine lacks a requirement."""


TO_MEASURE = "pip install 'pytest-mlperf[loadgen]'"
"""Command that installs LoadGen, see docs/install.md."""


REINSTALL = "pip install --force-reinstall mlcommons-loadgen"
"""What repairs a LoadGen that is installed and does not work."""


class UnavailableError(MlperfError):
    """Report a missing model or data set (`path`, None if unknown), and the setting to change."""

    def __init__(
        self, message: str = "", *, path: Path | str | None = None, option: str | Sequence[str] = ()
    ) -> None:
        super().__init__(message, option=option)
        self.path = None if path is None else Path(path)


class RunError(MlperfError):
    """Report that a run failed before it could be judged.

    Attributes:
        layer: The part that failed: "engine", "dataset", "loadgen", "worker", "scorer", "sampler",
            "lease", "build", "against" for another build, "gpu" if one was lost,
            "infrastructure" if a cluster node was lost, or "pytest-mlperf" for an unexpected error.
        log: Path of the log to read, or None.
    """

    def __init__(self, layer: str, message: str, log: str | None = None) -> None:
        super().__init__(message)
        self.layer = layer
        self.log = log


class LoggedError(RunError):
    """Report a failed run, with the end of the run's log below the message."""


def text_of(error: BaseException) -> str:
    """Return the text of any exception in one line, even if its `__str__` raises."""
    try:
        return " ".join(str(error).split())
    except BaseException as broken:  # `__str__` of foreign code may raise anything
        return f"(no text: its __str__ raised {type(broken).__name__})"
