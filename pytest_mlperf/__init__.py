"""Run MLCommons LoadGen as pytest tests, judged against baselines kept in git.

The names in `__all__` are the public interface, with `pytest_mlperf.testing`. Each is imported on
first use: pytest starts quickly, and an engine in another Python needs only the standard library.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Builder",
    "Dataset",
    "Engine",
    "EnvironmentFault",
    "Leverage",
    "MlperfError",
    "MlperfFixture",
    "Outcome",
    "RunError",
    "Scorer",
    "Scores",
    "Sink",
    "SuiteError",
    "UnavailableError",
    "Verdict",
    "WorkQueue",
    "__version__",
]

if TYPE_CHECKING:
    from pytest_mlperf.core.errors import (
        EnvironmentFault,
        MlperfError,
        RunError,
        SuiteError,
        UnavailableError,
    )
    from pytest_mlperf.core.extension import Builder, Dataset, Engine, Scorer, Scores, Sink
    from pytest_mlperf.core.verdict import Outcome, Verdict
    from pytest_mlperf.judge.inputs import Leverage
    from pytest_mlperf.plugin.fixture import Mlperf as MlperfFixture
    from pytest_mlperf.run.work_queue import WorkQueue

_ORIGINS = {
    "core.errors": (
        "EnvironmentFault",
        "MlperfError",
        "RunError",
        "SuiteError",
        "UnavailableError",
    ),
    "core.extension": ("Builder", "Dataset", "Engine", "Scorer", "Scores", "Sink"),
    "core.verdict": ("Outcome", "Verdict"),
    "judge.inputs": ("Leverage",),
    "plugin.fixture": ("Mlperf as MlperfFixture",),
    "run.work_queue": ("WorkQueue",),
}


def importer(
    package: str, origins: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], object]]:
    """Return a package's `__all__` and lazy `__getattr__`; `origins` maps modules to its names."""
    places = {
        alias.rpartition(" ")[2]: (module, alias.partition(" ")[0])
        for module, aliases in origins.items()
        for alias in aliases
    }

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = places[name]
        value = getattr(import_module(f"{__name__}.{module}"), attribute)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(places), get


if not TYPE_CHECKING:  # else a type checker would accept any name
    __getattr__ = importer(__name__, _ORIGINS)[1]


def __dir__() -> list[str]:
    """Return the public names, including those that are not imported yet."""
    return sorted({*globals(), *__all__})
