"""Files `*.judge.toml`: each metric of each point is a test."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.judge.collecting import parsed_file
from pytest_mlperf.extension import read_results
from tests.addons.judge.files import write
from tests.addons.judge.recorded import serving

pytest_plugins = ["pytester"]

AGAINST = """
files = ["new/*.json"]
against = ["old/*.json"]
"""


def write_sides(folder: Path, slower: float = 1.0) -> None:
    serving(folder / "old", side=0, slower=1.0, first_day=1)
    serving(folder / "new", side=1, slower=slower, first_day=11)


def ran(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-q", "-pno:cacheprovider", "-rA", *words)


def test_tests_are_named_by_tool_metric_and_point(pytester: pytest.Pytester) -> None:
    write_sides(pytester.path, slower=1.12)
    write(pytester.path / "llama.judge.toml", AGAINST + 'metrics = ["ttft_p50", "tpot_p50"]\n')
    result = ran(pytester, "llama.judge.toml", "--junitxml=r.xml")
    cases = {
        str(case.get("name")): case.find("failure")
        for case in ET.parse(pytester.path / "r.xml").getroot().iter("testcase")
    }

    result.assert_outcomes(passed=1, failed=1)
    failure = cases["vllm[ttft_p50-concurrency 64]"]
    assert failure is not None
    assert str(failure.text).startswith("PERF DROP p50 TTFT +12.0 % (limit +5 %) at concurrency 64")
    assert "\nbefore    5 runs of 5 sessions: " in str(failure.text)
    assert "date" not in str(failure.text)
    assert "\\n" not in str(failure.text) + result.stdout.str()
    assert cases["vllm[tpot_p50-concurrency 64]"] is None
    result.stdout.fnmatch_lines(["*PERF DROP llama.judge.toml::vllm?ttft_p50-concurrency 64?*"])


def test_a_session_has_results_as_one_of_suites(pytester: pytest.Pytester) -> None:
    write_sides(pytester.path, slower=1.12)
    write(pytester.path / "a.judge.toml", AGAINST)
    ran(pytester, "--mlperf-report=markdown=r.md", "--mlperf-json=r.json", "--mlperf-store=sqlite")
    results = read_results(pytester.path / "r.json")
    failed = [case.test for case in results.cases if case.failed]

    assert len(results.cases) == 9
    assert set(failed) == {
        f"a.judge.toml::vllm[ttft_{name}-concurrency 64]" for name in ("p50", "p99")
    }
    assert "PERF DROP" in (pytester.path / "r.md").read_text("utf-8")
    assert (pytester.path / ".mlperf" / "results.db").exists()


def test_a_test_is_selected_by_its_id(pytester: pytest.Pytester) -> None:
    write_sides(pytester.path, slower=1.12)
    write(pytester.path / "a.judge.toml", AGAINST)

    result = ran(pytester, "a.judge.toml::vllm[tpot_p50-concurrency 64]")
    result.assert_outcomes(passed=1)
    ran(pytester, "-k", "tpot_p50", ".").assert_outcomes(passed=1, deselected=8)


def test_limits_and_conditions_are_read(pytester: pytest.Pytester) -> None:
    write_sides(pytester.path, slower=1.12)
    write(pytester.path / "a.judge.toml", AGAINST + '[limits]\nttft = "20%"\n')

    ran(pytester, "a.judge.toml").assert_outcomes(passed=9)


def test_an_open_verdict_passes_unless_it_is_to_fail(pytester: pytest.Pytester) -> None:
    write_sides(pytester.path)
    text = 'files = ["new/run-0.json"]\nagainst = ["old/run-0.json"]\nmetrics = ["ttft_p50"]\n'
    write(pytester.path / "a.judge.toml", text)
    write(pytester.path / "b.judge.toml", text + 'fail_on = "provisional"\n')
    result = ran(pytester, "-Werror", "a.judge.toml")

    assert (result.ret, result.parseoutcomes()) == (0, {"provisional": 1})
    result.stdout.fnmatch_lines(["*PROVISIONAL*p50 TTFT*"])
    ran(pytester, "b.judge.toml").assert_outcomes(failed=1)


@pytest.mark.parametrize("folder", ["", "deep/er"])
def test_a_baseline_lies_beside_the_file_or_in_the_project(
    pytester: pytest.Pytester, folder: str
) -> None:
    from pytest_mlperf.cli import main

    write_sides(pytester.path)
    main(["judge", "old", "--baseline", "llama", "--update", "missing", "--reason", "first"])
    place = pytester.path / folder / "a.judge.toml"
    new = "../../new/*.json" if folder else "new/*.json"
    write(place, f'files = ["{new}"]\nbaseline = "llama"\n')

    ran(pytester, str(place), "--rootdir", str(pytester.path)).assert_outcomes(passed=9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('files = ["new/*.json"', "cannot be read as TOML"),
        ('against = ["old/*.json"]', "set files, and either against or baseline"),
        ('files = ["new/*.json"]', "set files, and either against or baseline"),
        (AGAINST + 'baseline = "x"', "set files, and either against or baseline"),
        (
            AGAINST + 'metric = ["ttft"]',
            "no key 'metric' in a file of judge; did you mean 'metrics'",
        ),
        (AGAINST + "ignore = 3", "ignore = 3 is not a list"),
        (AGAINST + 'fail_on = "never"', "invalid choice: 'never'"),
        ('files = ["gone/*.json"]\nagainst = ["old"]', "files: no file 'gone/*.json' in "),
        ('files = [""]\nagainst = ["old"]', "files: no file '' in "),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    write_sides(tmp_path)
    file = write(tmp_path / "a.judge.toml", text)

    with pytest.raises(MlperfError, match=r"a\.judge\.toml") as caught:
        parsed_file(file, tmp_path)
    assert message in str(caught.value)


def test_what_cannot_be_judged_is_an_error_and_no_pass(pytester: pytest.Pytester) -> None:
    write_sides(pytester.path)
    write(pytester.path / "a.judge.toml", AGAINST + '[limits]\ntfft = "3%"\n')
    write(pytester.path / "b.judge.toml", 'files = ["empty"]\nagainst = ["old/*.json"]\n')
    (pytester.path / "empty").mkdir()
    result = ran(pytester)

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*no metric 'tfft' in these files*", "*no result file found*"])
    assert "Traceback" not in result.stdout.str()
