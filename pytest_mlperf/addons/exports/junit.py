"""Export results as JUnit XML, with the same test ids and properties as pytest's own file."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable

from pytest_mlperf.extension import ReportedSession, sentence, visible
from pytest_mlperf.reports.failures import failure_groups, group_sentences
from pytest_mlperf.reports.for_pytest import properties
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.reports.terminal.advice import machine_noise_notes


def report(session: ReportedSession) -> str:
    """Return a JUnit document; planned tests without a result are errors."""
    results, missing = session.results, session.absent
    message = text.failure_message(results, columns=120)
    root, when = ET.Element("testsuites"), _clean(results.started)
    suite = ET.SubElement(root, "testsuite", name="pytest-mlperf", timestamp=when)
    without = {absent.test for absent in missing}
    skipped = {test: reason for test, reason in results.skipped.items() if test not in without}
    common = group_sentences(failure_groups(results))
    pairs = [("mlperf.machine_wide", text) for text in machine_noise_notes(results)]
    pairs += [("mlperf.common_cause", text) for text in common]
    if pairs:
        _properties(suite, pairs)
    for result in results.cases:
        node = _test(suite, result.test, sum(run.duration_s for run in result.verdict.runs))
        _properties(node, properties(result))
        if result.failed:
            first = _clean(f"{result.verdict.outcome} {sentence(result.verdict.headline)}")
            ET.SubElement(node, "failure", message=first).text = _clean(message(result))
    for test, reason in skipped.items():
        ET.SubElement(_test(suite, test), "skipped", message=_clean(reason))
    for absent in missing:
        node = _test(suite, absent.test)
        ET.SubElement(node, "error", message=_clean(f"no result: {absent.reason}"))
    counts = {
        "tests": len(results.cases) + len(skipped) + len(missing),
        "failures": sum(result.failed for result in results.cases),
        "errors": len(missing),
        "skipped": len(skipped),
    }
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    suite.set("time", f"{results.seconds:.1f}")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


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
