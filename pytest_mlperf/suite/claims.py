"""Resolve and check the claims about two engine entries in `[[pairs]]`."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mlperf.core.untrusted_text import nearest
from pytest_mlperf.suite.limits import gateable
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.tables import EngineEntry, PairEntry, ScenarioEntry
from pytest_mlperf.suite.values import Defect

Side = tuple[EngineEntry, str | None]
"""An engine entry and its accelerator; None means each one that both sides have."""


def scenario_of(suite: Suite, entry: PairEntry) -> str:
    """Return the scenario of a claim: the entry's `scenario`, else the suite's first one."""
    return entry.scenario or suite.scenarios[0].name


def metric_of(suite: Suite, entry: PairEntry) -> str:
    """Return the metric of a claim: the entry's `metric`, else the first that the suite gates."""
    return entry.metric or next(iter(suite.gated(_entry(suite, scenario_of(suite, entry)))))


def _entry(suite: Suite, scenario: str) -> ScenarioEntry:
    return next(each for each in suite.scenarios if each.name == scenario)


def side_of(suite: Suite, text: str) -> Side:
    """Return the engine entry and accelerator (None: any) that `text` names; else LookupError."""
    entries = suite.entries
    whole: list[Side] = [(e, None) for e in entries if text in (e.label, e.full_label)]
    exact: list[Side] = [
        (e, name)
        for e in entries
        for name in e.accelerators
        if text in (f"{e.label}-{name}", f"{e.full_label}-{name}")
    ]
    matching = [*whole, *exact]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = (f"{e.full_label}-{name}" if name else e.full_label for e, name in matching)
        raise LookupError(f"several engine entries named {text!r}: write one of {', '.join(names)}")
    labels = dict.fromkeys(label for e in entries for label in (e.label, e.full_label))
    raise LookupError(f"no engine entry named {text!r}{nearest(text, labels)}")


def accelerators_of(a: Side, b: Side) -> list[tuple[str, str]]:
    """Return accelerators (of `a`, of `b`) to compare: those stated, else each that both have."""
    (entry_a, accelerator_a), (entry_b, accelerator_b) = a, b
    if accelerator_a and accelerator_b:
        return [(accelerator_a, accelerator_b)]
    accelerator = accelerator_a or accelerator_b
    shared = [name for name in entry_a.accelerators if name in entry_b.accelerators]
    return [(name, name) for name in shared if accelerator in (None, name)]


def claim_defects(suite: Suite) -> Iterator[Defect]:
    """Yield the defects of the table `[[pairs]]`, if the suite's other tables are valid."""
    index_by_pair: dict[object, int] = {}
    for index, entry in enumerate(suite.pairs):
        where = ("pairs", index)
        if defects := [((*where, *path), what) for path, what in _defects(suite, entry)]:
            yield from defects
            continue
        (a, first), (b, second) = side_of(suite, entry.a), side_of(suite, entry.b)
        title = entry.name or (a.full_label, first, b.full_label, second)
        if index_by_pair.setdefault((title, scenario_of(suite, entry)), index) != index:
            yield (
                where,
                f"duplicate pair: pairs[{index_by_pair[title, scenario_of(suite, entry)]}] is the "
                'same; give one a name of its own (name = "...")',
            )


def _defects(suite: Suite, entry: PairEntry) -> Iterator[Defect]:
    scenario = scenario_of(suite, entry)
    scenarios = [each.name for each in suite.scenarios]
    if scenario not in scenarios:
        message = f"this suite has no scenario {scenario!r}{nearest(scenario, scenarios)}"
        yield ("scenario",), message
        return
    measured = sorted(gateable(_entry(suite, scenario)))
    if entry.metric is not None and entry.metric not in measured:
        yield (
            ("metric",),
            f"{entry.metric!r} cannot be compared in {scenario}{nearest(entry.metric, measured)}",
        )
    sides: list[Side] = []
    for key, text in (("a", entry.a), ("b", entry.b)):
        try:
            sides.append(side_of(suite, text))
        except LookupError as error:
            yield (key,), str(error.args[0])
    if len(sides) == 2:
        yield from _side_defects(suite, scenario, *sides)


def _side_defects(suite: Suite, scenario: str, a: Side, b: Side) -> Iterator[Defect]:
    both = accelerators_of(a, b)
    if not both:
        (entry_a, _), (entry_b, _) = a, b
        yield (
            (),
            f"a runs on {', '.join(entry_a.accelerators)}, b on {', '.join(entry_b.accelerators)}: "
            f'name the accelerators, e.g. a = "{entry_a.full_label}-{entry_a.accelerators[0]}" and '
            f'b = "{entry_b.full_label}-{entry_b.accelerators[0]}"',
        )
    if a[0] is b[0] and any(first == second for first, second in both):
        yield (), "a and b are the same engine entry; name two different ones"
    loaded = _entry(suite, scenario)
    unlike = [
        name
        for first, name in both
        if loaded.rate_on(first) is None or loaded.rate_on(first) != loaded.rate_on(name)
    ]
    if loaded.name.rate_is_condition and not loaded.find and unlike:
        yield (
            (),
            f"{scenario} needs the same target_qps for a and b: latencies at different rates "
            "cannot be compared",
        )
