"""A worker of another build: another environment, a command as of a container, a commit in git."""

from __future__ import annotations

import ast
import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import MlperfError, RunError, UnavailableError
from pytest_mlperf.core.job import EarlierBuild
from pytest_mlperf.core.paths import placeless
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.run import builds
from pytest_mlperf.run.builds import Build, baseline_build
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.measure import ProcessResult, ProcessTask, measure
from pytest_mlperf.suite.environments import earlier_build
from pytest_mlperf.suite.plan import Planned, plan_suite
from tests.jobs import job_of
from tests.run import other_python
from tests.run.harness import LIMIT_S
from tests.run.other_python import ENGINE, IS_OLDER, PASSES_ON_NOTHING, git

pytestmark = pytest.mark.process

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
dataset = {{ use = "synthetic", samples = 32 }}
[[engines]]
use = "acme:Acme"
{}
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "100ms"
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_python.environment(tmp_path_factory.mktemp("other") / "old")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an engine of its own, as pytest would have it on its import path."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "acme.py").write_text(ENGINE, "utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "leases"))
    return folder


def committed(project: Path) -> None:
    """Let a commit, tagged v1, hold version 1.0 of the engine, and the files version 2.0."""
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "acme.py")
    git(project, "commit", "-q", "-m", "one")
    git(project, "tag", "v1")
    (project / "acme.py").write_text(ENGINE.replace('"1.0"', '"2.0"'), "utf-8")


def planned(
    project: Path, baseline_engine: str, entry: str = "", *, use: str = "acme:Acme"
) -> Planned:
    """Return the case; `entry` has the engine entry's keys about the environment of every run."""
    file = project / "s.mlperf.toml"
    named = f"baseline_engine = {baseline_engine}\n{entry}"
    file.write_text(SUITE.format(named).replace("acme:Acme", use), "utf-8")
    (only,) = plan_suite(file)
    return only


def conditions(folder: Path) -> Conditions:
    return Conditions(
        folder=folder / "runs",
        session="s",
        patience=Patience(progress_s=LIMIT_S),
        lease_limit_s=LIMIT_S,
        machine=detect(gpus=False),
        control=False,
    )


def run(case: Planned, folder: Path, build: Build | None) -> ProcessResult:
    return measure(
        job_of(case),
        conditions(folder),
        lambda _: None,
        ProcessTask(
            target_qps=500.0, performance=True, ask=None, number=1, title="run 1", build=build
        ),
    )


def earlier(case: Planned) -> EarlierBuild:
    named = earlier_build(case)
    assert named is not None
    return named


def run_baseline(case: Planned, folder: Path) -> ProcessResult:
    with baseline_build(earlier(case), folder / "runs", "build") as build:
        return run(case, folder, build)


def test_the_other_python_runs_with_a_copy_of_this_package(
    project: Path, tmp_path: Path, python: Path
) -> None:
    """Its prefix is in the fingerprint; the project's own code is found; the copy is gone after."""
    outcome = run_baseline(planned(project, f'{{ python = "{python}" }}'), tmp_path)

    facts = outcome.subject.fingerprint
    assert facts["python.prefix"] == placeless(str(python.parents[1])) != sys.prefix
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["python.numpy"] == version("numpy")
    assert facts["build"] == placeless(f"python {python}")
    assert facts["engine.file"] == placeless(str(project / "acme.py"))
    assert facts["engine.plugin"] == "code"
    assert outcome.run is not None
    assert outcome.run.metrics["throughput"] == pytest.approx(500, rel=0.5)
    assert Path(outcome.run.folder).parent.name == "mine-Offline-Acme-fp32-cpu.baseline-build.1"
    assert not (tmp_path / "runs/build").exists()


def test_every_run_of_an_entry_that_names_a_python_is_there(
    project: Path, tmp_path: Path, python: Path
) -> None:
    """A run of no other build says nothing of its Python."""
    own_entry_run = run(planned(project, '{ python = "/there/is/none" }'), tmp_path / "own", None)
    assert not {"build", "python", "python.prefix"} & set(own_entry_run.subject.fingerprint)

    outcome = run(planned(project, '{ git = "v1" }', f'python = "{python}"'), tmp_path, None)

    facts = dict(outcome.subject.fingerprint)
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    for name in ("numpy", "mlcommons-loadgen"):
        assert facts[f"python.{name}"] == version(name)
    assert facts.pop("engine.prefix") == placeless(str(python.parents[1])) != sys.prefix
    assert facts.pop("engine.plugin") == "code"
    assert facts.pop("engine.file") == placeless(str(project / "acme.py"))
    assert [path for path in (tmp_path, python.parents[2]) if str(path) in str(facts)] == []
    assert outcome.run is not None
    folder = Path(outcome.run.folder).parent
    assert folder.name == "mine-Offline-Acme-fp32-cpu.1"
    assert not (folder / "code").exists()


def test_the_build_of_the_baseline_is_stronger_than_the_entry(
    project: Path, tmp_path: Path, python: Path
) -> None:
    """Another environment of a baseline's own; a ref in git is run where the entry runs."""
    committed(project)
    own_python = other_python.environment(tmp_path / "own")
    for build, prefix, acme in (
        (f'{{ python = "{python}" }}', python, "2.0"),
        ('{ git = "HEAD" }', own_python, "1.0"),
    ):
        case = planned(project, build, f'python = "{own_python}"')
        facts = run_baseline(case, tmp_path).subject.fingerprint
        assert facts["engine.prefix"] == placeless(str(prefix.parents[1]))
        assert facts["engine.acme"] == acme
    assert facts["build"].endswith(placeless(f") in python {own_python}"))


def test_a_python_that_is_too_old_says_so_in_one_sentence(project: Path, tmp_path: Path) -> None:
    script = Path(builds.__file__).parent / "child" / "environments.py"
    ast.parse(script.read_text("utf-8"), feature_version=(3, 7))
    older = tmp_path / "older"
    older.write_text(IS_OLDER, "utf-8")
    older.chmod(0o755)

    with pytest.raises(RunError) as raised:
        run(planned(project, '{ git = "v1" }', f'python = "{older}"'), tmp_path, None)

    assert str(raised.value) == (
        f"{sys.executable} (engines[0].python) is Python 3.10.14; workers need 3.11 or newer"
    )


def test_a_python_is_named_by_variable_home_suite_or_command(
    project: Path, tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command needs to pass on three streams, as docker run does."""
    monkeypatch.setenv("OLD", str(tmp_path / "old"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "old").symlink_to(python.parents[1])
    for python_path in ("${OLD}/bin/python", "~/old/bin/python", "../old/bin/python"):
        case = planned(project, f'{{ python = "{python_path}" }}')
        with baseline_build(earlier(case), tmp_path, "build") as build:
            (named,) = build.python
        assert Path(named).parent.resolve() == python.parent.resolve()
        assert Path(named).name == "python"

    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(PASSES_ON_NOTHING, "utf-8")
    command = json.dumps([sys.executable, str(wrapper), str(python)])
    outcome = run_baseline(planned(project, f"{{ command = {command} }}"), tmp_path)
    assert outcome.subject.fingerprint["python.prefix"] == placeless(str(python.parents[1]))


def test_a_git_ref_is_run_from_a_tree_of_its_own(project: Path, tmp_path: Path) -> None:
    """The tested project's code is that of the ref; neither tree nor entry in git stays."""
    committed(project)
    hook = project / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n", "utf-8")
    hook.chmod(0o755)
    case = planned(project, '{ git = "v1" }')

    then = run_baseline(case, tmp_path).subject.fingerprint
    current = run(case, tmp_path, None).subject.fingerprint

    assert (then["engine.acme"], current["engine.acme"]) == ("1.0", "2.0")
    assert then["build"] == f"git v1 ({git(project, 'rev-parse', 'v1')[:12]})"
    assert len(git(project, "worktree", "list").splitlines()) == 1
    assert not (tmp_path / "hook-ran").exists()


LIBRARY = """
import dialect


class Dialect(Acme):
    def describe(self):
        return {"dialect": dialect.VERSION}
"""


@pytest.fixture
def dialect(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of another project: version 2.0 is installed here, 1.0 is a wheel."""
    here = project.parent / "site-packages"
    here.mkdir()
    (here / "dialect.py").write_text('VERSION = "2.0"\n', "utf-8")
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(project))
    with (project / "acme.py").open("a", encoding="utf-8") as file:
        file.write(LIBRARY)
    return other_python.wheel(project, "dialect", "1.0")


@pytest.mark.parametrize(
    "named",
    ["dialect-1.0-py3-none-any.whl", pytest.param("dialect==1.0", marks=pytest.mark.nightly)],
)
def test_a_wheel_of_another_version_comes_before_today_s(
    project: Path, tmp_path: Path, dialect: Path, named: str
) -> None:
    wheels = tmp_path / "wheels"  # two folders above a session's
    inside, content = tmp_path / "mlperf", dialect.read_bytes()
    case = planned(project, f'{{ wheel = "{named}" }}', use="acme:Dialect")
    then = run_baseline(case, inside).subject.fingerprint
    assert (then["engine.dialect"], then["build"]) == ("1.0", f"wheel {named}")
    dialect.unlink()  # what was installed once is found again
    if named == dialect.name:
        dialect.write_bytes(content)
    with baseline_build(earlier(case), inside / "runs", "again") as build:
        assert build.first == [str(path) for path in wheels.iterdir()]
    assert run(case, inside, None).subject.fingerprint["engine.dialect"] == "2.0"


def test_an_unavailable_wheel_names_the_remedy(
    project: Path, tmp_path: Path, dialect: Path
) -> None:
    case = planned(project, '{ wheel = "dialect==0.9" }')

    with pytest.raises(RunError) as raised:
        run_baseline(case, tmp_path / "mlperf")

    assert str(raised.value).startswith(f"dialect==0.9 cannot be installed by {sys.executable}")
    assert "No matching distribution found for dialect==0.9" in str(raised.value)
    assert str(raised.value).endswith("a .whl file, or set PIP_FIND_LINKS to a folder of them")
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_module_that_the_ref_lacks_is_not_taken_from_today(project: Path, tmp_path: Path) -> None:
    """The tree is removed when the run breaks, and when it is interrupted."""
    git(project, "init", "-q", "-b", "main")
    git(project, "commit", "-q", "--allow-empty", "-m", "nothing")
    case = planned(project, '{ git = "HEAD" }')

    def interrupted() -> None:
        with baseline_build(earlier(case), tmp_path, "build"):
            assert len(git(project, "worktree", "list").splitlines()) == 2
            raise KeyboardInterrupt

    with pytest.raises(RunError, match=r"acme:Acme.* cannot be imported"):
        run_baseline(case, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert len(git(project, "worktree", "list").splitlines()) == 1
    assert not (tmp_path / "build").exists()


def test_an_unavailable_environment_is_one_clear_error(
    project: Path, tmp_path: Path, python: Path
) -> None:
    cases: list[tuple[str, type[MlperfError], str]] = [
        ('git = "HEAD"', RunError, "not a git repository"),
        ('python = "${NO_SUCH}/python"', UnavailableError, "NO_SUCH.* not set"),
        ('python = "/there/is/none"', UnavailableError, "/there/is/none, is not a program here"),
        ('python = "."', UnavailableError, "is not a program here"),
        (f'python = "{python.parents[1]}"', UnavailableError, r"did you mean .*/bin/python"),
        ('command = ["/there/is/none"]', UnavailableError, "/there/is/none, is not a program here"),
        ('command = ["false"]', RunError, "ended with exit code 1 during start"),
        ('command = ["echo"]', RunError, r"does not start a Python: .*no JSON"),
        ('wheel = "dist/none-1.0-py3-none-any.whl"', UnavailableError, "none.* is not a file here"),
        ('git = "v9"', RunError, "v9 is not a commit of this clone: git fetch"),
    ]
    for engine, kind, message in cases:
        if engine == 'git = "v9"':
            git(project, "init", "-q")
        with pytest.raises(kind, match=message):
            run_baseline(planned(project, f"{{ {engine} }}"), tmp_path)
        assert not (tmp_path / "runs/build").exists()


def test_the_other_environment_needs_numpy_and_loadgen_only(project: Path, tmp_path: Path) -> None:
    bare = other_python.environment(tmp_path / "bare")
    (packages,) = bare.parents[1].glob("lib/python*/site-packages")
    (packages / "shared.pth").unlink()
    case = planned(project, f'{{ python = "{bare}" }}')
    with pytest.raises(RunError, match="lacks numpy and mlcommons-loadgen: install them"):
        run_baseline(case, tmp_path)

    for pattern in ("numpy", "numpy.libs", "mlperf_loadgen*"):
        shared = [Path(entry) for entry in sys.path if entry.endswith("site-packages")]
        for module_path in (path for folder in shared for path in folder.glob(pattern)):
            (packages / module_path.name).symlink_to(module_path)
    facts = run_baseline(case, tmp_path).subject.fingerprint

    assert facts["python.prefix"] == placeless(str(bare.parents[1]))
