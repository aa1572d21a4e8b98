"""Errors a user can act on: each message says what, where and what to do.

MlperfError
├── SuiteError          a suite file, a marker or an option is wrong (exit code 2)
├── BaselineError       a baseline file cannot be read or written
├── EnvironmentFault    this machine lacks what was asked for (exit code 3)
├── UnavailableError    a model or data set is not here: a skip, or a failure under --mlperf-strict
└── RunError            an engine, LoadGen or a worker process broke: outcome ERROR
"""

from __future__ import annotations


class MlperfError(Exception):
    """Base class of every error this package raises for its user."""


class SuiteError(MlperfError):
    """A suite file, a marker or an option is wrong."""


class BaselineError(MlperfError):
    """A baseline file cannot be read, written or compared."""


class EnvironmentFault(MlperfError):
    """This machine lacks what was asked for."""


class UnavailableError(MlperfError):
    """A model or data set is not here; the message says what to set."""


class RunError(MlperfError):
    """A run broke before it could be judged.

    Attributes:
        layer: Which part broke: "engine", "dataset", "loadgen", "worker", "scorer", "sampler",
            "lease", "build", or "pytest-mlperf" for what nobody foresaw.
        log: Path of the log to read, or None.
    """

    def __init__(self, layer: str, message: str, log: str | None = None) -> None:
        """Keep the layer and the log beside the message."""
        super().__init__(message)
        self.layer = layer
        self.log = log


def text_of(error: BaseException) -> str:
    """Return the text of any exception in one line, whatever its `__str__` does."""
    try:
        return " ".join(str(error).split())
    except BaseException as broken:  # foreign code runs here
        return f"(no text: its __str__ raised {type(broken).__name__})"
