"""What was removed is refused, and the message says what to use instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.cli import main
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.removed import REMOVED
from pytest_mlperf.suite.plan import plan_suite

SUITE = """
schema = 1
round = "v4.1"

[workload]
name = "old"
dataset = {{ use = "synthetic", samples = 4 }}

[[engines]]
use = "{engine}"
options = {{ {key} = true }}

[[scenarios]]
name = "Offline"
"""


def test_everything_removed_is_refused_with_its_replacement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {}
    for entry in REMOVED:
        if entry.kind == "key":
            engine = entry.owner.removeprefix("engine ").strip("'")
            suite = tmp_path / f"{entry.name}.mlperf.toml"
            suite.write_text(SUITE.format(engine=engine, key=entry.name), "utf-8")
            with pytest.raises(SuiteError) as caught:
                plan_suite(suite)
            text = str(caught.value)
            assert f"{suite}:{SUITE.splitlines().index('options = {{ {key} = true }}') + 1}" in text
        else:
            words = [entry.name] if entry.kind == "command" else [entry.owner, entry.name]
            assert main(words) == 2
            text = capsys.readouterr().err
        refused[entry] = f"{entry.kind} {entry.name} was removed: {entry.instead}" in text

    assert refused == dict.fromkeys(REMOVED, True)


def test_a_word_that_was_never_there_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["contributed"])

    assert "choose from" in capsys.readouterr().err
