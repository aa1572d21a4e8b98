"""What a calibration prints: what each case varies by, what was learnt, and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_mlperf.core.calibration import Calibrated, CalibratedCase, Settings
from pytest_mlperf.core.judge.rule_r import Value, minimum_detectable_change
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.noise import Learnt, Noise, Series, spread
from pytest_mlperf.core.numbers import change, limit, percent
from pytest_mlperf.core.run_plan import USUAL_RUNS, best_length, drift
from pytest_mlperf.reports.layout import duration, fold, plural, table

COLUMNS = ("metric", "runs", "inside", "run to run", "session", "usual", "proves", "limit")

NEAR = 2.0
"""A length within this factor of the best costs at most an eighth more time."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything that is said of one accelerator.

    Attributes:
        accelerator: Class and count.
        found: Its runs.
        learnt: The noise they show.
        settings: What of it is stored.
        default: What is expected without a calibration.
        baselines: Runs of the baselines on file, by case id and metric; where there is none, the
            runs here stand for it.
        width: Columns of the terminal.
    """

    accelerator: str
    found: Calibrated
    learnt: Learnt
    settings: Settings
    default: Noise
    baselines: Mapping[tuple[str, str], Sequence[Value]]
    width: int

    def lines(self) -> Iterator[str]:
        """Yield the lines."""
        identity = self.found.identity.items()
        named = ", ".join(f"{key} {value}" for key, value in identity if value)
        yield ""
        yield from fold(f"noise of {self.accelerator} ({named})", self.width, rest="  ")
        rows = [self._row(case, series) for case in self.found.cases for series in case.series]
        shown = iter(table(COLUMNS, rows, self.width - 2, left=["metric"], spare=["runs"]))
        yield f"  {next(shown)}"
        for case in self.found.cases:
            yield case.case + (f" ({case.profile})" if case.profile != "quick" else "")
            yield from (f"  {next(shown)}" for _ in case.series)
            yield from fold(self._length(case), self.width, first="  ", rest="  ")
        yield ""
        yield from self._settings()
        for note in self._notes():
            yield from fold(f"note: {note}", self.width, rest="  ")

    def _row(self, case: CalibratedCase, series: Series) -> dict[str, str]:
        """Return the texts of one metric of one case."""
        varies = spread(series.runs)
        return {
            "metric": METRICS[series.metric].title,
            "runs": str(len(series.runs)),
            "inside": _sd(varies.within) if varies and varies.within else "-",
            "run to run": _sd(varies.run) if varies else "-",
            "session": _sd(varies.session) if varies and varies.session is not None else "-",
            "usual": percent(self._proves(case, series, self.default)),
            "proves": percent(self._proves(case, series, self.learnt.noise)),
            "limit": limit(series.metric, case.limits[series.metric]),
        }

    def _proves(self, case: CalibratedCase, series: Series, noise: Noise) -> float:
        """Return the smallest change that can be proven, as a share."""
        baseline = self.baselines.get((case.case, series.metric), series.runs)
        return minimum_detectable_change(baseline, rule=noise.rule(USUAL_RUNS))

    def _length(self, case: CalibratedCase) -> str:
        """Return how long a run of a case is, and how long it should be."""
        length = median(run.duration_s for run in case.runs)
        start = median(run.start_s for run in case.runs)
        now = f"a run is {length:.1f} s and {start:.1f} s of starting up"
        noise = self.learnt.noise
        found = [
            best_length(series.runs, noise, length_s=length, start_s=start)
            for series in case.series
        ]
        known = [each for each in found if each is not None]
        if not known:
            return f"{now}; what varies inside it is unknown, so no length is advised"
        best = max(known)
        right = ", as good as now" if best / NEAR <= length <= best * NEAR else ""
        return f"{now}; best length: {duration(best)}{right}"

    def _settings(self) -> Iterator[str]:
        usual, here = self.default, self.learnt.noise
        low, high = percent(self.learnt.low), percent(self.learnt.high)
        head = f"learnt for {self.accelerator}"
        rows = (
            ("noise of a run, s0", percent(usual.prior_sd), percent(here.prior_sd)),
            ("its weight in runs, nu0", f"{usual.prior_df:.2g}", f"{here.prior_df:.2g}"),
            (
                "share of the session, phi",
                f"{usual.session_share:.2g}",
                f"{here.session_share:.2g}",
            ),
            ("runs at most, K", str(USUAL_RUNS), str(self.settings.max_runs)),
        )
        cells = [{head: what, "usual": before, "here": now} for what, before, now in rows]
        yield from table([head, "usual", "here"], cells, self.width, left=[head])
        learnt = self.learnt
        df, sd, share = (f"{100 * weight:.0f} %" for weight in learnt.weights)
        text = (
            f"learnt from {plural(learnt.cases, 'case')}, {plural(learnt.runs, 'run')} in "
            f"{plural(learnt.sessions, 'session')}; they weigh {sd} in s0, {df} in nu0 and "
            f"{share} in phi, the usual figures the rest; s0 lies between {low} and {high} (90 %)"
        )
        yield from fold(text, self.width)

    def _notes(self) -> Iterator[str]:
        """Yield what keeps the figures from being what they seem, and what to do."""
        if self.learnt.sessions == 1:
            yield "one session cannot show what sessions differ by: calibrate again on another day"
        runs = [run for case in self.found.cases for run in case.runs]
        newest = max(runs, key=lambda run: run.started).session
        drifted = drift(self.found.series, newest)
        if drifted and drifted.proven:
            way = "slower" if drifted.change < 0 else "faster"
            yield (
                f"all cases together became {way} during session {newest} "
                f"({change(drifted.change)} from the first round to the last): the machine was "
                "not warm, not steady or not alone"
            )
        limits = [
            (case.limits[series.metric], self._proves(case, series, self.learnt.noise))
            for case in self.found.cases
            for series in case.series
        ]
        unable = sum(proves > bound for bound, proves in limits)
        if unable:
            yield (
                f"{unable} of {plural(len(limits), 'limit')} cannot be proven with so much noise: "
                "quieten the machine, record more baseline runs on other days "
                "(--mlperf-update=append), or widen the limit"
            )
        if self.settings.max_runs != USUAL_RUNS:
            most = self.settings.max_runs
            yield f"K is an option of pytest, which this does not set: --mlperf-max-runs {most}"


def _sd(variance: float) -> str:
    return f"{math.sqrt(variance) * 100:.2g} %"
