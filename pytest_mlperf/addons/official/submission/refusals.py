"""Find reasons to refuse `submission export`; MLCommons' checker finds further defects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_mlperf.addons.official.run_rules import least_settings, too_low
from pytest_mlperf.addons.official.submission.form import MARK, SYSTEM_FILE, Form
from pytest_mlperf.addons.official.submission.gather import Entry
from pytest_mlperf.addons.official.submission.layout import ANSWERS_LOG, DETAIL_LOG, FLAT
from pytest_mlperf.extension import Kind, plural
from pytest_mlperf.rounds import Round
from pytest_mlperf.run.logs import Detail, parse_detail

NUMBERS = ("number_of_nodes", "host_processors_per_node", "accelerators_per_node")
"""Keys of system.json that MLCommons' checker converts to integers: other values crash it."""

TEXTS = ("status", "system_type", "hw_notes", "sw_notes", "is_network")
"""Keys of system.json that the checker treats as text: a number crashes it."""

TIMED_TESTS = ("TEST01", "TEST04", "TEST05")
"""Compliance tests whose runs must obey the rules of a performance run."""


def refusals(
    entries: Sequence[Entry], form: Form, names: Iterable[str], rules: Round
) -> Iterator[str]:
    """Yield the problems that prevent `submission export`, one line each.

    `names` are the relative paths of all files to write. Raises RunError if a log is damaged.
    """
    if blanks := len(list(form.blanks())):
        yield f"{plural(blanks, 'blank')} left: grep -r '{MARK}' {form.folder}"
    for key in NUMBERS:
        if not _is_whole(value := form.description.get(key, 0)):
            yield f"{form.folder / SYSTEM_FILE}: {key} is {value!r}; it must be a whole number"
    for key in TEXTS:
        if not isinstance(value := form.description.get(key, ""), str):
            yield f"{form.folder / SYSTEM_FILE}: {key} is {value!r}; it must be a text in quotes"
    for name in names:
        if " " in name:
            yield f"{name}: rename it, names must have no spaces"
    for entry in entries:
        for problem in _entry(entry, rules, closed=form.division == "closed"):
            yield f"{entry.benchmark} {entry.scenario}{problem}"


def _is_whole(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) or str(value).isdecimal()


def _entry(entry: Entry, rules: Round, *, closed: bool) -> Iterator[str]:
    for problem in _timed_run(entry.run / DETAIL_LOG, entry, rules, closed=closed):
        yield f": {problem}"
    for problem in _logged_errors(parse_detail(entry.answers / DETAIL_LOG)):
        yield f", accuracy run: {problem}"
    for test, folder in entry.audits.items() if closed else ():
        log = folder / "performance" / DETAIL_LOG
        if test in TIMED_TESTS and log.is_file():
            for problem in _timed_run(log, entry, rules, closed=True):
                yield f", {test}: {problem}"
        if (
            test == Kind.TEST01
            and rules.name not in FLAT
            and not log.with_name(ANSWERS_LOG).is_file()
        ):
            yield f", {test}: its run's folder {log.parent} has no {ANSWERS_LOG}; run it again"


def _timed_run(log: Path, entry: Entry, rules: Round, *, closed: bool) -> Iterator[str]:
    detail, constants = parse_detail(log), entry.constants
    if not detail.valid:
        reasons = "; ".join(detail.invalid_reasons) or "LoadGen gives no reason"
        yield f"LoadGen reports the run INVALID: {reasons}"
    yield from _logged_errors(detail)
    scenario = entry.scenario.of_loadgen
    logged = detail.values.get("effective_scenario")
    if logged != scenario:
        yield f"the log is of scenario {logged}, not {scenario}"
    least = least_settings(rules, entry.rules, constants, scenario, closed=closed)
    yield from too_low(detail.values, least)


def _logged_errors(detail: Detail) -> Iterator[str]:
    if detail.num_errors:
        first = detail.errors[0] if detail.errors else "not named"
        yield f"LoadGen logged {detail.num_errors} errors, first: {first}"
