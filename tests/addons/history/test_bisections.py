"""What a bisect keeps: found again by the same question, refused under other settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.addons.history.bisections import BisectStore, RunPairs, folder_lock, folder_name
from pytest_mlperf.core.errors import MlperfError
from tests.reports.verdicts import run

SETTINGS = {"machine": "a", "suite": "b"}

RUN = run(throughput=500.0)


def test_kept_runs_are_reused(tmp_path: Path) -> None:
    """Other settings are refused, and may start a new search."""
    store = BisectStore(tmp_path, SETTINGS, restart=False)
    store.begin("first")
    store.keep("a b test", RunPairs(before=(RUN,), now=(RUN,)))
    store.keep("a c test", RunPairs(reason="it broke"))

    again = BisectStore(tmp_path, SETTINGS, restart=False)

    assert again.state == store.state
    assert again.pairs("a b test").now == (RUN,)
    assert again.pairs("a d test") == RunPairs()
    assert (again.runs, again.begin("second")) == (2, ("first",))
    others = {"machine": "z", "suite": "y"}
    with pytest.raises(
        MlperfError, match=r"measurements were made with another machine and suite; .*--restart"
    ):
        BisectStore(tmp_path, others, restart=False)
    assert BisectStore(tmp_path, others, restart=True).begin("third") == ("first", "second")


def test_it_has_no_path_of_this_machine_and_a_damaged_file_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    foreign_run = replace(
        RUN, folder=str(tmp_path / ".mlperf/runs/x"), notes=(f"see {Path.home()}/log",)
    )
    store = BisectStore(tmp_path, SETTINGS, restart=False)

    store.keep("a b test", RunPairs(before=(foreign_run,), now=(foreign_run,)))

    text = store.path.read_text("utf-8")
    assert '"folder": ".mlperf/runs/x"' in text
    assert not [place for place in (str(tmp_path), str(Path.home())) if place in text]
    for content in ("", "{}", "[]", '{"schema": 1, "settings": 3}', "\x00"):
        (tmp_path / "state.json").write_text(content, "utf-8")
        with pytest.raises(MlperfError, match=r"not a bisect: .*--restart"):
            BisectStore(tmp_path, SETTINGS, restart=False)
        BisectStore(tmp_path, SETTINGS, restart=True)


def test_one_question_is_bisected_by_one_process(tmp_path: Path) -> None:
    folder = tmp_path / folder_name("a", "b", "test")
    busy = pytest.raises(MlperfError, match="another process runs this bisect now")

    with folder_lock(folder), busy, folder_lock(folder):
        pass

    assert list(folder.iterdir()) == []
    assert folder_name("a", "b", "test") != folder_name("a", "btest")
