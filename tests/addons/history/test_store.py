"""`pytest-mlperf store`: results files in, results files out."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.stores.database import opened
from pytest_mlperf.stores.results import read_results, write_results
from tests.cli.text import Say
from tests.stores.test_database import RECORDED, numbered


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Results files of three sessions, as pytest writes them."""
    monkeypatch.chdir(tmp_path)
    session = read_results(RECORDED)
    files = [Path(f"in/run-{number}/results.json") for number in (1, 2, 3)]
    for number, file in enumerate(files, start=1):
        write_results(file, numbered(session, number))
    return files


def test_what_is_imported_is_exported_byte_for_byte(files: list[Path], say: Say) -> None:
    assert say("store", "import", *files) == (0, ".mlperf/results.db: imported 3 sessions\n")
    assert say("store", "import", *files) == (
        0,
        ".mlperf/results.db: imported 0 sessions, 3 already there\n",
    )
    assert say("store", "export", "-o", "out") == (0, "wrote 3 sessions to out\n")
    for file in files:
        assert (Path("out") / file.parent.name / file.name).read_bytes() == file.read_bytes()


def test_the_default_is_the_newest_session(files: list[Path], say: Say) -> None:
    """A session may also be named by its folder or its id."""
    for number in (1, 2):
        session = replace(read_results(files[0]), run=f"2026112{number}-000000-abcd")
        write_results(Path(f".mlperf/runs/{session.run}/results.json"), session)
    assert say("store", "import") == (0, ".mlperf/results.db: imported 1 session\n")
    with opened(".mlperf/results.db") as store:
        assert list(store.sessions()) == ["20261122-000000-abcd"]
    assert say("store", "import", "20261121") == (0, ".mlperf/results.db: imported 1 session\n")


def test_a_file_that_cannot_be_imported_costs_no_other(files: list[Path], say: Say) -> None:
    """The id of a session leads nowhere else."""
    Path("broken.json").write_text("{", "utf-8")
    write_results(Path("other.json"), replace(read_results(files[0]), seconds=1.0))
    output = say.ends(2, "store", "import", "broken.json", files[0], "other.json", files[1])
    assert ".mlperf/results.db: imported 2 sessions\n" in output
    assert "not imported: broken.json: not a results file" in output
    assert "session run-1 is stored already, with other results; the stored one was" in output
    write_results(files[2], replace(read_results(files[2]), run="../../away"))
    say("store", "import", files[2])
    assert "cannot be part of a file's path" in say.ends(2, "store", "export", "-o", "out")
    assert not Path("../away").exists()


def test_a_store_is_named_by_its_file(files: list[Path], say: Say) -> None:
    """One session is exported by its id; an empty store has nothing; another file is refused."""
    say("store", "import", *files, "--store", "sqlite:///kept.db")
    assert say("store", "export", "run-2", "-o", "out", "--store", "kept.db")[0] == 0
    assert [file.parent.name for file in Path("out").glob("*/results.json")] == ["run-2"]
    with opened("empty.db", write=True):
        pass
    shutil.copy(files[0], "results.db")
    export = ("store", "export", "-o", "out", "--store")
    message = "pytest-mlperf: results.db: the file is not a SQLite database; name another\n"
    assert say(*export, "empty.db") == (0, "wrote 0 sessions to out\n")
    assert say(*export, "results.db") == (2, message)
