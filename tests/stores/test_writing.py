"""Writers that are killed, meet each other or find no locks lose nothing and leave nothing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mlperf.core.baseline import AccuracyBaseline
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.stores import accuracy_baselines, atomic, baselines
from pytest_mlperf.stores.results import read_results
from tests.core.made import present
from tests.stores import acting
from tests.stores import test_accuracy_baselines as accuracy
from tests.stores.killed import deaths, exit_codes, git, started, taken
from tests.stores.test_baselines import BASELINE, EMPTY


def repository(folder: Path) -> Path:
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    return folder


@pytest.mark.process
def test_an_update_that_is_killed_anywhere_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "baselines" / "Offline.ort.fp32.json"
    seen = []

    for number, killed in enumerate(deaths("tests.stores.acting", "update", tmp_path)):
        if number == 0:
            repository(tmp_path)
        seen.append(len(present(baselines.load(path)).records))
        assert taken(tmp_path) in ([], ["baselines/Offline.ort.fp32.json"]), number
        if killed:
            git(tmp_path, "checkout", "--quiet", ".")

    assert set(seen) == {1, 2}
    assert len(seen) > 10
    assert list(path.parent.iterdir()) == [path], "the last one lived, and removed what was left"


@pytest.mark.process
def test_scores_that_are_accepted_are_the_old_pair_or_the_new_wherever_it_is_killed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "baselines" / "torch.fp32.json"
    seen = []

    for number, killed in enumerate(deaths("tests.stores.acting", "accept", tmp_path)):
        if number == 0:
            repository(tmp_path)
        _, scores = present(accuracy_baselines.load(path))
        assert scores in (acting.OLD, acting.NEW), number
        seen.append(scores == acting.NEW)
        assert not [name for name in taken(tmp_path) if ".writing" in name], number
        if killed:
            git(tmp_path, "checkout", "--quiet", ".")

    assert set(seen) == {True, False}
    assert len(seen) > 15
    assert {one.name for one in path.parent.iterdir()} == {
        path.name,
        accuracy_baselines.scores_path(path).name,
    }


@pytest.mark.process
def test_writers_of_one_pair_lose_nothing_and_a_reader_always_sees_a_pair(tmp_path: Path) -> None:
    path = tmp_path / "torch.fp32.json"
    acting.accept_many(str(tmp_path), 0, 1)
    workers = started(acting.accept_many, *((str(tmp_path), 100 * n, 25) for n in (1, 2)))
    while any(worker.is_alive() for worker in workers):
        assert accuracy_baselines.load(path) is not None

    assert exit_codes(workers) == [0, 0]
    baseline, _ = present(accuracy_baselines.load(path))
    reasons = {entry.reason for entry in baseline.history}
    assert reasons == {str(n) for n in (0, *range(100, 125), *range(200, 225))}
    assert len(list(tmp_path.iterdir())) == 2


def test_the_layout_of_older_releases_is_read_and_replaced(tmp_path: Path) -> None:
    """Scores of another baseline are never removed."""
    acting.accept(str(tmp_path), prepare=True)
    path = tmp_path / "baselines" / "torch.fp32.json"
    older = path.with_suffix(".scores.npz")
    accuracy_baselines.scores_path(path).rename(older)
    for name in ("torch.fp32.b.scores.npz", "atorch.fp32.scores.npz"):
        shutil.copy(older, path.with_name(name))

    baseline = accuracy_baselines.load(path)
    acting.accept(str(tmp_path))

    assert present(baseline)[1] == acting.OLD
    assert not older.exists()
    assert len(list(path.parent.iterdir())) == 4


def test_a_file_system_without_locks_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, os.strerror(number))))
        with pytest.raises(
            BaselineError, match=r"no locks .*nothing was changed: mount it with locks"
        ):
            baselines.update(tmp_path / "a.json", lambda _: BASELINE)
        assert list(tmp_path.iterdir()) == []


def test_without_unnamed_files_the_lock_is_made_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write a folder may lock it."""
    busy = pytest.raises(atomic.BusyError)
    for name, value in (
        ("link", Mock(side_effect=OSError(errno.EOPNOTSUPP, "not supported"))),
        ("O_TMPFILE", os.O_DIRECTORY | os.O_RDWR),  # as old systems take it
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, value)
            with atomic.locked_folder(tmp_path, timeout_s=1) as lock_folder:
                assert (lock_folder.path / ".gitignore").read_text() == "*\n"
                with busy, atomic.locked_folder(tmp_path, timeout_s=0):
                    pass
        assert list(tmp_path.iterdir()) == []

    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    with atomic.locked_folder(shared, timeout_s=1) as lock_folder:
        modes = [
            stat.S_IMODE(one.stat().st_mode)
            for one in (lock_folder.path, lock_folder.path / ".gitignore")
        ]
    assert modes == [0o2770, 0o660]


def test_files_of_another_writer_are_not_removed(tmp_path: Path) -> None:
    """The folder of the first is gone before its end: `git clean`, or a folder that moved."""
    unfinished = f".{'0' * 16}.tmp"
    with contextlib.ExitStack() as second:
        with atomic.locked_folder(tmp_path, timeout_s=1) as lock_folder:
            shutil.rmtree(lock_folder.path)
            second.enter_context(atomic.locked_folder(tmp_path, timeout_s=1))
            (lock_folder.path / unfinished).touch()

        assert sorted(one.name for one in lock_folder.path.iterdir()) == [unfinished, ".gitignore"]
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """A name that is too long, and scores that nothing vouches for."""

    def made(_: object) -> AccuracyBaseline:
        (tmp_path / "x.json").mkdir()
        return accuracy.BASELINE

    for length in (250, 230):
        path = tmp_path / f"{'x' * length}.fp32.json"
        with pytest.raises(BaselineError, match="cannot be written: File name too long"):
            accuracy.save(path, accuracy.BASELINE, acting.OLD)
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(BaselineError, match="cannot be written: Is a directory"):
        accuracy_baselines.replace_scores(tmp_path / "x.json", made, acting.OLD)
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


def test_a_link_is_written_through_within_its_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for name in ("a", "shared"):
        (tmp_path / name).mkdir()
    link, target = tmp_path / "a" / "x.json", tmp_path / "shared" / "y.json"
    link.symlink_to("../shared/y.json")

    baselines.save(link, EMPTY)
    baselines.update(link, lambda old: BASELINE if old == EMPTY else EMPTY)

    assert link.is_symlink()
    assert baselines.load(target) == BASELINE
    assert list(link.parent.iterdir()) == [link]

    acting.accept(str(tmp_path), prepare=True)
    path, link = tmp_path / "baselines" / "torch.fp32.json", tmp_path / "link.json"
    link.symlink_to(path)

    accuracy.save(link, present(accuracy_baselines.load(link))[0], acting.NEW)

    assert accuracy_baselines.load(path) == accuracy_baselines.load(link)
    assert len(list(path.parent.iterdir())) == 2


def test_a_link_that_leads_astray_or_is_in_the_place_of_the_lock_is_not_followed(
    tmp_path: Path,
) -> None:
    folder, elsewhere = tmp_path / "baselines", tmp_path / "elsewhere.json"
    folder.mkdir()
    for name, target, message in (
        ("x.json", "../elsewhere.json", "links to .*/elsewhere.json, outside "),
        ("x.json", "x.json", "a circular link"),
        (atomic.PLACE, "../elsewhere.json", "it is a link; it must be a folder"),
    ):
        (folder / "x.json").unlink(missing_ok=True)
        (folder / name).symlink_to(target)
        with pytest.raises(BaselineError, match=message):
            baselines.save(folder / "x.json", BASELINE)
        assert not elsewhere.exists()


def test_nothing_is_removed_or_written_through_a_name_that_another_user_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.writing`, or the locked folder itself, becomes a link while the lock is taken."""
    victim, lock = tmp_path / "victim", fcntl.flock
    for name in ("team/.writing", "team"):
        (victim / "thesis").mkdir(parents=True)
        (victim / ".gitignore").write_text("")
        (victim / f".{'0' * 16}.tmp").touch()
        victims_files = sorted(victim.rglob("*"))
        path = tmp_path / "team" / "x.json"
        baselines.save(path, EMPTY)

        def swap(descriptor: int, kind: int, swapped: Path = tmp_path / name) -> None:
            lock(descriptor, kind)
            if not swapped.is_symlink():
                swapped.rename(tmp_path / "moved")
                swapped.symlink_to(victim)

        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", swap)
            with contextlib.suppress(BaselineError):
                baselines.save(path, BASELINE)

        assert sorted(victim.rglob("*")) == victims_files
        assert (victim / ".gitignore").read_text() == ""
        for folder in (victim, tmp_path / "moved"):
            shutil.rmtree(folder)
        (tmp_path / name).unlink()


def test_a_folder_that_another_user_renamed_to_the_place_of_the_lock_keeps_its_files(
    tmp_path: Path,
) -> None:
    (tmp_path / atomic.PLACE / "thesis").mkdir(parents=True)
    (tmp_path / atomic.PLACE / "chapter").touch()

    baselines.save(tmp_path / "x.json", EMPTY)

    left = {one.name for one in (tmp_path / atomic.PLACE).iterdir()}
    assert left == {".gitignore", "thesis", "chapter"}


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, "hard link", "link"])
def test_a_lock_that_is_a_link_or_not_a_file_is_refused(
    tmp_path: Path, make: Callable[[Path], object] | str
) -> None:
    victim, lock_folder = tmp_path / "victim", tmp_path / "team" / atomic.PLACE
    victim.touch()
    lock_folder.mkdir(parents=True)
    lock = lock_folder / ".gitignore"
    if callable(make):
        make(lock)
    elif make == "link":
        lock.symlink_to(victim)
    else:
        lock.hardlink_to(victim)

    with pytest.raises(BaselineError, match="cannot be written: "):
        baselines.save(tmp_path / "team" / "x.json", EMPTY)
    assert (victim.read_text(), list(lock_folder.parent.iterdir())) == ("", [lock_folder])


def test_without_descriptors_of_folders_nothing_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "supports_dir_fd", set())
    with pytest.raises(BaselineError, match="has no dir_fd, which shared folders need"):
        baselines.save(tmp_path / "x.json", EMPTY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_report_whose_writer_is_killed_leaves_no_unfinished_file(tmp_path: Path) -> None:
    """A new file never does; one that is replaced does until the next write."""
    for name in ("new", "replace"):
        folder = tmp_path / name
        seen = set()
        for _ in deaths("tests.stores.acting", "report", folder, name):
            files = {one.name for one in folder.iterdir()} if folder.exists() else set()
            seen.add((folder / "r.html").read_text() if "r.html" in files else "")
            assert name == "replace" or files <= {"r.html"}
            if name == "new":
                (folder / "r.html").unlink(missing_ok=True)

        assert seen == ({"", "new"} if name == "new" else {"old", "new"})
        assert {one.name for one in folder.iterdir()} <= {"r.html"}


def test_unfinished_files_of_the_living_and_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "a")
    names = [atomic._temporary_name() for _ in range(4)]
    dead, living, link, pipe = (tmp_path / name for name in names)
    monkeypatch.setattr(socket, "gethostname", lambda: "b")
    elsewhere = tmp_path / atomic._temporary_name()
    monkeypatch.setattr(socket, "gethostname", lambda: "a")
    for unfinished_file in (dead, living, elsewhere):
        unfinished_file.touch()
    link.symlink_to(living)
    os.mkfifo(pipe)

    with living.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        atomic.write_text(tmp_path / "r.html", "new")

    assert not dead.exists()
    assert {one.name for one in tmp_path.iterdir()} == {
        *(living.name, link.name, pipe.name, elsewhere.name, "r.html")
    }


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which file system, and its free space; the message asks for no bug report."""
    disk = r"\(file system /.*: [0-9.,]+ MiB free\)"
    path = tmp_path / "x.json"
    with monkeypatch.context() as patch:
        for function in ("write", "pwrite"):  # not even the lock can be written
            patch.setattr(os, function, Mock(side_effect=OSError(errno.ENOSPC, "full")))
        with pytest.raises(BaselineError, match=rf"cannot be written: full {disk}"):
            baselines.save(path, EMPTY)
        assert list(tmp_path.iterdir()) == []
    for number, words in ((errno.ENOSPC, "No space left on device"), (errno.EDQUOT, "quota")):
        monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(number, os.strerror(number))))
        with pytest.raises(BaselineError, match=rf"{words}.* {disk}; .*free some space"):
            baselines.save(path, EMPTY)
        with pytest.raises(MlperfError, match=rf"{words}.* {disk}"):
            atomic.write_whole(path, "")
        keeping = atomic.WriteMessages()
        keeping.try_write("the journal", lambda: atomic.write_text(path, ""))
        assert re.search(rf"x.json: .*{words}.* {disk}; free some space", keeping.lines[0])
    assert list(tmp_path.iterdir()) == []


def endless(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**33)


def test_special_and_too_large_files_are_one_sentence(tmp_path: Path) -> None:
    makers: dict[str, Callable[[Path], object]] = {
        "a pipe": os.mkfifo,
        "a device": lambda path: path.symlink_to("/dev/zero"),
        "larger than": endless,
        "a folder": Path.mkdir,
    }
    for number, (message, make) in enumerate(makers.items()):
        path = tmp_path / f"{number}.json"
        make(path)
        for read in (baselines.load, accuracy_baselines.load, read_results):
            with pytest.raises(MlperfError, match=rf"{number}\.json: .*{message}"):
                read(path)
