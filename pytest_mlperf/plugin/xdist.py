"""Keep the tests of one case on one xdist worker, so that no case is measured twice."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

from pytest_mlperf.plugin.options import SUFFIX


class CaseScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Distribute tests by suite file and case; distribute tests outside suites one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file.endswith(SUFFIX) and test.endswith("]"):
            return f"{file}::[{test.partition('[')[2]}"
        return nodeid
