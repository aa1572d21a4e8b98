"""Export results as github-action-benchmark's customSmallerIsBetter."""

from functools import partial

from pytest_mlperf.addons.exports import bigger
from pytest_mlperf.judge.inputs import Direction

report = partial(bigger.report, better=Direction.LOWER)
