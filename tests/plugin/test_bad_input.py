"""Bad input, as a user meets it: one sentence that says what, where and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
def own(project: Project) -> Project:
    (project.path / "own_scorers.py").write_text(SCORERS, "utf-8")
    project.pytester.syspathinsert()
    return project


def suite(project: Project, workload: str, engine: str = 'use = "null"') -> Path:
    """Write a suite; the lines of `workload` begin at 6."""
    path = project.path / "suites/first.mlperf.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'schema = 1\nround = "v4.1"\n\n[workload]\nname = "first"\n{workload}\n\n'
        f'[[engines]]\n{engine}\n{OFFLINE}\n[limits]\nthroughput = {{ max_drop = "40%" }}\n',
        "utf-8",
    )
    return path


def message(result: pytest.RunResult) -> list[str]:
    """Return the lines of the only failure, up to the case."""
    lines = result.outlines
    first = next(n for n, line in enumerate(lines) if line.startswith("____") and "test_" in line)
    last = next(n for n, line in enumerate(lines) if n > first and line.startswith("case "))
    return [" ".join(" ".join(lines[first + 1 : last]).split())]


def test_another_data_set_than_the_suites_is_one_sentence_and_no_traceback(own: Project) -> None:
    suite(own, f'dataset = {{ use = "synthetic", samples = 8, digest = "{"0" * 64}" }}')

    result = own.run("suites")

    (told,) = message(result)
    assert told.startswith("ERROR dataset: the data set's digest is ")
    assert told.endswith(
        f"the suite asks for {'0' * 64}: its content, its order or its options differ; get it from "
        "its source again, or correct digest"
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_mlperf.core.errors*")
    result.stdout.no_fnmatch_line("*(during *")


def test_what_a_scorer_refuses_is_one_sentence_and_no_traceback(own: Project) -> None:
    data = 'dataset = { use = "synthetic", samples = 8 }\n'
    suite(own, data + 'scorer = { use = "own_scorers:Refuses" }')

    result = own.run("suites", "-k", "accuracy")

    assert message(result) == [
        "ERROR scorer: the output of sample 3 has 7 bytes, not 8; correct the engine"
    ]
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_scorer_that_breaks_shows_the_end_of_its_log(own: Project) -> None:
    data = 'dataset = { use = "synthetic", samples = 8 }\n'
    suite(own, data + 'scorer = { use = "own_scorers:Breaks" }')

    result = own.run("suites", "-k", "accuracy")

    (told,) = message(result)
    assert told.startswith("ERROR scorer: TypeError: can't concat int to bytes (in score, ")
    assert told.endswith("own_scorers.py:13)")
    result.stdout.fnmatch_lines(["*Traceback (most recent call last):*"])


def test_a_reference_that_the_scorer_did_not_give_is_the_suites_error(own: Project) -> None:
    data = 'dataset = { use = "synthetic", samples = 8 }\n'
    suite(own, data + 'scorer = { use = "own_scorers:Exact" }\nreference = { em = 90 }')

    result = own.run("suites", "-k", "accuracy")

    assert message(result) == [
        "ERROR scorer: [workload] reference names em, which the scorer did not give: it gave "
        "exact_match; correct reference, or the scorer's options"
    ]


def test_all_that_is_missing_is_named_in_one_skip(
    own: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLPERF_MODELS", raising=False)
    monkeypatch.setenv("MLPERF_DATA", "")
    file = suite(
        own,
        'model = "${MLPERF_MODELS}/m.onnx"\n'
        'dataset = { use = "imagenet", path = "${MLPERF_DATA}/imagenet" }',
        'use = "onnxruntime"',
    )

    told = " ".join(section(own.run("suites"))[:9])

    assert told.startswith(
        f"1 test skipped: {file}:6: ${{MLPERF_MODELS}} is not set; set it so that "
        "${MLPERF_MODELS}/m.onnx is the model, e.g. export MLPERF_MODELS=/path/to/it; also "
        f"{file}:7: ${{MLPERF_DATA}} is not set; set it so that ${{MLPERF_DATA}}/imagenet is the "
        "dataset, e.g. export MLPERF_DATA=/path/to/it"
    )


def test_a_wrong_value_of_an_engine_stops_at_collection(own: Project) -> None:
    file = suite(own, 'model = "m.onnx"', 'use = "onnxruntime"\noptions = { batch_size = "8" }')

    result = own.run("suites")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert [line for line in result.outlines if line.startswith(str(file))] == [
        f"{file}:10: engines[0].options.batch_size: batch_size is '8'; a whole number is needed"
    ]


def test_an_engine_of_a_python_test_is_asked_too_and_the_test_is_named(own: Project) -> None:
    own.pytester.makepyfile(
        test_mine="""
        import pytest

        @pytest.mark.mlperf(workload="mine", scenario="Offline")
        def test_speed(mlperf):
            mlperf.run(engine="onnxruntime", model="m.onnx", options={"threads": "2"}).check()
        """
    )
    (own.path / "m.onnx").write_bytes(b"x")

    result = own.run("test_mine.py")

    assert next(line for line in result.outlines if "test_mine.py:" in line) == (
        f"{own.path / 'test_mine.py'}:3: engine onnxruntime: threads is '2'; a whole number is "
        "needed"
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


@pytest.mark.parametrize(
    ("engine", "data"),
    [
        ("hostile:Raises", 'dataset = { use = "synthetic", samples = 8 }'),
        ("hostile:Describes", 'dataset = { use = "hostile:Data" }'),
    ],
)
def test_no_text_of_others_loses_a_result_or_reaches_the_terminal(
    own: Project, engine: str, data: str
) -> None:
    (own.path / "hostile.py").write_text(HOSTILE, "utf-8")
    suite(own, data, f'use = "{engine}"\nname = "bad"')
    own.suite("suites/second.mlperf.toml", name="second")

    result = own.run("suites", "--junit-xml=junit.xml", "-rA")

    found = {one.verdict.case.workload: one.verdict for one in own.results().cases}
    assert {name: str(one.outcome) for name, one in found.items()} == {
        "first": "ERROR",
        "second": "NO BASELINE",
    }
    assert "model-\\udcff.bin" in found["first"].headline
    for text in (str(result.stdout), (own.path / "junit.xml").read_text("utf-8")):
        assert "model-\\udcff.bin \\x1b[2J" in text
        assert not set(text) & set("\x1b\x9b\u202e\udcff\r")


def test_a_place_that_is_no_utf8_is_a_skip_and_keeps_the_results(
    own: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_FOLDER", "/nowhere/\udcff\x1b[2J")
    suite(own, 'dataset = { use = "openorca", path = "${ODD_FOLDER}" }')
    own.suite("suites/second.mlperf.toml", name="second")

    result = own.run("suites", "--mlperf-json=all.json", "-rs")

    assert "\x1b" not in str(result.stdout)
    assert len(own.results().cases) >= 1
    (why,) = json.loads((own.path / "all.json").read_text("utf-8"))["skipped"].values()
    assert "/nowhere/" in why
