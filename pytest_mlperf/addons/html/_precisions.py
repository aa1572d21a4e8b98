"""What each precision costs and gives: a table, and score over speed beside the reference's."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mlperf.addons.html.model import Figure, Grouped, rounded
from pytest_mlperf.reports.terminal.precisions import precision_points

MAX_LISTED_ENTRIES = 20


def precisions(cases: Sequence[Grouped]) -> Figure:
    """Return score over speed of each precision, both in shares of the reference entry's."""
    places = {one.case: place for place, one in enumerate(cases)}
    points, absent = precision_points(result for one in cases for result in one.results)
    rows = [
        {"case": places[case], "row": "", **point, "speed": rounded(point["speed"])}
        for case, point in points
    ]
    more = f" Not drawn: {'; '.join(absent[:MAX_LISTED_ENTRIES])}." if absent else ""
    return Figure(
        name="precisions",
        title="What each precision costs and gives",
        says=(
            "To the right is faster, upwards is better, both against the reference entry of the "
            "same session (fp32, else the widest precision). Bars are intervals of the paired "
            "rule, marks the gate; crosses failed their accuracy test. Ratios of speed are shown, "
            f"not judged: [[pairs]] in a suite tests a claim about one.{more}"
        ),
        rows=rows,
        without="It needs score and speed of one workload in two precisions or engines.",
    )
