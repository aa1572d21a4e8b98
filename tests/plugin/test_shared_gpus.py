"""More cases than GPUs, of two sessions at once: each GPU has one case at a time, none is lost."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from tests.nvml.library import Fake, scenario
from tests.plugin.project import LIGHT, SUITE, Project
from tests.plugin.test_efficiency import ENGINE, MEETS_FOUR, OFFLINE, WORKING

ALONE = """
from pathlib import Path

from working import NUMBER, NullEngine, Working

HELD = Path(f"held.{NUMBER}")


class Alone(Working):
    # The second to load on a GPU would find the file of the first.
    def __enter__(self):
        HELD.touch(exist_ok=False)
        with open("loads", "a") as loads:
            loads.write(f"{NUMBER}\\n")
        self.work("device\\nutil 95 40")
        return NullEngine.__enter__(self)

    def __exit__(self, *error):
        super().__exit__(*error)
        HELD.unlink()
"""


@pytest.fixture
def two_gpus(tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two H200 that draw 500 W, and an engine that shows their work."""
    fake = Fake(tmp_path)
    fake.write(*scenario("wave const 500"), "device", "wave const 500")
    for name, value in fake.environment.items():
        if name in {"LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"}:
            monkeypatch.setenv(name, value)
    project.pytester.makepyfile(working=WORKING + MEETS_FOUR, alone=ALONE)


@pytest.mark.nightly
@pytest.mark.usefixtures("two_gpus")
def test_two_sessions_share_fewer_gpus_than_they_have_cases(project: Project) -> None:
    entry = ENGINE.replace("working:Working", "alone:Alone")
    entries = [entry.replace("use =", f'name = "e{n}"\nuse =') for n in range(2)]
    project.suite(engines="".join(entries), scenarios=OFFLINE)
    shared = ("-n2", "-omlperf_neighbours=yes", "-omlperf_control=off", "-omlperf_warmup=never")

    def start(name: str) -> subprocess.Popen[str]:
        options = [f"--mlperf-runs-dir={name}", f"--mlperf-baselines={name}/baselines"]
        options += ["-k", "performance", "-p", "no:cacheprovider", *shared]
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *LIGHT, *options, SUITE],
            cwd=project.path,
            stdout=subprocess.PIPE,
            text=True,
        )

    with start("one") as first, start("two") as second:
        printed = [first.communicate()[0], second.communicate()[0]]

    cases = [
        case
        for file in project.path.glob("*/runs/*/results.json")
        for case in read_results(file).cases
    ]
    outcomes = Counter(case.verdict.outcome for case in cases)
    assert outcomes == {Outcome.NO_BASELINE: 4}, "\n".join(printed)
    loads = (project.path / "loads").read_text("utf-8").split()
    assert set(loads) == {"0", "1"}
    assert not list(project.path.glob("held.*"))
