"""Test the findings of a bisection and their text.

Whole searches with stored runs, so none is made.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from pytest_mlperf.addons.history.bisect import Bisection, Proof
from pytest_mlperf.addons.history.bisection import Mark
from pytest_mlperf.addons.history.bisections import BisectStore, RunPairs
from pytest_mlperf.addons.history.commands.bisect._page import (
    comparison_lines,
    heading,
    log,
    result_lines,
)
from pytest_mlperf.addons.history.lineage import BuildAt
from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.cli.turns import InterleavedCases
from pytest_mlperf.core.untrusted_text import clean
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.suite.plan import plan_suite
from tests.addons.history.test_bisect import SUITE
from tests.cli.text import one_line, widest
from tests.reports.verdicts import run

TEST = "s.mlperf.toml::test_performance[mine-Offline-null-fp32-cpu]"
OTHER = "s.mlperf.toml::test_performance[mine-Offline-other-fp32-cpu]"
NOISE = 0.004


def build(number: int, subject: str, merged: int) -> BuildAt:
    return BuildAt(
        name=f"{number:02x}" * 20,
        subject=subject,
        author="A. Author",
        date="2026-11-27",
        parent=f"{number - 1:02x}" * 20,
        merged=number == merged,
    )


def bisected(
    folder: Path,
    speeds: Sequence[float | None],
    other: Sequence[float | None] = (),
    *,
    subject: str = "a change",
    merged: int = -1,
    builds: Sequence[BuildAt] = (),
) -> Bisection:
    """Return a search among commits of these speeds, of which None fails to run.

    Args:
        other: The speeds of a second test, if there is one; it is named first.
        builds: In place of commits.
    """
    (folder / "s.mlperf.toml").write_text(SUITE.replace("acme:Acme", "null"), "utf-8")
    (planned,) = plan_suite(folder / "s.mlperf.toml")
    machine = detect(gpus=False)
    conditions = Conditions(folder=folder / "runs", session="x", machine=machine)
    policy = Policy(max_runs=6, accuracy=folder / "accuracy", root=folder)
    tests = {OTHER: other, TEST: speeds} if other else {TEST: speeds}
    cases = {test: CaseRuns(planned, conditions, policy, print) for test in tests}
    builds = builds or [build(number, subject, merged) for number in range(len(speeds))]
    store = BisectStore(folder, {}, restart=False)
    chance = random.Random(1)
    kept: dict[str, RunPairs] = {}
    for test, good, bad in (
        (test, *ends) for test in tests for ends in combinations(range(len(speeds)), 2)
    ):
        sides = [
            tuple(run(throughput=speed * chance.gauss(1, NOISE)) for _ in range(6)) if speed else ()
            for speed in (tests[test][good], tests[test][bad])
        ]
        pairs = RunPairs(before=sides[0], now=sides[1], reason="" if all(sides) else "it broke")
        key = f"{builds[good].name} {builds[bad].name} {test}"
        kept |= {key: pairs, f"{key} again": pairs}
    store.state = replace(store.state, pairs=kept)
    return Bisection(builds, InterleavedCases(conditions=conditions, cases=cases), store, print)


def searched(search: Bisection) -> Proof:
    assert search.compare_ends().mark is Mark.BAD
    list(search.search())
    return search.proof()


def page_of(search: Bisection, proof: Proof) -> str:
    steps = [line for one in search.log for line in comparison_lines(search, one)]
    lines = [
        *heading(search, [TEST], 0),
        *steps,
        *log(search, "default noise", ".mlperf/runs/x"),
        *result_lines(search, proof),
    ]
    return "\n".join(map(clean, lines))


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_any_commit_is_named_with_its_change(tmp_path: Path) -> None:
    for first_bad in range(1, 9):
        search = bisected(tmp_path, [500.0] * first_bad + [330.0] * (9 - first_bad))
        proof = searched(search)
        assert (proof.before, proof.now, proof.is_single_build) == (first_bad - 1, first_bad, True)
        assert proof.speed.low < 0.66 < proof.speed.high
        assert proof.rest == []
        text = page_of(search, proof)
        for words in (
            f"first bad {first_bad:02x}{first_bad:02x}",
            "samples/s −3",
            "against its parent",
            f"see       git show {search.builds[first_bad].title}",
        ):
            assert words in text
        assert widest(text) <= 80


def test_of_a_drop_in_two_steps_one_is_named_and_the_other_is_noted(tmp_path: Path) -> None:
    """Whether that there is more is proven, or only looks so."""
    for second, last, first_bad, rest in ((430.0, 330.0, 5, [(0, 4)]), (410.0, 336.0, 2, [])):
        search = bisected(tmp_path, [500.0, 500.0, *[second] * 3, *[last] * 3])
        proof = searched(search)
        assert (proof.is_single_build, proof.now, list(proof.rest)) == (True, first_bad, rest)
        text = one_line(page_of(search, proof))
        assert "this one explains only a part of the drop: fix it" in text
        assert ("a part of the drop lies elsewhere, between" in text) == bool(rest)


def test_a_drop_in_many_steps_is_the_smallest_range_that_is_proven(tmp_path: Path) -> None:
    """No commit is named: none is worse than its parent for sure."""
    search = bisected(tmp_path, [500.0 * 0.985**n for n in range(25)])
    proof = searched(search)
    assert not proof.is_single_build
    assert 1 < proof.now - proof.before < 24
    assert proof.speed.high < 1
    text = one_line(page_of(search, proof))
    assert "no commit is named: none is proven to be worse than the one before it" in text
    assert f"see git log {search.builds[proof.before].title}.." in text


def test_skipped_commits_before_the_first_bad_one_stay_in_the_range(tmp_path: Path) -> None:
    search = bisected(tmp_path, [500.0, 500.0, None, None, None, 330.0, 330.0, 330.0])
    proof = searched(search)
    assert (proof.before, proof.now, proof.is_single_build, proof.direct) == (1, 5, False, True)
    text = page_of(search, proof)
    assert (
        "no commit is named: the cause is one of these 4; all but the last were skipped or "
        "undecided" in one_line(text)
    )
    assert f"{search.builds[3].title} skipped  a change\n" in text
    assert "skipped: it broke" in one_line(text)


def test_versions_of_a_library_are_searched_as_commits_are(tmp_path: Path) -> None:
    """What comes next after the good one needs no further comparison."""
    versions = [BuildAt(name=name, wheel=f"dialect=={name}") for name in ("0.9", "0.10", "1.0")]
    search = bisected(tmp_path, [500.0, 330.0, 330.0], builds=versions)
    text = page_of(search, searched(search))
    assert "first bad dialect==0.10\nchange    samples/s −" in text
    assert "1 version in between" in text
    assert [(one.before, one.now) for one in search.log] == [(0, 2), (0, 1)]


def test_a_hostile_subject_is_escaped_and_a_merge_is_noted(tmp_path: Path) -> None:
    hostile = "\x1b[2Jgone\u202e ::error::x"
    search = bisected(tmp_path, [500.0, 500.0, 330.0], subject=hostile, merged=2)
    text = page_of(search, searched(search))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "subject   \\x1b[2Jgone\\u202e ::error::x" in text
    title = search.builds[2].title
    assert f"it is a merge commit; list its commits: git log {title}^1..{title}^2" in one_line(text)


def test_of_several_tests_those_that_dropped_are_followed(tmp_path: Path) -> None:
    """The first of two drops in two tests is found; without a drop there is no search."""
    search = bisected(tmp_path, [500.0] * 5 + [330.0] * 4, [500.0] * 9)
    proof = searched(search)
    assert (proof.now, proof.metric[0]) == (5, TEST)
    assert list(search.limits) == [TEST]
    assert {test for one in search.log[1:] for test, _ in one.ratios} == {TEST}
    search = bisected(tmp_path, [500.0] * 5 + [330.0] * 4, [500.0] * 3 + [330.0] * 6)
    proof = searched(search)
    assert (proof.now, proof.metric[0], proof.is_single_build) == (3, OTHER, True)
    assert list(search.limits) == [OTHER, TEST]

    for speed, mark in ((500.0, Mark.GOOD), (600.0, Mark.GOOD), (330.0, Mark.BAD)):
        assert bisected(tmp_path, [500.0, 500.0, speed]).compare_ends().mark is mark


def disturbed(search: Bisection, again: str) -> None:
    """Let the last comparison, of the commits 4 and 5, say nothing; `again`: " again" or ""."""
    store = search._store
    key = f"{search.builds[4].name} {search.builds[5].name} {TEST}{again}"
    rates = ((900.0, 100.0, 500.0) * 2, (100.0, 900.0, 500.0) * 2)
    sides = [tuple(run(throughput=rate) for rate in side) for side in rates]
    pairs = RunPairs(before=sides[0], now=sides[1])
    store.state = replace(store.state, pairs={**store.state.pairs, key: pairs})


def test_a_disturbed_last_comparison_is_made_again(tmp_path: Path) -> None:
    """What only comparisons with the good one prove is not named."""
    search = bisected(tmp_path, [500.0] * 5 + [330.0] * 3)
    disturbed(search, "")
    proof = searched(search)
    assert [one.mark for one in search.log[-2:]] == [Mark.UNDECIDED, Mark.BAD]
    assert (proof.now, proof.is_single_build) == (5, True)
    search = bisected(tmp_path, [500.0] * 5 + [330.0] * 3)
    disturbed(search, "")
    disturbed(search, " again")
    proof = searched(search)
    assert (proof.before, proof.now, proof.is_single_build) == (4, 5, False)
    text = one_line(page_of(search, proof))
    assert "no commit is named: the cause is probably this one: its drop from GOOD" in text
