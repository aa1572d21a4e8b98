"""A case with all parts that its runs need, on a machine without obstacles."""

from __future__ import annotations

from pytest_mlperf.core.job import Job, raise_problems
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.resolve import Problems, resolve


def job_of(planned: Planned, *, scorer: bool = False) -> Job:
    """Return a case, resolved; what keeps it from running is raised."""
    job = resolve(planned, scorer=scorer)
    if isinstance(job, Problems):
        raise_problems(job.problems)
    assert isinstance(job, Job), job
    return job
