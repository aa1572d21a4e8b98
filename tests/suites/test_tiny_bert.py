"""The tiny BERT: trained, answering from several windows, and found out when it is damaged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.adapters.engines.recording import Tokenless
from tests.suites.tiny_twin import TINY, Twin, twin_marks

pytestmark = twin_marks("onnxruntime")
SUITE = "bert"

METRICS = ("f1", "exact_match")


@pytest.fixture(scope="module")
def articles() -> list[dict[str, Any]]:
    """What the committed file in SQuAD's layout holds."""
    file = TINY / "bert" / "data" / "squad" / "dev-v1.1.json"
    article_list: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))["data"]
    return article_list


def test_chance_is_far_below_and_many_paragraphs_need_several_windows(
    twin: Twin, answers: list[bytes]
) -> None:
    random = np.random.RandomState(0)
    guesses = [random.normal(size=len(each) // 4).astype("<f4").tobytes() for each in answers]
    # Logits of another feature, where that has as many pieces.
    last: dict[int, bytes] = {}
    others = []
    for answer in answers:
        others.append(last.get(len(answer), bytes(len(answer))))
        last[len(answer)] = answer

    f1 = twin.score(answers).aggregate["f1"]
    assert twin.score(guesses).aggregate["f1"] < 15
    assert twin.score(others).aggregate["f1"] < 30
    assert twin.training["chance"]["same_fact"]["f1"] < 70 < 95 < f1
    shares = {reference["id"]: reference["features"] for reference in twin.references}
    scores = twin.score(answers).per_sample["f1"]
    of_long = [
        score
        for score, reference in zip(scores, twin.references, strict=True)
        if score is not None and reference["features"] > 1
    ]
    assert len(of_long) == twin.training["in_several_windows"] > 100
    assert set(shares.values()) >= {1, 2, 3}
    assert np.mean(np.array(of_long, float)) > 93


def test_the_question_decides(twin: Twin, answers: list[bytes], articles: list[Any]) -> None:
    """A paragraph's questions are answered from the same text, each with another span."""
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    questions = [question["question"] for paragraph in paragraphs for question in paragraph["qas"]]
    spans: dict[str, set[tuple[int, int]]] = {}
    for answer, reference in zip(answers, twin.references, strict=True):
        start, end = np.frombuffer(answer, "<f4").reshape(-1, 2).argmax(axis=0)
        shift = reference["start"] - reference["first"]
        if start >= reference["first"]:
            words = " ".join(reference["words"])
            spans.setdefault(words, set()).add((int(start) + shift, int(end) + shift))

    assert len(questions) == twin.training["questions"] == 448
    assert sum(map(len, spans.values())) >= 0.95 * len(questions)


def test_answers_lie_where_the_file_says(articles: list[Any]) -> None:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                for answer in question["answers"]:
                    begin, text = answer["answer_start"], answer["text"]
                    assert paragraph["context"][begin : begin + len(text)] == text


def test_no_piece_is_unknown(twin: Twin) -> None:
    lines = (TINY / "bert" / "data" / "squad" / "vocab.txt").read_text("utf-8").splitlines()
    unknown = lines.index("[UNK]")

    assert len(set(lines)) == len(lines) == twin.training["vocabulary"]
    for index in range(len(twin.dataset)):
        assert unknown not in twin.dataset.input(index)["input_ids"]


def test_the_same_weights_answer_alike_in_torch(twin: Twin, answers: list[bytes]) -> None:
    """The folder in Hugging Face's layout, through the engine torch-module."""
    pytest.importorskip("torch", reason="needs pytest-mlperf[lm]")
    pytest.importorskip("transformers", reason="needs pytest-mlperf[lm]")
    from pytest_mlperf.adapters.engines.torch.module import TorchModuleEngine

    indices, sink = range(len(twin.dataset)), Tokenless(expected=len(twin.dataset))
    with TorchModuleEngine(
        dataset=twin.dataset,
        model=str(TINY / "bert" / "model"),
        precision="fp32",
        factory="question-answering",
        threads=1,
    ) as engine:
        engine.load_samples(indices)
        engine.submit(indices, indices, sink)

    torch_answers = [sink.outputs[index] for index in indices]
    for torch_answer, other in zip(torch_answers, answers, strict=True):
        assert np.frombuffer(torch_answer, "<f4") == pytest.approx(
            np.frombuffer(other, "<f4"), abs=1e-3
        )
    for metric in METRICS:
        assert twin.score(torch_answers).aggregate[metric] == pytest.approx(
            twin.training["torch"][metric], abs=0.5
        )
