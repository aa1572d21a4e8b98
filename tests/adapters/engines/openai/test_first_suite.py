"""The suite that `pytest-mlperf init --engine openai` writes, against a server that stands in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_mlperf.cli import main
from tests.adapters.engines.openai.echo import echo_server


def write_suite(capsys: pytest.CaptureFixture[str]) -> Path:
    """Write the suite, which plans one case."""
    assert main(["init", "--engine", "openai"]) == 0
    suite = Path("suites/demo.mlperf.toml")
    assert main(["plan", str(suite)]) == 0
    assert "1 case" in capsys.readouterr().out
    return suite


def test_it_is_one_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_suite(capsys)


@pytest.mark.process
@pytest.mark.nightly
def test_it_measures_a_server_with_answers_of_the_lengths_that_were_drawn(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it holds its points depends on this machine; that it measures does not."""
    suite = write_suite(capsys)
    with echo_server(10_000, service_ms=60) as url:
        text = suite.read_text("utf-8").replace("http://127.0.0.1:8000", url)
        suite.write_text(text.replace("[1, 8, 64]", "[1, 4]").replace('"60s"', '"2s"'))
        pytester.runpytest_subprocess("suites", "--mlperf-json=r.json")

    (logged, *_) = sorted(Path(".mlperf/runs").rglob("curve.json"))
    points = json.loads(logged.read_text("utf-8"))["points"]
    assert [point["point"] for point in points] == [1, 4]
    runs = json.loads(Path("r.json").read_text("utf-8"))["cases"][0]["verdict"]["runs"]
    for point in points:
        assert runs[-1]["serving"]["server"][f"running_max@{point['point']}"] <= point["point"]
        assert point["requests"] > 0
        assert 102 <= point["tokens"] / point["requests"] <= 410
