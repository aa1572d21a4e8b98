"""The tiny Qwen3.6: it calls the functions that fit, and is found out when it is damaged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.torch import TorchEngine
from pytest_mlperf.core.errors import SuiteError
from tests.suites.tiny_twin import TINY, Twin, ask, load_tool, twin_marks

pytestmark = twin_marks("torch", "transformers", "jinja2")
SUITE = "qwen3.6"

IRRELEVANT = ("irrelevance", "live_irrelevance")


@pytest.fixture(scope="module")
def calls(monkeypatch_module: pytest.MonkeyPatch) -> Any:
    """The script that draws the requests."""
    return load_tool("tiny_calls")


@pytest.fixture(scope="module")
def monkeypatch_module() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TINY.parents[1] / "twins"))
        yield patch


def scores_of(twin: Twin, answers: Sequence[bytes]) -> Mapping[str, float]:
    return twin.score(answers).aggregate


def test_answers_to_other_requests_are_far_worse(twin: Twin, answers: list[bytes]) -> None:
    others = answers[1:] + answers[:1]

    assert scores_of(twin, others)["accuracy"] == pytest.approx(
        twin.training["chance"]["accuracy"], abs=5
    )


def test_its_answers_are_calls_as_openais_api_has_them_or_text(
    twin: Twin, answers: list[bytes]
) -> None:
    kinds: Counter[type] = Counter()
    for answer, reference in zip(answers, twin.references, strict=True):
        if answer.startswith(b"["):
            for call in json.loads(answer):
                assert list(call) == ["type", "function"]
                kinds.update(map(type, call["function"]["arguments"].values()))
        elif reference["subset"] in IRRELEVANT:
            assert answer.decode() == "None of these functions does that."

    assert set(kinds) >= {str, int, float, bool, list}


class Replaced:
    """Requests whose tools are those of the next request of the subset."""

    def __init__(self, twin: Twin, subset: str) -> None:
        indices = [i for i, one in enumerate(twin.references) if one["subset"] == subset]
        requests = [twin.dataset.input(index) for index in indices]
        others = [one["tools"] for one in requests[1:] + requests[:1]]
        self.samples = [
            {**one, "tools": tools} for one, tools in zip(requests, others, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def input(self, index: int) -> Any:
        return self.samples[index]


@pytest.mark.nightly
def test_the_tools_decide_and_not_the_request(twin: Twin) -> None:
    """With another request's function it calls less, and never one that is not offered."""
    dataset = Replaced(twin, "simple_python")

    answers = ask(TorchEngine(**twin.engine_options(dataset)), len(dataset))

    called = [one for one in answers if one.startswith(b"[")]
    assert len(called) < 0.5 * len(answers)


def test_continuous_batching_has_no_pages_for_a_state(twin: Twin) -> None:
    engine = TorchEngine(**twin.engine_options(twin.dataset, batching="continuous"))

    with pytest.raises(SuiteError, match='set batching = "dynamic"'), engine:
        pass


class Texts:
    """Two texts, which need no template."""

    def __len__(self) -> int:
        return 2

    def input(self, index: int) -> str:
        return ("order", "red lamps")[index]


@pytest.mark.nightly
def test_text_is_asked_of_it_as_of_any_model(twin: Twin) -> None:
    options = twin.engine_options(Texts(), max_new_tokens=4, ignore_eos=True)
    del options["chat_template_kwargs"]
    engine = TorchEngine(**options)

    assert list(map(len, ask(engine, 2))) == [32, 32]
    assert engine.describe()["architecture"] == "Qwen3_5ForConditionalGeneration"


def test_it_is_of_qwen3_6s_class(twin: Twin) -> None:
    config = twin.config()

    assert config["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    assert config["text_config"]["layer_types"] == [*["linear_attention"] * 3, "full_attention"]


def test_its_prompts_are_those_it_was_trained_on(twin: Twin, calls: Any) -> None:
    tool = load_tool("train_tiny_qwen3_6")
    requests = sorted(tool.held_out(), key=lambda sample: sample.subset)
    trained = tool.as_rows(requests, tool.train_tokenizer())
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(twin.model)

    for index, row in enumerate(trained):
        request = twin.dataset.input(index)
        ids = tokenizer.apply_chat_template(
            request["messages"],
            tools=request["tools"],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            enable_thinking=False,
        )
        assert ids == row.prompt
    assert len(trained) == len(twin.references) == 16 * len(calls.CALLS)


def test_its_requests_are_drawn_by_its_script(twin: Twin, calls: Any) -> None:
    """Nothing in its files comes from elsewhere, and all subsets of the scorer are there."""
    random = calls.Random(f"{twin.training['seed']} held out")
    count_per_subset = len(twin.references) // len(calls.CALLS)
    drawn = [calls.draw(random, subset) for subset in calls.CALLS for _ in range(count_per_subset)]

    for name, content in calls.files(drawn).items():
        file = TINY / twin.name / "data" / "bfcl_eval" / "data" / name
        assert file.read_text("utf-8") == content
    assert Counter(one["subset"] for one in twin.references) == dict.fromkeys(
        calls.CALLS, count_per_subset
    )
