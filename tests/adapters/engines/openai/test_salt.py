"""Prompts of timed runs have words of each run's own: no cache of prefixes knows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.datasets.user_prompts import UserPromptsDataset
from pytest_mlperf.adapters.engines.openai import OpenAiEngine
from tests.adapters.engines.openai.recorder import RUN_TOKENS, Recorder, in_a_run, open_engine
from tests.adapters.engines.openai.scripted import Manner, Request, Scripted, words_of
from tests.adapters.engines.recording import Samples

TINY = Path(__file__).parents[4] / "suites" / "tiny" / "llama2-70b" / "model"

IDS = [[1, *range(100 + row, 160 + row)] for row in range(4)]
TEXTS = [f'Rules of the house: be brief.  Say "{word}"\n\t\u00fc' for word in ("a", "b", "c")]
MADE_UP = {"samples": 4, "input_tokens": {"low": 20, "high": 40}}
SHARED = {**MADE_UP, "shared": {"prefixes": 1, "tokens": 16, "share": 1}}


def asked_in_runs(dataset: Any, runs: Sequence[str], **options: Any) -> list[list[list[str]]]:
    """Return the prompts of each run, twice each; "accuracy" is one whose outputs are read."""
    server = Scripted(Manner(prompt_tokens=options.pop("counts", None)))
    options = {"url": server, "model": None, "max_new_tokens": RUN_TOKENS, **options}
    words_by_run = []
    with server:
        options["url"] = server.url
        with OpenAiEngine(dataset=dataset, precision="fp32", **options) as engine:
            engine.load_samples(range(len(dataset)))
            for run in runs:
                earlier_requests = len(server.requests)
                indices = [*range(len(dataset))] * 2
                sink = Recorder(len(indices), wants_output=run == "accuracy")
                sink.run = run  # type: ignore[attr-defined]
                engine.submit(range(len(indices)), indices, sink)
                sink.wait_for_end()
                words_by_run.append(
                    [words_of(one) for one in server.requests[earlier_requests:] if in_a_run(one)]
                )
    return words_by_run


def begins(prompts: Sequence[Sequence[str]], words: int) -> set[tuple[str, ...]]:
    return {tuple(prompt[:words]) for prompt in prompts}


@pytest.mark.parametrize(
    ("dataset", "options", "added"),
    [
        (UserPromptsDataset(**MADE_UP), {}, 0),
        (UserPromptsDataset(**MADE_UP), {"api": "chat"}, 0),
        (UserPromptsDataset(**SHARED), {}, 0),
        (Samples(TEXTS), {}, 10),
        (Samples(TEXTS), {"api": "chat"}, 10),
        (Samples(IDS), {}, 10),
        (Samples([[7], [8]]), {}, 10),
    ],
)
def test_each_run_asks_other_prompts_of_the_same_lengths(
    dataset: Any, options: dict[str, Any], added: int
) -> None:
    """Prompts of one pass begin alike; accuracy runs send the prompts of the data set unchanged."""
    first, again, scored = asked_in_runs(dataset, ["one", "two", "accuracy"], **options)
    plain = [words_of(sent(one)) for one in dataset_of(dataset)]
    assert sorted(scored) == sorted(plain * 2)
    lengths = sorted(len(one) + added for one in plain * 2)
    assert sorted(map(len, first)) == sorted(map(len, again)) == lengths
    for prompts in (first, again):
        assert not begins(prompts, 11) & begins(plain, 11)
        assert len({tuple(prompt[1:10]) for prompt in prompts}) == 2, "one salt for each pass"
    assert not begins(first, 11) & begins(again, 11)


def sent(prompt: Any) -> Request:
    return Request(method="POST", path="", headers={}, body={"prompt": prompt}, raw=b"")


def dataset_of(dataset: Any) -> list[Any]:
    return [dataset.input(index) for index in range(len(dataset))]


def test_prompts_stay_where_they_are_to_be_repeated() -> None:
    """By the suite's word, or because the data set is an official one."""
    rows: list[tuple[Any, dict[str, Any]]] = [
        (UserPromptsDataset(**MADE_UP, repeat=True), {}),
        (UserPromptsDataset(**MADE_UP), {"salt": False}),
        (Samples(TEXTS), {"salt": False}),
    ]
    official = Samples(TEXTS)
    official.repeat = True  # type: ignore[attr-defined]
    for dataset, options in (*rows, (official, {})):
        first, again = asked_in_runs(dataset, ["one", "two"], **options)
        assert sorted(first) == sorted(again)


def test_made_up_prompts_have_the_same_tokens_with_other_words() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    dataset = UserPromptsDataset(
        samples=8, input_tokens={"low": 24, "high": 48}, tokenizer=str(TINY)
    )
    exact = sorted(len(tokenizer(text)["input_ids"]) for text in dataset_of(dataset))
    for form in ("text", "tokens"):
        options = {"model": str(TINY), "prompts": form}
        server = Scripted(lambda request: Manner(prompt_tokens=counted(request))(request))

        def counted(request: Any) -> int:
            prompt = request.body.get("prompt", "")
            return len(tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)

        with server, open_like(server.url, dataset, options) as engine:
            assert engine.describe()["salt"] == "10 words in each run"
            engine.load_samples(range(8))
            sink = Recorder(8)
            sink.run = "one"  # type: ignore[attr-defined]
            engine.submit(range(8), range(8), sink)
            sink.wait_for_end()  # a prompt of another length is an error
            lengths = sorted(counted(one) for one in server.requests if in_a_run(one))
            assert lengths == exact


def open_like(url: str, dataset: Any, options: dict[str, Any]) -> OpenAiEngine:
    return OpenAiEngine(
        dataset=dataset, precision="fp32", url=url, max_new_tokens=RUN_TOKENS, **options
    )


def test_counts_in_answers_are_summed(recwarn: pytest.WarningsRecorder) -> None:
    """Since it was last asked; a server of many names fills no memory."""
    manner = Manner(cached=2, prompt_tokens=3)
    with Scripted(manner) as server, open_engine(server.url, ["a b c"] * 3) as engine:
        engine.load_samples(range(3))
        engine.answer_counts()
        sink = Recorder(3)
        engine.submit(range(3), range(3), sink)
        sink.wait_for_end()
        counts = dict(engine.answer_counts())
        assert (counts["answers"], counts["cached_tokens"]) == (3, 6)
        assert counts["cacheable_tokens"] == 9
        assert not engine.answer_counts()
    assert not recwarn.list


def test_a_message_in_parts_gets_a_part_of_its_own() -> None:
    """It precedes the user's text and picture; the system prompt stays shared."""
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {}}]
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    chat = {"messages": [system, {"role": "user", "content": parts}]}
    with Scripted(Manner()) as server, open_engine(server.url, [chat], api="chat") as engine:
        engine.load_samples([0])
        for run in ("one", "two", ""):
            sink = Recorder(1)
            sink.run = run  # type: ignore[attr-defined]
            engine.submit([1], [0], sink)
            sink.wait_for_end()
        first, again, plain = (one.body["messages"] for one in server.requests if in_a_run(one))
    assert plain == chat["messages"]
    assert first[0] == again[0] == system
    assert first[1]["content"][1:] == again[1]["content"][1:] == parts
    salts = [one[1]["content"][0] for one in (first, again)]
    assert [len(salt["text"].split()) for salt in salts] == [10, 10]
    assert salts[0] != salts[1]
