"""MLCommons' papers: submissions, imports, exports, official results and physical limits."""

from pytest_mlperf.core.addons import Command

EXPORT = Command(
    "a curve as a submission that MLPerf Endpoints' checker takes", f"{__name__}.commands.export"
)
IMPORT = Command(
    "results of MLPerf submissions, LoadGen and endpoints", f"{__name__}.commands.imports"
)
LIMITS = Command(
    "what is physically possible, and official results against it", f"{__name__}.commands.limits"
)
PUBLISHED = Command(
    "official results of MLPerf Inference, to list and to filter", f"{__name__}.commands.published"
)
SUBMISSION = Command(
    "results as a tree that MLPerf's submission checker takes", f"{__name__}.commands.submission"
)
