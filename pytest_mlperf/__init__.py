"""MLCommons LoadGen runs as pytest tests, judged against baselines kept in git.

The names in `__all__` are what code of others may import; checks for its tests are in
`pytest_mlperf.testing`. Everything deeper may move between versions. Each name is imported when it
is first asked for: the plugin, which pytest loads in every project, pays for none of them, and an
engine that runs in another Python needs the standard library alone for those that it uses.
"""

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
    from pytest_mlperf.core.extension import (
        Builder,
        Dataset,
        Engine,
        Leverage,
        Scorer,
        Scores,
        Sink,
    )
    from pytest_mlperf.core.verdict import Outcome, Verdict
    from pytest_mlperf.engines.llm.queueing import WorkQueue
    from pytest_mlperf.plugin.fixture import Mlperf as MlperfFixture

_ORIGINS = {
    "Builder": "core.extension:Builder",
    "Dataset": "core.extension:Dataset",
    "Engine": "core.extension:Engine",
    "EnvironmentFault": "core.errors:EnvironmentFault",
    "Leverage": "core.extension:Leverage",
    "MlperfError": "core.errors:MlperfError",
    "MlperfFixture": "plugin.fixture:Mlperf",
    "Outcome": "core.verdict:Outcome",
    "RunError": "core.errors:RunError",
    "Scorer": "core.extension:Scorer",
    "Scores": "core.extension:Scores",
    "Sink": "core.extension:Sink",
    "SuiteError": "core.errors:SuiteError",
    "UnavailableError": "core.errors:UnavailableError",
    "Verdict": "core.verdict:Verdict",
    "WorkQueue": "engines.llm.queueing:WorkQueue",
}
"""Where each lazy name is defined, below this package."""

if not TYPE_CHECKING:  # or every name would be one to a type checker

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for (PEP 562)."""
        if name not in _ORIGINS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _ORIGINS[name].partition(":")
        value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), attribute)
        return value


def __dir__() -> list[str]:
    """Return the public names, those too that nobody asked for yet."""
    return sorted({*globals(), *__all__})
