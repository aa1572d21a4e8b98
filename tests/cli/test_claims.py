"""`published --claims`: every figure of four pages holds, is refuted or cannot be checked."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from pytest_mlperf.cli import main
from pytest_mlperf.cli.claims import HoldsUp, check, checked
from pytest_mlperf.rounds.printed import printed_figures
from pytest_mlperf.rounds.published import official_results


def test_there_are_132_measurements_and_49_claims_each_with_numbers_or_a_reason() -> None:
    figures = checked(None)

    assert len(figures) == 132 + 49
    assert Counter(one.answer for one in figures) == {
        HoldsUp.HOLDS: 105,
        HoldsUp.REFUTED: 51,
        HoldsUp.OPEN: 25,
    }
    assert all(one.reason for one in figures)
    assert all(
        any(letter.isdigit() for letter in one.reason)
        for one in figures
        if one.answer is not HoldsUp.OPEN
    )


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_a_figure_that_is_printed_otherwise_no_longer_holds(factor: float) -> None:
    """What is printed is rounded; three per cent are no rounding."""
    plain = [one for one in printed_figures() if one.how == "official" and one.value > 100]
    held = [one for one in plain if check(one).answer is HoldsUp.HOLDS]

    other = [replace(one, value=one.value * factor) for one in held]

    assert len(held) >= 50
    assert {check(one).answer for one in other} == {HoldsUp.REFUTED}


def test_results_that_figures_are_held_against_are_those_of_the_package() -> None:
    v41 = {(r.system, r.model): r for r in official_results("v4.1")}
    named = {(one.system, one.model) for one in printed_figures() if one.how == "official"}

    assert named <= v41.keys()


@pytest.mark.parametrize(
    ("value", "qualifier", "answer"),
    [
        (2.0, "", HoldsUp.HOLDS),
        (2.1, "", HoldsUp.REFUTED),
        (2.1, "nearly", HoldsUp.HOLDS),
        (2.5, "nearly", HoldsUp.REFUTED),
        (4.0, "most", HoldsUp.HOLDS),
        (1.9, "most", HoldsUp.REFUTED),
        (2.01, "exact", HoldsUp.REFUTED),
    ],
)
def test_a_ratio_is_read_as_its_page_means_it(
    value: float, qualifier: str, answer: HoldsUp
) -> None:
    ratio = next(one for one in printed_figures() if one.how == "ratio" and one.unit == "x")

    figure = replace(ratio, value=value, top=20.0, bottom=10.0, qualifier=qualifier)

    assert check(figure).answer is answer


def test_programs_get_them_as_json_and_other_workloads_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["published", "gptj", "--claims", "--format", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert {one["workload"] for one in figures} == {"gptj"}

    assert main(["published", "gptk", "--claims"]) == 2
    assert "nothing is printed of 'gptk'; did you mean 'gptj'?" in capsys.readouterr().err


def test_figures_of_one_scenario_are_those_that_name_it() -> None:
    offline = checked(None, "Offline")

    assert 0 < len(offline) < 132
    assert {one.figure.scenario for one in offline} == {"Offline"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--round", "v4.1"], "--claims take a WORKLOAD and --scenario, not --round"),
        (["--accelerator", "H200"], "--claims take a WORKLOAD and --scenario, not --accelerator"),
        (["--per", "watt"], "--claims are as they are printed, without --division and --per"),
        (["--scenario", "MultiStream"], "nothing is printed in MultiStream"),
    ],
)
def test_an_option_that_would_say_nothing_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["published", "--claims", *options]) == 2
    assert message in capsys.readouterr().err
