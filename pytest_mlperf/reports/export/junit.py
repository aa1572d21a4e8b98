"""Results as JUnit XML, with the ids and properties that pytest's own file has."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable

from pytest_mlperf.core.results import Absent, CaseResult, Results
from pytest_mlperf.core.untrusted_text import visible
from pytest_mlperf.core.verdict import final_word
from pytest_mlperf.reports.terminal.advice import machine_wide


def properties(result: CaseResult) -> list[tuple[str, str]]:
    """Return the JUnit properties of a test: verdict, values, and what they were set against."""
    verdict = result.verdict
    pairs = [
        ("mlperf.case", verdict.case.id),
        ("mlperf.verdict", str(verdict.outcome)),
        ("mlperf.headline", verdict.headline),
        ("mlperf.profile", result.profile),
        ("mlperf.division", result.division),
        *(("mlperf.technique", name) for name in result.techniques),
        ("mlperf.runs", str(len(verdict.runs))),
    ]
    for run in verdict.invalid_runs:
        pairs += [("mlperf.invalid_run", f"{reason.key}: {reason}") for reason in run.invalid]
    if missing := final_word(verdict):
        pairs.append(("mlperf.settle", missing))
    if verdict.runs and verdict.runs[-1].light and verdict.runs[-1].light[0].share is not None:
        pairs.append(("mlperf.speed_of_light", f"{verdict.runs[-1].light[0].share:.4f}"))
    pairs += [(f"mlperf.fact.{title}", fact) for title, fact in result.facts.items()]
    if verdict.runs and (search := verdict.runs[-1].search):
        pairs += [
            ("mlperf.search", search.in_words),
            ("mlperf.search.low", f"{search.low:.9g}"),
            ("mlperf.search.high", f"{search.high:.9g}"),
        ]
    if verdict.kind == "accuracy" and verdict.gate:
        pairs += [
            ("mlperf.gate", str(verdict.gate.state)),
            ("mlperf.gate.samples", str(verdict.gate.samples)),
            ("mlperf.gate.total", str(verdict.gate.total)),
        ]
    if verdict.turns:
        pairs += [
            ("mlperf.in_turns", str(verdict.turns.state)),
            ("mlperf.in_turns.runs", str(verdict.turns.runs)),
        ]
    if verdict.cost:
        pairs.append((f"mlperf.{verdict.cost.of}_per_usd", f"{verdict.cost.value:.6g}"))
    for metric in verdict.metrics:
        values = (
            (f"mlperf.{metric.metric}", metric.now, ".9g"),
            (f"mlperf.{metric.metric}.baseline", metric.baseline, ".9g"),
            (f"mlperf.{metric.metric}.change", metric.change, ".6f"),
            (f"mlperf.{metric.metric}.leans", metric.leans, ""),
        )
        pairs += [(n, format(value, form)) for n, value, form in values if value is not None]
    return [(visible(name), visible(value)) for name, value in pairs]


Message = Callable[[CaseResult], str]


def junit(results: Results, absent: Iterable[Absent], message: Message) -> str:
    """Return a JUnit document; planned tests without a verdict are errors."""
    suite = ET.Element("testsuite", name="pytest-mlperf", timestamp=_clean(results.started))
    missing = list(absent)
    without = {one.test for one in missing}
    failed = [result for result in results.cases if result.failed]
    skipped = {test: reason for test, reason in results.skipped.items() if test not in without}
    if wide := machine_wide(results):
        _properties(suite, [("mlperf.machine_wide", one) for one in wide])
    for result in results.cases:
        _case(suite, result, message)
    for test, reason in skipped.items():
        ET.SubElement(_test(suite, test), "skipped", message=_clean(reason))
    for one in missing:
        ET.SubElement(_test(suite, one.test), "error", message=_clean(f"no result: {one.reason}"))
    counts = {
        "tests": len(results.cases) + len(skipped) + len(missing),
        "failures": len(failed),
        "errors": len(missing),
        "skipped": len(skipped),
    }
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    suite.set("time", f"{results.seconds:.1f}")
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, result: CaseResult, message: Message) -> None:
    test = _test(suite, result.test, seconds=sum(run.duration_s for run in result.verdict.runs))
    _properties(test, properties(result))
    if result.failed:
        first = f"{result.verdict.outcome} {result.verdict.headline}"
        ET.SubElement(test, "failure", message=_clean(first)).text = _clean(message(result))


def _properties(of: ET.Element, pairs: Iterable[tuple[str, str]]) -> None:
    element = ET.SubElement(of, "properties")
    for name, value in pairs:
        ET.SubElement(element, "property", name=name, value=_clean(value))


def _test(suite: ET.Element, nodeid: str, seconds: float = 0.0) -> ET.Element:
    file, _, name = nodeid.partition("::")
    of = file.removesuffix(".py").replace("/", ".")
    return ET.SubElement(
        suite, "testcase", classname=_clean(of), name=_clean(name), time=f"{seconds:.3f}"
    )


def _clean(text: str) -> str:
    return visible(text, keep="\n\t")
