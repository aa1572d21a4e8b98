"""Test `pytest-mlperf slurm`: arrays of jobs, and one that merges their results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.addons.fleet.slurm import ARRAY_LIMIT
from pytest_mlperf.stores.results import read_results
from tests.cli.text import Say, finished
from tests.conftest import LEAN

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "{name}"
dataset = {{ use = "synthetic", samples = 32 }}
[[engines]]
use = "null"
accelerators = {accelerators}
options = {{ latency_s = 0.002, batch_size = 16, threads = 1 }}
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "100ms"
"""

SBATCH = """\
#!/bin/bash
# Runs at once what is submitted, as a cluster would later; LOST: array jobs that never start.
set -eu
printf '%s\\n' "$*" >> calls
id=$((100 + $(wc -l < calls)))
array="" output=""
while [ "${1#--}" != "$1" ]; do
  case $1 in
    --array=*) array=${1#--array=} ;;
    --output=*) output=${1#--output=} ;;
    --refuse) echo "sbatch: error: invalid option" >&2; exit 1 ;;
  esac
  shift
done
if [ -n "$array" ]; then
  for job in $(seq "${array%-*}" "${array#*-}"); do
    case " ${LOST:-} " in *" $job "*) continue ;; esac
    SLURM_ARRAY_TASK_ID=$job bash "$@" > "${output//%a/$job}" 2>&1 || true
  done
else
  code=0
  bash "$@" > "$output" 2>&1 || code=$?
  echo "$code" > exit_code
fi
echo "$id;cluster"
"""

SCANCEL = """\
#!/bin/bash
echo "$*" >> cancelled
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project on a simulated Slurm that runs everything at once, on this machine."""
    folder = tmp_path / "project"
    (folder / "suites").mkdir(parents=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (tools / name).write_text(text, "utf-8")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MLPERF_RESULTS", "out")
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{LEAN} -omlperf_control=off")
    monkeypatch.chdir(folder)
    return folder


def suite(file: str, name: str, accelerators: str = '["cpu"]') -> None:
    Path("suites", file).write_text(SUITE.format(name=name, accelerators=accelerators), "utf-8")


def script(say: Say, *options: str) -> str:
    Path("plan.json").write_text(say.ends(0, "plan", "--format", "json", *options), "utf-8")
    text = say.ends(0, "slurm", "plan.json")
    Path("mlperf.sh").write_text(text, "utf-8")
    return text


def planned(text: str) -> object:
    """Return the plan that a script holds."""
    return json.loads(text.partition("'END OF THE PLAN'\n")[2].partition("\nEND OF THE PLAN\n")[0])


def submit(*options: str) -> subprocess.CompletedProcess[str]:
    return finished("bash", "mlperf.sh", *options, timeout=120)


@pytest.mark.process
def test_jobs_measure_a_suite_each_and_the_last_one_judges(
    cluster: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of files are words of the script, never its commands.

    A job that never ran fails the last one, unless nothing of it was planned.
    """
    suite("a.mlperf.toml", "a")
    suite("it's $(touch pwned) b.mlperf.toml", "b")
    script(say)
    monkeypatch.setenv("LOST", "0")
    done = submit("--partition=gpu", "--account=our team")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "submitted arrays 101 and job 102, which joins them\n"
        "verdict: out/merge.log, results: out/results.json\n"
    )
    array, last = Path("calls").read_text("utf-8").splitlines()
    assert array.startswith("--parsable --job-name=mlperf-cpu --array=0-1 --time=30 --exclusive ")
    assert " --signal=B:INT@120 " in array
    assert "--partition=gpu --account=our team" in array
    assert "--gres=none --dependency=afterany:101" in last
    assert Path("exit_code").read_text("utf-8") == "1\n"
    log = Path("out/merge.log").read_text("utf-8")
    assert "INCOMPLETE: 1 of 2 planned tests have no result" in log
    assert "a.mlperf.toml::test_performance[a-Offline-null-fp32-cpu]" in log

    manifest = json.loads(Path("out/plan.json").read_text("utf-8"))
    manifest["tests"] = [test for test in manifest["tests"] if "pwned" in test["test"]]
    Path("out/plan.json").write_text(json.dumps(manifest), "utf-8")
    assert submit("--merge", "out").returncode == 0
    (merged,) = read_results(Path("out/results.json")).cases
    assert (merged.verdict.case.workload, merged.failed) == ("b", False)
    assert Path("out/junit.xml").is_file()
    assert not Path("pwned").exists()


def test_each_accelerator_has_an_array_with_its_gpus_and_time(
    cluster: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last job looks for the arrays' results; an array that Slurm would refuse is refused."""
    suite("a.mlperf.toml", "a", '["H200", "8xH200", "cpu"]')
    text = script(say, "--profile", "official")
    assert [line for line in text.splitlines() if line.startswith("submit ")] == [
        'submit 8xH200 0 176 --gres=gpu:h200:8 "$@"',
        'submit H200 0 176 --gres=gpu:h200:1 "$@"',
        'submit cpu 0 151 "$@"',
    ]
    assert text.count(" --mlperf-profile=official") == 1
    assert planned(text) == json.loads(Path("plan.json").read_text("utf-8"))
    only = script(say, "suites/a.mlperf.toml", "--accelerator", "H200")
    assert only.count("\nsubmit ") == 1
    suite("a.mlperf.toml", "a", '["H200", "cpu"]')
    how = ("--fleet", "cpu", "--fleet", "B200", "--max-runs", "7", "--compliance")
    text = script(say, *how)
    assert text.count("\nsubmit ") == 1
    assert '="$2" --mlperf-max-runs=7 --mlperf-compliance ' in text

    assert ARRAY_LIMIT == 1001
    monkeypatch.setattr("pytest_mlperf.addons.fleet.slurm.ARRAY_LIMIT", 3)
    for number in range(3):
        suite(f"s{number}.mlperf.toml", f"s{number}")
    Path("plan.json").write_text(say.ends(0, "plan", "--format", "json"), "utf-8")
    assert say("slurm", "plan.json") == (
        2,
        "pytest-mlperf: the plan has 4 suite files on cpu; a Slurm job array has at most 3 jobs: "
        "plan fewer suites\n",
    )


@pytest.mark.process
def test_engines_that_start_ranks_do_not_see_the_job(
    cluster: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPI would allow them the one task that sbatch asked for."""
    suite("a.mlperf.toml", "a")
    script(say)
    seen = cluster.parent / "tools" / "python"
    seen.write_text('#!/bin/sh\nprintf "%s\\n" "$@"; env\n', "utf-8")
    seen.chmod(0o755)
    monkeypatch.setenv("MLPERF_PYTHON", str(seen))
    for name in ("SLURM_ARRAY_TASK_ID", "SLURM_NTASKS", "PMIX_RANK", "PMI_RANK", "OMPI_X"):
        monkeypatch.setenv(name, "0")
    done = submit("--measure", "cpu", "out")
    assert done.stdout.splitlines()[2] == "suites/a.mlperf.toml"
    assert "--mlperf-json=out/parts/cpu.0.json" in done.stdout
    assert not [
        line for line in done.stdout.splitlines() if line.startswith(("SLURM", "PM", "OMPI"))
    ]


@pytest.mark.process
def test_jobs_submitted_before_an_error_are_cancelled(
    cluster: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOST", "0")
    suite("a.mlperf.toml", "a")
    suite("b.mlperf.toml", "b", '["H200", "cpu"]')
    text = script(say)
    refused = text.replace('submit cpu 1 30 "$@"', 'submit cpu 1 30 --refuse "$@"')
    Path("mlperf.sh").write_text(refused, "utf-8")
    done = submit()
    assert done.returncode == 1
    assert done.stderr == "sbatch: error: invalid option\n"
    assert Path("cancelled").read_text("utf-8") == "101\n"
    assert not Path("exit_code").exists()


@pytest.mark.process
def test_shellcheck_passes_the_script(cluster: Path, say: Say) -> None:
    bin_folder = str(Path(sys.executable).parent)
    shellcheck = shutil.which("shellcheck", path=f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    suite("a.mlperf.toml", "a", '["H200", "cpu"]')
    for options in ((), ("--profile", "quick", "--accelerator", "H200")):
        script(say, *options)
        done = finished(shellcheck, "mlperf.sh", timeout=60)
        assert (done.returncode, done.stdout) == (0, "")
