"""Specify the hooks that an add-on may implement, for pluggy: see docs/extending.md.

A hook declares only the arguments it needs; `options["runs_dir"]` is `--mlperf-runs-dir`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import pytest

    from pytest_mlperf.core.addons import Criterion, OptionGroup
    from pytest_mlperf.core.results import CaseResult, Results
    from pytest_mlperf.core.trend import TrendPoint
    from pytest_mlperf.core.verdict import Verdict
    from pytest_mlperf.suite.pairs import Testable

API = 1
"""Version of this interface. An add-on states the version that it was built for as its `API`."""

PROJECT = "mlperf"

hookspec = pluggy.HookspecMarker(PROJECT)


@hookspec
def mlperf_addoptions(group: OptionGroup) -> None:
    """Declare command-line options and ini settings of the add-on with `group.add`."""


@hookspec(firstresult=True)
def mlperf_collect_file(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return a collector for a file that is not a suite; return None to ignore the file."""


@hookspec(firstresult=True)
def mlperf_runtestloop(
    session: pytest.Session, plan: Any, options: Mapping[str, Any]
) -> bool | None:
    """Run the tests in place of pytest's loop; return True, or None to let pytest run them.

    Args:
        plan: The state of the session, a `pytest_mlperf.plugin.session.MlperfSession`.
    """


@hookspec
def mlperf_case_facts(
    result: CaseResult, planned: Testable, options: Mapping[str, Any]
) -> Mapping[str, str] | None:
    """Return more facts about a result, text by title, for files and reports; None for no facts."""


@hookspec
def mlperf_verdict(
    verdict: Verdict,
    baselines: Sequence[TrendPoint],
    planned: Testable,
    options: Mapping[str, Any],
) -> Criterion | None:
    """Return a criterion that fails a verdict or adds a note to it, or None.

    Args:
        baselines: Accepted baselines of the case on this machine, oldest first, read when used.
        planned, options: The judged test, and the session's options by name.
    """


@hookspec
def mlperf_session_finished(
    results: Results, folder: Path, options: Mapping[str, Any]
) -> Iterable[str] | None:
    """Process the results of a session after they were written; return lines for the summary.

    Args:
        folder: Folder with the session's results.json and logs.

    Raises:
        EnvironmentFault: A task that the user requested failed; a session that would exit with code
            0 exits with code 3.
    """
