"""Code of one's own enters through a test: `mlperf.run(engine=..., dataset=...)`."""

from __future__ import annotations

import hashlib
import json
import re

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


def source_of(name: str, arguments: str, marker: str | None = None) -> str:
    """Return the text of a test that measures a workload of its own."""
    marker = (
        f"@pytest.mark.mlperf(workload='{name}', scenario='Offline')" if marker is None else marker
    )
    return f"""
{marker}
def test_{name}(mlperf):
    mlperf.run({arguments}).check()
"""


def failures(result: pytest.RunResult) -> dict[str, str]:
    """Return what pytest printed of each failed test."""
    parts = re.split(r"^_+ test_(\w+) _+$", result.stdout.str(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_engine_and_data_set_of_the_test_module_are_built_in_the_worker(project: Project) -> None:
    """A list of JSON samples is a data set that is known by its content."""
    engines = {"class": "Ranker", "function": "ranker", "text": "'test_mine:Ranker'"}
    datasets = {"text": "'test_mine:samples'"}
    counted = "dataset_options={'count': 20}"
    tests = [
        source_of(
            name,
            f"engine={engine}, options={{'k': 10}}, dataset={datasets.get(name, 'samples')}, "
            f"{counted}, **SHORT",
        )
        for name, engine in engines.items()
    ]
    write(project, "".join(tests))

    result = project.run("-v")

    result.stdout.fnmatch_lines([f"test_mine.py::test_{name} NO BASELINE *" for name in engines])
    case_results = project.results().cases
    names = ("Ranker", "ranker", "Ranker")
    cases = zip(engines, names, strict=True)
    assert [each.verdict.case.id for each in case_results] == [
        f"{workload}-Offline-{name}-fp32-cpu" for workload, name in cases
    ]
    text = json.dumps([{"question": i} for i in range(20)], sort_keys=True)
    lines = (project.path / "test_mine.py").read_text("utf-8").splitlines()
    for case in case_results:
        assert case.verdict.subject is not None
        fingerprint = case.verdict.subject.fingerprint
        assert fingerprint["engine.k"] == "10"
        assert fingerprint["dataset"] == hashlib.sha256(text.encode()).hexdigest()
        marker = f"workload='{case.verdict.case.workload}'"
        (line,) = [number for number, words in enumerate(lines, 1) if marker in words]
        assert (case.suite, case.line) == ("test_mine.py", line)


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


def test_a_list_that_holds_no_json_samples_is_refused(project: Project) -> None:
    call = "engine=Ranker, dataset={}, **SHORT"
    lists = "\ndef empty():\n    return []\n\ndef objects():\n    return [object()]\n"
    tests = [source_of(name, call.format(name)) for name in ("empty", "objects")]
    write(project, lists + "".join(tests))

    result = project.run()

    assert last_line(result) == "2 failed"
    texts = failures(result)
    empty = "ERROR dataset: the data set is an empty list; at least one sample is needed"
    assert empty in texts["empty"]
    assert "ERROR dataset: the samples of a list must be JSON values: " in texts["objects"]


def test_code_that_another_process_cannot_import_is_refused_with_one_sentence(
    project: Project,
) -> None:
    values = {
        "instance": "Ranker(None, None, None)",
        "lambda": "lambda **options: None",
        "local": "local()",
        "inner": "Outer.Inner",
    }
    classes = """
class Outer:
    class Inner(Ranker):
        pass

def local():
    class Local(Ranker):
        pass
    return Local
"""
    tests = [
        source_of(f"{name}_{place}", ", ".join(f"{k}={v}" for k, v in arguments.items()))
        for name, value in values.items()
        for place in ("engine", "dataset")
        for arguments in [{"engine": "Ranker", "dataset": "samples", place: value}]
    ]
    write(project, classes + "".join(tests))

    result = project.run()

    texts = failures(result)
    assert len(texts) == 8
    for text in texts.values():
        assert re.search(
            r"^E .*SuiteError: .* cannot be created in the worker process; pass a class or "
            r'function of a module, or "package\.module:name"\n\ntest_mine\.py:\d+: SuiteError',
            text,
            flags=re.MULTILINE,
        )
        assert "def importable" not in text
    assert project.run_folders() == []


def test_a_wrong_marker_or_argument_fails_the_test_and_says_why(project: Project) -> None:
    call = "engine=Ranker, dataset=samples"
    needs = 'mlperf.run needs a marker; add @pytest.mark.mlperf(workload="...", scenario="...")'
    rows = {
        "marker": ("", "", re.escape(needs)),
        "scenario": ("@pytest.mark.mlperf(scenario='Oflin')", "", "scenario.*Offline"),
        "key": ("@pytest.mark.mlperf(workload='mine', sceanrio='O')", "", "unknown.*sceanrio"),
        "option": (None, ", options={'kk': 1}", r"has no option 'kk'; did you mean 'k'\?"),
        "duration": (None, ", min_duration=5", "min_duration.*5"),
    }
    tests = [source_of(name, call + more, marker) for name, (marker, more, _) in rows.items()]
    write(project, "".join(tests))

    result = project.run()

    texts = failures(result)
    assert last_line(result) == "5 failed"
    unmatched = [
        name
        for name, (*_, message) in rows.items()
        if not re.search(f"^E.*{message}", texts[name], flags=re.MULTILINE)
    ]
    assert unmatched == []


def test_a_result_can_be_looked_at_and_a_case_has_one_setting(project: Project) -> None:
    """A missing model skips its test; the marker selects tests."""
    missing = 'engine=Ranker, dataset=samples, model="${NO_SUCH_MODELS}/m", **SHORT'
    tests = """
@offline
def test_small(mlperf):
    result = mlperf.run(engine=Ranker, options={"k": 1}, dataset=samples, **SHORT)
    assert result.verdict.runs[0].metrics["throughput"] > 0
    assert not result.failed

@offline
def test_large(mlperf):
    mlperf.run(engine=Ranker, options={"k": 100}, dataset=samples, **SHORT).check()

@pytest.mark.mlperf(workload="mine", scenario="SingleStream")
def test_stream(mlperf):
    pass

def test_other():
    pass
"""
    write(project, tests + source_of("missing", missing))

    result = project.run("-W", "error", "--strict-markers", "-rs", "-k", "not stream and not other")

    result.stdout.fnmatch_lines(
        ["*case mine-Offline-Ranker-fp32-cpu is measured by the test in line * other settings; *"]
    )
    assert last_line(result) == "1 failed, 1 skipped, 2 deselected, 1 no baseline"
    result.stdout.fnmatch_lines(
        ["SKIPPED [[]1[]] test_mine.py:*: *${NO_SUCH_MODELS} is not set; set it so that *"]
    )
    assert project.results().cases[0].verdict.outcome is Outcome.NO_BASELINE

    result = project.run("-m", "mlperf(scenario='SingleStream')", "--strict-markers", "-v")

    result.stdout.fnmatch_lines(["test_mine.py::test_stream PASSED*"])
    assert last_line(result) == "1 passed, 4 deselected"
