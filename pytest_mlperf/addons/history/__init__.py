"""What changed over time: the history of a case, and the commit that made it slower."""

from pytest_mlperf.core.addons import Command

BISECT = Command("the commit or version that made a test slower", f"{__name__}.commands.bisect")
HISTORY = Command(
    "a case over its accepted baselines in git, and over sessions", f"{__name__}.commands.history"
)
