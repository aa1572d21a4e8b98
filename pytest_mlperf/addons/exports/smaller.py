"""Export results as github-action-benchmark's customSmallerIsBetter."""

from functools import partial

from pytest_mlperf.addons.exports import bigger

report = partial(bigger.report, smaller=True)
