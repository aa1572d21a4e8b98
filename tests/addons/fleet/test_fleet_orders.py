"""What a node gets: the project, its tests and options; and what comes back from it."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from pytest_mlperf import __version__
from pytest_mlperf.addons.fleet import node, running, shipping
from pytest_mlperf.addons.fleet.node import NodeCase, is_of
from pytest_mlperf.addons.fleet.orders import CaseGroup, arguments, describe_case
from pytest_mlperf.addons.fleet.placement import need_of
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.plugin.options import read_options
from tests.plugin.project import Project


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name, "utf-8")


def names_in(content: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return archive.getnames()


@pytest.mark.process
def test_a_project_in_git_travels_as_git_would_keep_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    write(tmp_path, "suites/a.mlperf.toml", "model.bin", ".mlperf/runs/x", "new.py")
    write(tmp_path, "baselines/cpu/a.json")
    (tmp_path / ".gitignore").write_text("*.bin\n", "utf-8")

    content, digest = shipping.pack(tmp_path)

    assert names_in(content) == [
        ".gitignore", "baselines/cpu/a.json", "new.py", "suites/a.mlperf.toml", "baselines",
    ]  # fmt: skip
    assert shipping.pack(tmp_path) == (content, digest)


@pytest.mark.process
def test_a_project_without_git_is_copied_without_its_excluded_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is too large is refused with its largest file."""
    write(tmp_path, "suites/a.mlperf.toml", ".venv/bin/python", "__pycache__/a.pyc", "b.py")
    (tmp_path / "baselines").mkdir()

    assert names_in(shipping.pack(tmp_path)[0]) == ["b.py", "suites/a.mlperf.toml", "baselines"]

    monkeypatch.setattr(shipping, "LIMIT", 1 << 20)
    (tmp_path / "weights.bin").write_bytes(bytes(1 << 20))
    with pytest.raises(MlperfError, match=r"more than 1 MB .*\(the largest file: weights.bin\)"):
        shipping.pack(tmp_path)


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="needs Python 3.11.4")
@pytest.mark.process
def test_a_project_is_unpacked_once_and_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(node.FOLDER_VARIABLE, str(tmp_path / "nodes"))
    write(tmp_path / "project", "suites/a.mlperf.toml")
    content, digest = shipping.pack(tmp_path / "project")

    first = node.unpacked(content, digest, "project")
    write(first, ".mlperf/runs/kept")
    second = node.unpacked(content, digest, "project")

    assert first == second
    assert (first / ".mlperf/runs/kept").is_file()
    assert (first / "suites/a.mlperf.toml").read_text("utf-8") == "suites/a.mlperf.toml"
    monkeypatch.setattr(node, "MAX_PROJECT_SECONDS", -1.0)
    assert node.unpacked(content, "f" * 64, "project").is_dir()
    assert not first.exists()


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="needs Python 3.11.4")
def test_returned_files_stay_inside_their_folder(tmp_path: Path) -> None:
    archive = tmp_path / "case.tar"
    with tarfile.open(archive, "w") as packed:
        for name in ("runs-dir/runs/1/a.1/run.json", "project/baselines/cpu/a.json"):
            member = tarfile.TarInfo(name)
            member.size = 1
            packed.addfile(member, io.BytesIO(b"x"))

    shipping.unpack_results(archive, runs_dir=tmp_path / "runs-dir", root=tmp_path / "root")

    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"runs-dir/runs/1/a.1/run.json", "root/baselines/cpu/a.json"}

    with tarfile.open(archive, "w") as packed:
        packed.addfile(tarfile.TarInfo("project/../../outside"))
    with pytest.raises(tarfile.OutsideDestinationError):
        shipping.unpack_results(archive, runs_dir=tmp_path / "runs-dir", root=tmp_path / "root")


def test_options_reach_a_node_but_for_those_of_the_session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies below the project lies there; any other path is the node's own."""
    root = pytester.path
    monkeypatch.delenv("PYTEST_ADDOPTS")
    config = pytester.parseconfig(
        "--rootdir", root, "-p", "no:doctest", "-W", "ignore:x", "-o", "mlperf_json=a.json",
        "-omlperf_power=off", "--mlperf-on=head:1", "--mlperf-json=b.json",
        "--mlperf-baselines=here", "--mlperf-handicap=50%", "--mlperf-confirm",
        "--mlperf-store=sqlite", "-x", "--mlperf-meter=/log/meter.csv", "--mlperf-plan",
    )  # fmt: skip

    words = list(arguments(config, read_options(config)))

    emptied = [
        word
        for name in ("json", "manifest", "on", "resume", "sign", "store", "suspects")
        for word in ("-o", f"mlperf_{name}=")
    ]
    assert words == [
        "-p", "no:doctest", "-W", "ignore:x", "-o", "mlperf_power=off", *emptied,
        "--mlperf-baselines={project}/here", "--mlperf-meter=/log/meter.csv",
        "--mlperf-confirm=always", "--mlperf-handicap=50%",
        "--mlperf-runs-dir={project}/.mlperf", "--mlperf-on=local",
    ]  # fmt: skip


def test_a_node_with_another_version_measures_nothing(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("--mlperf-on=head:1")
    group = CaseGroup("case-1", "a", need_of([(1, "cpu")]), ("a",))
    order = describe_case(
        group, config, read_options(config), digest="0", worker={"mlperf_run": "1"}
    )

    refused, over = NodeCase().begin({**order, "version": "0.0.7"}, b"")

    assert refused["cause"] == (
        f"the node has pytest-mlperf {__version__}, your machine 0.0.7; install the same version "
        "on both"
    )
    assert (over["topic"], over["ended"]) == ("over", "was not started")


def test_a_case_sends_its_runs_and_no_others() -> None:
    rows = {
        ("a-Offline", "a-Offline.1"): True,
        ("a-Offline", "a-Offline"): True,
        ("a-Offline", "a-Offline-b.1"): False,
        ("a.b", "axb.1"): False,
        ("", "anything"): True,
    }
    assert {names: is_of(*names) for names in rows} == rows


def test_without_ray_one_line_says_how_to_get_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.suite()
    monkeypatch.setattr(running, "find_spec", lambda name: None)
    monkeypatch.setattr(tarfile, "data_filter", None, raising=False)  # as of Python 3.11.4

    result = project.run("suites", "--mlperf-on", "ray://head:10001")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        "ERROR: --mlperf-on ray://head:10001: Ray is not installed here: pip install "
        "'pytest-mlperf[ray]', and use the same Ray version as the cluster"
    ]


def test_a_python_that_cannot_refuse_hostile_archives_has_no_fleet(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.suite()
    monkeypatch.delattr(tarfile, "data_filter", raising=False)

    result = project.run("suites", "--mlperf-on", "ray://head:10001")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Python 3.11.4" in result.stderr.str()
