"""Test tools/servers.py: faulty servers, and the client's findings about them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT

TESTS = Path(__file__).resolve().parents[1]


def test_each_row_names_tests_that_exist_and_stand_in_the_table_of_faults(lib: Any) -> None:
    table = (DOCS / "validity.md").read_text("utf-8").split("## Faults", 1)[1]
    source = "\n".join(file.read_text("utf-8") for file in TESTS.rglob("test_*.py"))
    faults = lib("servers").FAULTS

    assert len(faults) > 20
    assert len({fault.name for fault in faults}) == len(faults)
    for fault in faults:
        assert fault.tests, fault.name
        assert [name for name in fault.tests if f"def {name}(" not in source] == []
        assert [name for name in fault.tests if f"`{name}`" not in table] == []


def test_a_wrong_finding_of_the_client_is_reported(lib: Any) -> None:
    servers = lib("servers")
    truth = {servers.TTFT: 0.1, servers.HIDDEN: 0.75, servers.PROMPT: 13.0}
    right = servers.Seen(server=truth, client={**truth, servers.TTFT: 0.109})

    def wrong(seen: Any, *words: str) -> list[str]:
        fault = servers.Fault(name="x", look=lambda: seen, tests=(), words=words)
        return list(fault.disagreements(seen))

    assert wrong(right) == []
    for change, words in (
        ({"client": {**truth, servers.TTFT: 0.12}}, ["TTFT differs"]),
        ({"client": {**truth, servers.HIDDEN: 0.7}}, ["hidden share differs"]),
        ({"client": {**truth, servers.PROMPT: 12.0}}, ["prompt tokens differs"]),
        ({"client": {}, "doubted": [servers.TTFT, servers.HIDDEN]}, ["prompt tokens differs"]),
        ({"absent": [servers.TTFT]}, ["TTFT should be absent"]),
        ({"says": "a note"}, ["nothing was to be said"]),
        ({"words": ["fp_0 (3)"]}, ['"fp_0 (3)" is not said']),
    ):
        assert wrong(replace(right, **change)) == words
    assert wrong(right, "a note") == ['"a note" is not said']
    assert wrong(replace(right, says="a note, and more"), "a note") == []


@pytest.mark.process
@pytest.mark.nightly
def test_the_client_and_each_faulty_server_agree() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tools.servers"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
