"""The page's first words: the verdict of all, the counts, and what to know before trusting it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_mlperf.core.merging import Absent
from pytest_mlperf.core.results import Results
from pytest_mlperf.core.verdict import SEVERITY, Outcome
from pytest_mlperf.reports.html.model import Tone, tone
from pytest_mlperf.reports.layout import duration, plural

_UNDECIDED = (Outcome.INCONCLUSIVE, Outcome.SUSPECT, Outcome.NO_BASELINE)


def verdict(results: Results, absent: Sequence[Absent] = ()) -> tuple[Tone, str]:
    """Return the verdict on the session, and its tone."""
    failed = Counter(r.verdict.outcome for r in results.cases if r.failed)
    parts = [f"{failed[word]} {word}" for word in SEVERITY if failed[word]]
    if absent:
        parts.append(f"{plural(len(absent), 'planned test')} without a result")
    if parts:
        return "fail", f"Failed: {', '.join(parts)}"
    if not results.cases:
        return "open", "Nothing was judged"
    open_ = sum(r.verdict.outcome in _UNDECIDED for r in results.cases)
    said = f"No drop proven in {plural(len(results.cases), 'test')}"
    if open_:
        return "open", f"{said}, {open_} undecided or without a baseline"
    return "good", said


def counts(results: Results) -> list[tuple[Tone, str, int]]:
    """Return each outcome with its tone and how many tests have it, the worst first."""
    found = Counter(r.verdict.outcome for r in results.cases)
    return [(tone(word), str(word), found[word]) for word in SEVERITY if found[word]]


def about(results: Results) -> list[tuple[str, str]]:
    """Return when and with what the session was made."""
    profiles = " and ".join(sorted({result.profile for result in results.cases}))
    rounds = " and ".join(sorted({result.round for result in results.cases}))
    runs = {run.folder for result in results.cases for run in result.verdict.runs}
    found = [
        ("started", f"{results.started[:16].replace('T', ' ')} UTC"),
        ("took", f"{duration(results.seconds)}, {plural(len(runs), 'run')}"),
        ("commit", results.commit or "outside git"),
        ("profile", profiles),
        ("MLPerf round", rounds),
        ("session", results.run),
        *results.versions.items(),
    ]
    return [(name, said) for name, said in found if said]


def doubts(results: Results) -> Iterator[tuple[Tone, str]]:
    """Yield what a reader must know before trusting the verdicts."""
    cases = results.cases
    for share in sorted({result.handicap for result in cases if result.handicap}):
        said = f"Slowed on purpose (--mlperf-handicap {100 * share:g} %): not to be recorded."
        yield "fail", said
    if any(result.pretended for result in cases):
        yield "fail", "The accelerator was only pretended: the figures are not its own."
    invalid = sum(result.verdict.outcome is Outcome.INVALID for result in cases)
    if invalid:
        yield "fail", f"{plural(invalid, 'test')} may not be judged (INVALID): see why there."
    if any(result.profile == "quick" for result in cases):
        said = "shorter runs than MLPerf asks for, compared with quick baselines only."
        yield "open", f"Profile quick: {said}"
    yield from _gates(results)
    yield from _proof(results)
    yield from _machine(results)
    if results.pairs:
        yield "good", f"{results.pairs} pairs of case and metric were judged together."
    yield from _not_run(results)


def _gates(results: Results) -> Iterator[tuple[Tone, str]]:
    """Yield how many accuracy tests were held against their gate, where some were not."""
    gates = [r.verdict.gate for r in results.cases if r.verdict.kind == "accuracy"]
    found = [gate for gate in gates if gate is not None]
    undecided = sum(not gate.evaluated for gate in found)
    if undecided:
        said = f"{undecided} of {plural(len(found), 'accuracy gate')} not decided"
        yield "open", f"{said}: each test says on how many samples, or that it has none."


def _proof(results: Results) -> Iterator[tuple[Tone, str]]:
    """Yield whether baselines are long enough to prove their limits."""
    gated = [m for r in results.cases for m in r.verdict.metrics if m.limit and m.detectable]
    weak = sum(m.detectable > m.limit for m in gated if m.detectable and m.limit)
    if weak:
        said = f"{weak} of {plural(len(gated), 'limit')} cannot be proven by their baselines"
        yield "open", f"{said}: record more runs, or widen them."
    elif gated:
        yield "good", f"Every baseline can prove its limit ({len(gated)})."


def _not_run(results: Results) -> Iterator[tuple[Tone, str]]:
    missing = sum(results.deselected.values())
    if missing:
        named = ", ".join(f"{count} for {name}" for name, count in results.deselected.items())
        said = f"{plural(missing, 'test')} did not run, as their accelerator was not here"
        yield "open", f"{said}: {named}."
    if results.skipped:
        yield "open", f"{plural(len(results.skipped), 'test')} skipped: listed below."


def _machine(results: Results) -> Iterator[tuple[Tone, str]]:
    steady = Counter(r.verdict.steady for r in results.cases if r.verdict.steady is not None)
    if steady[True]:
        yield (
            "good",
            f"The machine itself was as fast as with the baseline, by a fixed micro-benchmark, for "
            f"{plural(steady[True], 'drop')}.",
        )
    if steady[False]:
        yield "fail", f"The machine itself was off for {plural(steady[False], 'drop')}."
