"""Results as JUnit XML, with the ids and properties that pytest's own file has."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable

from pytest_mlperf.core.foreign_text import visible
from pytest_mlperf.core.merging import Absent
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.reports.properties import properties

Message = Callable[[CaseResult], str]


def junit(results: Results, absent: Iterable[Absent], message: Message) -> str:
    """Return a JUnit document.

    Args:
        results: What was found.
        absent: Planned tests without a verdict: errors.
        message: Gives the text of a failure.
    """
    suite = ET.Element("testsuite", name="pytest-mlperf", timestamp=_clean(results.started))
    missing = list(absent)
    without = {one.test for one in missing}
    failed = [result for result in results.cases if result.failed]
    skipped = {test: why for test, why in results.skipped.items() if test not in without}
    for result in results.cases:
        _case(suite, result, message)
    for test, why in skipped.items():
        ET.SubElement(_test(suite, test), "skipped", message=_clean(why))
    for one in missing:
        ET.SubElement(_test(suite, one.test), "error", message=_clean(f"no result: {one.why}"))
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
    seconds = sum(run.duration_s for run in result.verdict.runs)
    test = _test(suite, result.test, seconds=seconds)
    found = ET.SubElement(test, "properties")
    for name, value in properties(result):
        ET.SubElement(found, "property", name=name, value=_clean(value))
    if result.failed:
        first = f"{result.verdict.outcome} {result.verdict.headline}"
        ET.SubElement(test, "failure", message=_clean(first)).text = _clean(message(result))


def _test(suite: ET.Element, nodeid: str, seconds: float = 0.0) -> ET.Element:
    file, _, name = nodeid.partition("::")
    of = file.removesuffix(".py").replace("/", ".")
    return ET.SubElement(
        suite, "testcase", classname=_clean(of), name=_clean(name), time=f"{seconds:.3f}"
    )


def _clean(text: str) -> str:
    """Return a text without what XML cannot hold."""
    return visible(text, keep="\n\t")
