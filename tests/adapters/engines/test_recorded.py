"""Test recorded answers of MLCommons' client: each goes to its own sample, or all are refused.

The folder in tests/data/endpoints_accuracy was written by the client itself (mlcommons/endpoints at
ea332753) against its own echo server: 60 samples for accuracy and a few requests for speed.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.recorded import RecordedEngine, read_answers
from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.testing import check_engine
from tests.adapters.engines.recording import Samples
from tests.adapters.engines.word_model import save_model
from tests.cli.recorded import ANSWERS, EVENTS, MAP, change, edit_events
from tests.refusals import unrefused

SAMPLES = 60
PROMPTS = [f"The answer is {number}" for number in range(SAMPLES)]

Edit = Callable[[Path], object]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    return str(save_model(tmp_path_factory.mktemp("model"), SAMPLES))


@pytest.mark.process
def test_each_sample_gets_its_own_answer_as_token_ids(model: str) -> None:
    """The end token is added as engine openai does, where the answer was not cut."""
    options = {"folder": str(ANSWERS)}
    answers = check_engine(
        RecordedEngine,
        PROMPTS,
        model=model,
        options=options,
        samples=SAMPLES,
        artefacts=("text", "reasoning"),
    )

    for number in range(SAMPLES):
        *words, value, end = struct.unpack("<5q", answers[number])
        assert (words, value, end) == ([2, 3, 4], 5 + number, 1)


def test_the_fingerprint_says_how_answers_were_generated(model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(ANSWERS, tmp_path / "c4")
    change(folder, lambda raw: raw["model_params"].update(temperature=0.7), "config.yaml")
    first, second = (described_by(model, PROMPTS, place) for place in (ANSWERS, folder))
    facts = {"max_new_tokens": "64", "eos": "1", "api": "chat", "temperature": None}
    assert {name: first.get(f"generation.{name}") for name in facts} == facts
    assert second["generation.temperature"] == "0.7"


def described_by(model: str, prompts: Any, folder: Path) -> Any:
    """Load all samples, and return the engine's description."""
    options = {"folder": str(folder)}
    samples = Samples(samples=prompts)
    with RecordedEngine(dataset=samples, model=model, precision="fp8", **options) as engine:
        engine.load_samples(range(len(prompts)))
        return engine.describe()


def test_of_repeats_the_first_answer_counts(model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(ANSWERS, tmp_path / "c4")
    requests = json.loads((folder / MAP).read_text("utf-8"))["questions"]
    again = {f"again{sample}": sample for sample in requests.values()}
    change(folder, lambda raw: raw["questions"].update(again), MAP)
    events = [json.loads(line) for line in (folder / EVENTS).read_text("utf-8").splitlines()]
    for event in [each for each in events if each["event_type"] == "sample.complete"]:
        if (sample := requests.get(event["sample_uuid"])) is not None:
            other = {"sample_uuid": f"again{sample}", "data": ["TextModelOutput", "other"]}
            events.append({**event, **other})
    text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
    (folder / EVENTS).write_text(text, "utf-8")

    answers = read_answers(folder, None)

    assert (answers.dataset, answers.issued, len(answers.by_sample)) == ("questions", 120, SAMPLES)
    assert [answers.by_sample[number].text for number in range(SAMPLES)] == PROMPTS
    described = described_by(model, PROMPTS, folder)
    assert described["recorded.answers"] == "120 requests; the first of each sample"


def without_a_file(name: str) -> Edit:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Edit:
    def edit(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return edit


def text(number: int, answer: str) -> Edit:
    """Return what makes the answer to a sample another one."""
    return lambda folder: edit_events(folder, {number: answer})


def mapped(edit: Callable[[Any], object]) -> Edit:
    """Return what changes the map of samples."""
    return lambda folder: change(folder, edit, MAP)


REFUSED: dict[str, tuple[Edit, list[str], str]] = {
    "no map": (without_a_file(MAP), PROMPTS, f"has no {MAP}, so answers cannot be matched"),
    "no events": (without_a_file(EVENTS), PROMPTS, f"has no {EVENTS}"),
    "no configuration": (without_a_file("config.yaml"), PROMPTS, "config.yaml: cannot be read"),
    "a cut map": (cut(MAP), PROMPTS, f"{MAP}: not a result"),
    "cut events": (cut(EVENTS), PROMPTS, f"{EVENTS}: incomplete, or not events of endpoints"),
    "a list": (lambda f: (f / MAP).write_text("[]"), PROMPTS, "must be an object, not []"),
    "no accuracy": (
        lambda f: (f / MAP).write_text('{"performance": {}}'),
        PROMPTS,
        "has no accuracy answers; let the client",
    ),
    "two": (mapped(lambda raw: raw.update(more={"x": 1})), PROMPTS, "to 'questions' or 'more'"),
    "half": (mapped(lambda raw: raw["questions"].update(x=0.5)), PROMPTS, "is 0.5; must be"),
    "an empty answer": (text(3, ""), PROMPTS, "1 of 60 samples of 'questions' have no answer"),
    "a part": (mapped(id), PROMPTS[:50], "has answers to 60 samples of 'questions', but the"),
    "another order": (mapped(id), [*PROMPTS[1:], PROMPTS[0]], "differs from the client's prompt"),
}


def test_answers_that_cannot_be_paired_are_one_error(model: str, tmp_path: Path) -> None:
    def load(name: str, edit: Edit, prompts: list[str]) -> None:
        edit(folder := shutil.copytree(ANSWERS, tmp_path / name))
        described_by(model, prompts, folder)

    rows = [(name, *row) for name, row in REFUSED.items()]
    assert unrefused(load, RunError, rows) == []


def test_a_folder_that_is_not_here_skips_the_case(model: str) -> None:
    engine = RecordedEngine(
        dataset=Samples(samples=PROMPTS), model=model, precision="fp8", folder="nowhere"
    )

    with pytest.raises(UnavailableError, match="folder nowhere does not exist"):
        engine.require()
