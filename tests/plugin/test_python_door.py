"""Code of one's own enters through a test: `mlperf.run(engine=..., dataset=...)`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome
from tests.plugin.project import Project, last_line

MINE = """
import time
import pytest
from pytest_mlperf.core.extension import Engine

class Ranker(Engine):
    def __init__(self, dataset, model, precision, *, k=1):
        self.dataset, self.k = dataset, k

    def submit(self, ids, indices, sink):
        assert self.dataset.input(indices[0])["question"] == indices[0]
        time.sleep(0.002 * len(ids))
        sink.done(ids, [b"answer"] * len(ids))

    def describe(self):
        return {"k": str(self.k)}

def ranker(dataset, model, precision, *, k=1):
    return Ranker(dataset, model, precision, k=k)

def samples(count=32):
    return [{"question": i} for i in range(count)]

SHORT = {"min_duration": "100ms", "target_qps": 500}
offline = pytest.mark.mlperf(workload="mine", scenario="Offline")
"""


def write(project: Project, tests: str, file: str = "test_mine.py") -> None:
    path = project.path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(MINE + tests, "utf-8")


@pytest.mark.parametrize(
    ("engine", "name", "dataset"),
    [
        ("Ranker", "Ranker", "samples"),
        ("ranker", "ranker", "samples"),
        ("'test_mine:Ranker'", "Ranker", "'test_mine:samples'"),
    ],
    ids=["class", "function", "text"],
)
def test_engine_and_data_set_of_the_test_module_are_built_in_the_worker(
    project: Project, engine: str, name: str, dataset: str
) -> None:
    write(
        project,
        f"""
@offline
def test_my_ranker(mlperf):
    result = mlperf.run(engine={engine}, options={{"k": 10}}, dataset={dataset}, **SHORT)
    result.check()
""",
    )

    result = project.run("-v")

    result.stdout.fnmatch_lines(["test_mine.py::test_my_ranker NO BASELINE *"])
    (found,) = project.results().cases
    assert found.verdict.case.id == f"mine-Offline-{name}-fp32-cpu"
    assert found.verdict.subject is not None
    assert found.verdict.subject.fingerprint["engine.k"] == "10"
    line = (project.path / "test_mine.py").read_text("utf-8").splitlines().index("@offline") + 1
    assert (found.suite, found.line) == ("test_mine.py", line)


def test_a_list_of_json_samples_is_a_data_set_known_by_its_content(project: Project) -> None:
    write(
        project,
        """
@offline
def test_my_ranker(mlperf):
    mlperf.run(engine=Ranker, dataset=samples, dataset_options={"count": 20}, **SHORT).check()
""",
    )

    project.run()

    (found,) = project.results().cases
    text = json.dumps([{"question": i} for i in range(20)], sort_keys=True)
    assert found.verdict.subject is not None
    assert found.verdict.subject.fingerprint["dataset"] == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("mode", ["prepend", "append", "importlib"])
def test_the_worker_imports_a_test_module_from_any_folder_that_pytest_found_it_in(
    project: Project, mode: str
) -> None:
    write(
        project,
        """
@offline
def test_my_ranker(mlperf):
    mlperf.run(engine=Ranker, dataset=samples, **SHORT).check()
""",
        "checks/test_deep.py",
    )

    result = project.run("checks", f"--import-mode={mode}")

    assert last_line(result) == "1 no baseline"


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        ("[]", "the data set is an empty list; at least one sample is needed"),
        ("[object()]", "the samples of a list must be JSON values: "),
    ],
)
def test_a_list_that_holds_no_json_samples_is_refused(
    project: Project, dataset: str, reason: str
) -> None:
    write(
        project,
        f"""
def wrong():
    return {dataset}

@offline
def test_my_ranker(mlperf):
    mlperf.run(engine=Ranker, dataset=wrong, **SHORT).check()
""",
    )

    result = project.run()

    result.stdout.fnmatch_lines([f"ERROR dataset: {reason}*"])
    assert last_line(result) == "1 failed"


@pytest.mark.parametrize(
    "engine",
    ["Ranker(None, None, None)", "lambda **given: None", "Local", "Outer.Inner"],
)
@pytest.mark.parametrize("place", ["engine", "dataset"])
def test_what_another_process_cannot_import_is_refused_with_one_sentence(
    project: Project, engine: str, place: str
) -> None:
    given = {"engine": "Ranker", "dataset": "samples", place: engine}
    write(
        project,
        f"""
class Outer:
    class Inner(Ranker):
        pass

@offline
def test_my_ranker(mlperf):
    class Local(Ranker):
        pass

    mlperf.run(engine={given["engine"]}, dataset={given["dataset"]}, **SHORT).check()
""",
    )

    result = project.run()

    result.stdout.fnmatch_lines(
        [
            "E *SuiteError: * cannot be built in the worker process: give a class, a module-level "
            'function or "package.module:name"; instances, lambdas and local classes are refused',
            "test_mine.py:*: SuiteError",
        ]
    )
    result.stdout.no_fnmatch_line("*def importable*")
    assert project.run_folders() == []


@pytest.mark.parametrize(
    ("marker", "arguments", "message"),
    [
        (
            "",
            "",
            'mlperf.run needs @pytest.mark.mlperf(workload="...", scenario="...") on the test',
        ),
        ("@pytest.mark.mlperf(scenario='Oflin')", "", "*scenario*Offline*"),
        ("@pytest.mark.mlperf(workload='mine', sceanrio='Offline')", "", "*unknown*sceanrio*"),
        ("@offline", ", options={'kk': 1}", "*has no option 'kk'; did you mean 'k'?*"),
        ("@offline", ", min_duration=5", "*min_duration*5*"),
    ],
    ids=["no marker", "scenario", "marker key", "option", "duration"],
)
def test_a_wrong_marker_or_argument_fails_the_test_and_says_why(
    project: Project, marker: str, arguments: str, message: str
) -> None:
    write(
        project,
        f"""
{marker}
def test_my_ranker(mlperf):
    mlperf.run(engine=Ranker, dataset=samples{arguments}).check()
""",
    )

    result = project.run()

    result.stdout.fnmatch_lines([f"*{message}*"])
    assert last_line(result) == "1 failed"


def test_two_tests_cannot_give_one_case_different_settings(project: Project) -> None:
    write(
        project,
        """
@offline
def test_small(mlperf):
    mlperf.run(engine=Ranker, options={"k": 1}, dataset=samples, **SHORT).check()

@offline
def test_large(mlperf):
    mlperf.run(engine=Ranker, options={"k": 100}, dataset=samples, **SHORT).check()
""",
    )

    result = project.run()

    result.stdout.fnmatch_lines(
        ["*case mine-Offline-Ranker-fp32-cpu is measured by the test in line * other settings; *"]
    )
    assert last_line(result) == "1 failed, 1 no baseline"


def test_python_tests_are_selected_by_their_marker(project: Project) -> None:
    write(
        project,
        """
@offline
def test_offline(mlperf):
    pass

@pytest.mark.mlperf(workload="mine", scenario="SingleStream")
def test_stream(mlperf):
    pass

def test_other():
    pass
""",
    )

    result = project.run("-m", "mlperf(scenario='SingleStream')", "--strict-markers", "-v")

    result.stdout.fnmatch_lines(["test_mine.py::test_stream PASSED*"])
    assert last_line(result) == "1 passed, 2 deselected"


def test_the_result_can_be_looked_at_before_it_is_checked(project: Project) -> None:
    write(
        project,
        """
@offline
def test_my_ranker(mlperf):
    result = mlperf.run(engine=Ranker, dataset=samples, **SHORT)
    assert result.verdict.runs[0].metrics["throughput"] > 0
    assert not result.failed
""",
    )

    result = project.run("-W", "error", "--strict-markers")

    assert last_line(result) == "1 no baseline"
    assert project.results().cases[0].verdict.outcome is Outcome.NO_BASELINE


def test_a_missing_model_skips_and_the_skip_points_at_the_test(
    project: Project, tmp_path: Path
) -> None:
    write(
        project,
        """
@offline
def test_my_ranker(mlperf):
    mlperf.run(engine=Ranker, dataset=samples, model="${NO_SUCH_MODELS}/m", **SHORT).check()
""",
    )

    result = project.run("-rs")

    result.stdout.fnmatch_lines(
        ["SKIPPED [[]1[]] test_mine.py:*: *${NO_SUCH_MODELS} is not set; set it so that *"]
    )
