"""Test bad input in whole sessions: one sentence that names the problem, its place and a remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_mlperf.reports.sentences import sentence
from tests.plugin.project import OFFLINE, Project, section

SCORERS = """
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Scores

class Refuses:
    def __init__(self, *, model): pass
    def score(self, outputs, references):
        raise RunError("scorer", "the output of sample 3 has 7 bytes, not 8; correct the engine")

class Breaks:
    def __init__(self, *, model): pass
    def score(self, outputs, references):
        return outputs[3] + 1

class Exact:
    def __init__(self, *, model): pass
    def score(self, outputs, references):
        ones = [1.0] * len(outputs)
        return Scores(per_sample={"exact_match": ones}, aggregate={"exact_match": 1.0})
"""


@pytest.fixture
def own_project(project: Project) -> Project:
    (project.path / "own_scorers.py").write_text(SCORERS, "utf-8")
    project.pytester.syspathinsert()
    return project


DATA = 'dataset = { use = "synthetic", samples = 8 }'


def suite(
    project: Project, workload: str, engine: str = 'use = "null"', name: str = "first"
) -> Path:
    """Write a suite; the lines of `workload` begin at 6."""
    path = project.path / f"suites/{name}.mlperf.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'schema = 1\nround = "v4.1"\n\n[workload]\nname = "{name}"\n{workload}\n\n'
        f'[[engines]]\n{engine}\n{OFFLINE}\n[limits]\nthroughput = {{ max_drop = "40%" }}\n',
        "utf-8",
    )
    return path


def failures(result: pytest.RunResult) -> dict[str, tuple[str, str]]:
    """Return the sentence of each failure, up to the command, and all of its text, by workload."""
    starts = [
        n for n, line in enumerate(result.outlines) if line.startswith("____") and "test_" in line
    ]
    ends = [*starts[1:], next(n for n, x in enumerate(result.outlines) if " mlperf " in x)]
    sentences_by_test = {}
    for start, end in zip(starts, ends, strict=True):
        name = result.outlines[start].partition("[")[2].partition("-")[0]
        lines = result.outlines[start + 1 : end]
        sentence = lines[: next(n for n, line in enumerate(lines) if line.startswith("reproduce "))]
        sentences_by_test[name] = (" ".join(" ".join(sentence).split()), "\n".join(lines))
    return sentences_by_test


def test_bad_data_and_scorers_are_one_sentence_and_only_crashes_have_a_traceback(
    own_project: Project,
) -> None:
    suite(own_project, f'{DATA[:-2]}, digest = "{"0" * 64}" }}', name="digest")
    for name in ("Refuses", "Breaks"):
        suite(own_project, f'{DATA}\nscorer = {{ use = "own_scorers:{name}" }}', name=name.lower())
    exact = 'scorer = { use = "own_scorers:Exact" }\nreference = { em = 90 }'
    suite(own_project, f"{DATA}\n{exact}", name="reference")

    failures_by_test = failures(own_project.run("suites", "-k", "accuracy or digest"))

    sentences = {name: sentence for name, (sentence, _) in failures_by_test.items()}
    digest, breaks = sentences.pop("digest"), sentences.pop("breaks")
    assert digest.startswith("ERROR dataset: the data set's digest is ")
    assert digest.endswith(
        f"the suite asks for {'0' * 64}: its content, its order or its options differ; get it from "
        "its source again, or correct digest"
    )
    assert breaks.startswith("ERROR scorer: TypeError: can't concat int to bytes (in score, ")
    assert breaks.endswith("own_scorers.py:13)")
    assert sentences == {
        "refuses": "ERROR scorer: the output of sample 3 has 7 bytes, not 8; correct the engine",
        "reference": "ERROR scorer: [workload] reference names em, but the scorer returned only "
        "exact_match; correct reference, or the scorer's options",
    }
    traced = {
        name for name, (_, text) in failures_by_test.items() if "Traceback (most recent" in text
    }
    assert traced == {"breaks"}
    assert "pytest_mlperf.core.errors" not in failures_by_test["digest"][1]
    assert "(during " not in failures_by_test["digest"][1]


def test_all_that_is_missing_is_named_in_one_skip(
    own_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLPERF_MODELS", raising=False)
    monkeypatch.setenv("MLPERF_DATA", "")
    file = suite(
        own_project,
        'model = "${MLPERF_MODELS}/m.onnx"\n'
        'dataset = { use = "imagenet", path = "${MLPERF_DATA}/imagenet" }',
        'use = "onnxruntime"',
    )

    message = " ".join(section(own_project.run("suites"))[:9])

    assert message.startswith(
        f"1 test skipped: {file}:6: ${{MLPERF_MODELS}} is not set; set it so that "
        "${MLPERF_MODELS}/m.onnx is the model, e.g. export MLPERF_MODELS=/path/to/it; also "
        f"{file}:7: ${{MLPERF_DATA}} is not set; set it so that ${{MLPERF_DATA}}/imagenet is the "
        "dataset, e.g. export MLPERF_DATA=/path/to/it"
    )


def test_a_wrong_value_of_an_engine_stops_at_collection(own_project: Project) -> None:
    file = suite(
        own_project, 'model = "m.onnx"', 'use = "onnxruntime"\noptions = { batch_size = "8" }'
    )

    result = own_project.run("suites")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert [line for line in result.outlines if line.startswith(str(file))] == [
        f"{file}:10: engines[0].options.batch_size: batch_size is '8'; a whole number is needed"
    ]


def test_an_engine_of_a_python_test_is_asked_too_and_the_test_is_named(
    own_project: Project,
) -> None:
    own_project.pytester.makepyfile(
        test_mine="""
        import pytest

        @pytest.mark.mlperf(workload="mine", scenario="Offline")
        def test_speed(mlperf):
            mlperf.run(engine="onnxruntime", model="m.onnx", options={"threads": "2"}).check()
        """
    )
    (own_project.path / "m.onnx").write_bytes(b"x")

    result = own_project.run("test_mine.py")

    assert next(line for line in result.outlines if "test_mine.py:" in line) == (
        f"{own_project.path / 'test_mine.py'}:3: engine onnxruntime: threads is '2'; a whole "
        "number is needed"
    )
    result.stdout.no_fnmatch_line("*Traceback*")


HOSTILE = r"""
import os
from pytest_mlperf.core.extension import Dataset, Engine

class Raises(Engine):
    def __init__(self, dataset, model, precision): pass
    def submit(self, ids, indices, sink):
        raise FileNotFoundError("model-\udcff.bin \x1b[2J\x1b[32m1 passed\x1b[0m \u202eko\x9b31m")

class Describes(Raises):
    def describe(self):
        return {"weights": "w\udc80", "k\ud800": "\u202e\x1b[2J"}

class Data(Dataset):
    digest = "\ud800"
    def __len__(self): return 8
    def __getitem__(self, index): return b"x"
"""


def test_no_text_of_others_loses_a_result_or_reaches_the_terminal(own_project: Project) -> None:
    (own_project.path / "hostile.py").write_text(HOSTILE, "utf-8")
    suite(own_project, DATA, 'use = "hostile:Raises"\nname = "bad"', "raises")
    data = 'dataset = { use = "hostile:Data" }'
    suite(own_project, data, 'use = "hostile:Describes"\nname = "bad"', "describes")
    own_project.suite("suites/second.mlperf.toml", name="second")

    result = own_project.run("suites", "--junit-xml=junit.xml", "-rA")

    verdicts = {case.verdict.case.workload: case.verdict for case in own_project.results().cases}
    outcomes = {name: str(verdict.outcome) for name, verdict in verdicts.items()}
    assert outcomes == {"raises": "ERROR", "describes": "ERROR", "second": "NO BASELINE"}
    assert all(
        "model-\\udcff.bin" in sentence(verdicts[name].headline) for name in ("raises", "describes")
    )
    for text in (str(result.stdout), (own_project.path / "junit.xml").read_text("utf-8")):
        assert text.count("model-\\udcff.bin \\x1b[2J") >= 2
        assert not set(text) & set("\x1b\x9b\u202e\udcff\r")


def test_a_path_that_is_not_utf8_is_a_skip_and_keeps_the_results(
    own_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_FOLDER", "/nowhere/\udcff\x1b[2J")
    suite(own_project, 'dataset = { use = "openorca", path = "${ODD_FOLDER}" }')
    own_project.suite("suites/second.mlperf.toml", name="second")

    result = own_project.run("suites", "--mlperf-json=all.json", "-rs")

    assert "\x1b" not in str(result.stdout)
    assert len(own_project.results().cases) >= 1
    (reason,) = json.loads((own_project.path / "all.json").read_text("utf-8"))["skipped"].values()
    assert "/nowhere/" in reason


def test_a_suite_that_is_not_a_file_is_an_error_and_never_skipped(project: Project) -> None:
    """pytest collects regular files alone; a session without a suite must not be green."""
    project.suite()
    folder = project.path / "suites"
    os.mkfifo(folder / "pipe.mlperf.toml")
    (folder / "gone.mlperf.toml").symlink_to(folder / "absent")
    (folder / "folder.mlperf.toml").mkdir()

    whole = project.run("suites", "--collect-only")
    named = project.run("suites/pipe.mlperf.toml")

    assert whole.ret == named.ret == pytest.ExitCode.INTERRUPTED
    text = whole.stdout.str()
    for name in ("pipe", "gone", "folder"):
        assert f"ERROR suites/{name}.mlperf.toml" in text
    assert "test_performance[first-Offline-null-fp32-cpu]" in text
    assert "a pipe; a suite is" in named.stdout.str()
