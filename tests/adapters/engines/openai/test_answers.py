"""Test that answers are counted, timed and parsed, and that any other answer is an error."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.openai import OpenAiEngine
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.testing import check_engine
from tests.adapters.engines.openai.recorder import RUN_TOKENS, Recorder, answering, open_engine, run
from tests.adapters.engines.openai.scripted import (
    DONE,
    TRANSFORMERS,
    Manner,
    Reply,
    Request,
    Script,
    Scripted,
    event,
    piece,
    usage,
)
from tests.adapters.engines.recording import SizedSamples, ask, packed
from tests.refusals import unrefused

TINY = Path(__file__).parents[4] / "suites" / "tiny" / "llama2-70b" / "model"


def answered(
    parts: Sequence[bytes],
    manner: Manner = Manner(),  # noqa: B008 - a frozen value
    /,
    samples: Sequence[Any] = ([5, 6, 7],),
    *,
    times_tokens: bool = True,
    wants_output: bool = False,
    **options: Any,
) -> Recorder:
    sink = Recorder(len(samples), times_tokens=times_tokens, wants_output=wants_output)
    with Scripted(answering(lambda _: Reply(parts=parts), manner)) as server:
        run(server.url, samples, sink=sink, **options)
    return sink


def test_tokens_are_counted_by_their_ids_and_not_by_pieces_of_text() -> None:
    sink = Recorder(1)
    with Scripted(Manner(tokens=4)) as server:
        run(server.url, sink=sink)
    assert sink.reports(100) == ["first", "next", "next", "next", "done"]
    assert sink.n_tokens == {100: 4}
    coalesced = [piece("w")] * 26 + [piece("w", finish="stop")]
    sink = answered([*coalesced, event({"choices": [], "usage": usage(3, 32)}), DONE])
    assert sink.reports(100) == ["first", "done"]
    assert sink.n_tokens == {100: 32}
    without_end = dataclasses.replace(TRANSFORMERS, paths=Manner().paths)
    for api in ("completions", "chat"):  # as `transformers serve` ends its streams
        sink = Recorder(1)
        with Scripted(without_end) as server:
            run(server.url, ["text"], sink=sink, api=api)
        assert sink.reports(100) == ["first", "done"]
        assert sink.n_tokens == {100: 5}


def test_requests_share_connections_and_no_more_than_concurrency_are_under_way() -> None:
    under_way = most = 0
    peers = set()

    class Ports(Scripted):
        async def _turn(self, reader: Any, writer: Any) -> bool:
            peers.add(writer.get_extra_info("peername"))
            return await super()._turn(reader, writer)

    def reply(request: Request) -> Reply:
        def parts() -> Iterator[bytes]:
            nonlocal under_way
            *first, last = Manner()(request).parts
            yield from first
            under_way -= 1
            yield last

        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        return Reply(parts=parts())

    for concurrency in (1, 3):
        sink = Recorder(30)
        most = 0
        peers.clear()
        with Ports(answering(reply)) as server:
            run(server.url, [[5]] * 30, sink=sink, concurrency=concurrency)
        assert (len(sink.n_tokens), most) == (30, concurrency)
        assert len(peers) <= concurrency + 1


def test_a_server_that_stands_still_is_seen_by_all_who_wait() -> None:
    """Also by samples whose request was not sent yet: their time runs since they were issued."""
    stall_s = 0.3

    def parts() -> Iterator[bytes]:
        time.sleep(stall_s)
        yield piece("a", ids=[1, 2], finish="stop")

    class Timed(Recorder):
        def done(self, *args: Any, **more: Any) -> None:
            ends_s.append(time.monotonic())
            super().done(*args, **more)

    ends_s: list[float] = []
    stalls = iter([Reply(parts=parts())])
    usual = Reply(parts=[piece("a", ids=[1, 2], finish="stop")])
    sink = Timed(20)
    with (
        Scripted(answering(lambda _: next(stalls, usual))) as server,
        open_engine(server.url, [[5]] * 20, concurrency=1) as engine,
    ):
        engine.load_samples(range(20))
        issued_s = time.monotonic()
        engine.submit(range(20), range(20), sink)
        sink.wait()

    assert not sink.errors
    assert min(ends_s) - issued_s >= stall_s


def test_a_client_that_is_held_up_says_so() -> None:
    """For half a second while an answer comes; the next run starts with a clean sheet."""
    held: list[OpenAiEngine] = []

    def parts() -> Iterator[bytes]:
        yield piece("a", ids=[1])
        loop = held[0].event_loop()
        loop.call_soon_threadsafe(time.sleep, 0.5)
        loop.call_soon_threadsafe(over.set)
        over.wait(30)
        yield piece("b", ids=[2], finish="stop", counted=usage(3, 2))

    over = threading.Event()
    sink = Recorder(1)
    with (
        Scripted(answering(lambda _: Reply(parts=parts()))) as server,
        open_engine(server.url, max_new_tokens=32) as engine,
    ):
        held.append(engine)
        engine.load_samples([0])
        engine.client_lateness()
        engine.submit([100], [0], sink)
        sink.wait()
        late = engine.client_lateness()
        assert engine.client_lateness() == {}

    assert late["loop_p99"] > 0.3
    assert late.keys() == {f"{part}_p{n}" for part in ("issue", "loop") for n in (50, 90, 99)}


def test_token_ids_are_the_output_where_the_server_gives_them() -> None:
    rows = [
        ([piece("a", ids=[7]), piece("", ids=[2], finish="stop")], [7, 2]),
        ([piece("a", ids=[7, 8], finish="stop")], [7, 8, 2]),
        ([piece("a", ids=[7, 8], finish="length")], [7, 8]),
    ]
    reads: dict[str, Any] = {"wants_output": True, "times_tokens": False, "model": str(TINY)}
    for parts, ids in rows:
        assert answered([*parts, DONE], **reads).answers == {100: ids}
    manner = dataclasses.replace(TRANSFORMERS, paths=Manner().paths)
    sink = answered([], manner, ["text"], wants_output=True)
    assert "accuracy needs tokens, but the server gives text only" in sink.message


def test_text_is_tokenised_again_where_there_are_no_ids() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)

    def ids(text: str) -> list[int]:
        token_ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids

    def half(code: bytes) -> bytes:
        return b'data: {"choices":[{"text":"\\u%s","finish_reason":null}]}\n\n' % code

    text_only = dataclasses.replace(TRANSFORMERS, prompt_tokens=4)
    reads: dict[str, Any] = {"wants_output": True, "times_tokens": False, "model": str(TINY)}
    words = [piece("the qui"), piece("ck fox")]
    for parts, finish, expected in (
        (words, "stop", [*ids("the quick fox"), 2]),
        (words, "length", ids("the quick fox")),
        ([half(b"d83d"), half(b"de00")], "length", ids("\U0001f600")),
        ([half(b"d83d"), half(b"0061")], "length", ids("\ufffda")),
    ):
        last = piece("", finish=finish, counted=usage(4, 9))
        sink = answered([*parts, last], text_only, ["text"], **reads)
        assert sink.answers == {100: expected}
        assert sink.n_tokens == {100: 9}


LAST = piece("w", finish="stop")


def ended_after(*counts: int, last: bytes = LAST) -> list[bytes]:
    return [last, event({"choices": [], "usage": usage(*counts)}), DONE]


EMPTY, LOST = piece("", finish="stop"), piece("w", ids=[1, 2, 3], finish="stop")
FAILING: list[tuple[list[bytes], dict[str, Any], str]] = [
    (ended_after(3, 9, last=EMPTY), {}, "1 x empty answer; first: sample 0: empty answer"),
    ([LAST, DONE], {}, "uncounted answer: it had neither usage nor"),
    (ended_after(3, 9, last=LOST), {}, "usage says 9 tokens, but it streamed 3 token ids"),
    (ended_after(2, 9), {}, "another prompt: the server counts 2 tokens in a prompt of 3"),
    (ended_after(3, 9), {"ignore_eos": True}, "not obeyed: an answer ended after 9 of 32 tokens"),
    (ended_after(3, 9), {"min_new_tokens": 10}, "too few tokens: 9, but min_new_tokens = 10"),
    (ended_after(3, 33), {}, "too many tokens: 33, but max_new_tokens = 32"),
]


def test_an_answer_that_does_not_match_the_request_is_a_failure() -> None:
    for parts, options, expected in FAILING:
        sink = answered(parts, **options)
        assert expected in sink.message
        assert "1 of 1 request failed: " in sink.message
        assert "done" not in sink.reports(100)
        assert isinstance(sink.errors[0], RunError)
        assert sink.errors[0].layer == "engine"


def test_an_end_token_may_be_counted_without_being_sent_and_one_token_is_not_timed() -> None:
    counted = event({"choices": [], "usage": usage(3, 3)})
    assert answered([piece("w", ids=[1, 2], finish="stop"), counted]).n_tokens == {100: 3}
    parts = [piece("w", ids=[1], finish="stop"), DONE]
    assert "set min_new_tokens = 2, if the server takes it" in answered(parts).message
    assert answered(parts, times_tokens=False).n_tokens == {100: 1}


def test_a_model_that_never_ends_is_an_error_unless_that_is_meant() -> None:
    """Of 32 samples or all that are loaded none came to an end of its own."""
    samples = [[5, 6, 7]] * 3
    endless = ended_after(3, 9, last=piece("w", finish="length"))
    assert "none of the first 3 samples ended within" in answered(endless, samples=samples).message
    ids = ended_after(3, 9, last=piece("w", ids=list(range(9)), finish="length"))
    for options in ({"weights": "dummy"}, {"wants_output": True, "model": str(TINY)}):
        assert not answered(ids, samples=samples, **options).errors


def test_a_sample_that_is_no_prompt_is_named() -> None:
    def load(samples: Sequence[Any]) -> None:
        with open_engine(server.url, samples, model=str(TINY)) as engine:
            engine.load_samples(range(len(samples)))

    rows = [
        (["text", ""], "sample 1 of the data set is an empty prompt"),
        (["text", [5]], "sample 1 of the data set is of type list, but the first sample"),
        ([[5], []], "sample 1 of the data set is an empty prompt"),
        ([[5], [1024]], "sample 1 .* has token id 1024, but the model's vocabulary"),
        ([[5], [5] * 490], "sample 1 .* has 490 tokens, and max_new_tokens = 32 more"),
        ([], "the data set has no samples"),
    ]
    with Scripted(Manner(prompt_tokens=4)) as server:
        assert unrefused(load, RunError, rows) == []


def test_no_folder_tells_the_weights_of_a_server_that_runs_already() -> None:
    with Scripted(Manner()) as server:
        for options in ({}, {"weights": "dummy"}):
            with open_engine(server.url, model=str(TINY), **options) as engine:
                facts = {n: v for n, v in engine.describe().items() if n.startswith("weights")}
                assert facts == options


@pytest.mark.process
def test_the_engine_keeps_the_contract() -> None:
    with Scripted(Manner(tokens=4)) as server:
        options = {"url": server.url, "max_new_tokens": RUN_TOKENS}
        for prompt in ([5, 6, 7], "a text"):
            answers = check_engine(OpenAiEngine, [prompt] * 9, options=options, tokens=True)
            assert answers == dict.fromkeys(range(9), packed([100, 101, 102, 103]))


def test_the_page_of_metrics_is_where_the_server_has_one() -> None:
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({"/metrics": "# TYPE a gauge\na 1\n"}, ["/metrics"]),
        ({"/metrics": "[{}]", "/prometheus/metrics": "# HELP a b\n"}, ["/prometheus/metrics"]),
        ({"/metrics": "<html>welcome</html>"}, []),
    ]
    for pages, expected in cases:
        manner = Manner(paths={**Manner().paths, **pages})
        with Scripted(manner) as server, open_engine(server.url) as engine:
            assert engine.metrics_pages() == tuple(f"{server.url}{path}" for path in expected)


METRICS = """# TYPE vllm:spec_decode_num_accepted_tokens counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="a b"}} {0}
vllm:spec_decode_num_accepted_tokens_total{{engine="1",model_name="a b"}} 1.2e+03
vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} 7.0
"""


def test_accepted_drafts_are_those_of_the_answers_else_those_of_the_server() -> None:
    """As the engine says before and after a run of three answers."""
    name, many = "vllm:spec_decode_num_accepted_tokens_total", METRICS.format("100.0")
    rows: list[tuple[Any, list[str], list[int | None]]] = [
        ({"accepted_prediction_tokens": 4}, ["", ""], [None, 12]),
        (None, [many, METRICS.format("130.0")], [1300, 30]),
        ({}, [many, many], [1300, 0]),
        ({}, [many, METRICS.format("3.0")], [1300, 0]),  # started again, or another server
        ({"accepted_prediction_tokens": 0}, ["", ""], [None, None]),
        ({}, [f"{name} nan", "x" * 99], [None, None]),
        ({}, [f"{name} {'9' * 5000}", ""], [None, None]),
    ]
    for details, metrics, accepted in rows:
        pages = iter(["", *metrics])
        counts = {**usage(3, 9), "completion_tokens_details": details}
        reply = Reply(parts=[piece("a"), LAST, event({"choices": [], "usage": counts}), DONE])

        def script(request: Request, reply: Any = reply, pages: Any = pages) -> Reply:
            if request.path == "/metrics":
                return Reply(parts=[next(pages).encode()], kind="text/plain")
            return answering(lambda _: reply)(request)

        with Scripted(script) as server, open_engine(server.url, [[5, 6, 7]] * 3) as engine:
            first = engine.accepted_drafts()
            ask(engine, Recorder(3), 3)
            assert [first, engine.accepted_drafts()] == accepted


LENGTHS = [2, 9, 5]


TURN = {"messages": [{"role": "user", "content": "Hello."}]}


def opened(url: str, sample: Any, **options: Any) -> OpenAiEngine:
    samples = SizedSamples([sample] * len(LENGTHS), LENGTHS)
    arguments = {"ignore_eos": True, "max_new_tokens": 16, **options}
    return OpenAiEngine(dataset=samples, model=None, precision="fp32", url=url, **arguments)


def counts(script: Script, sample: Any, **options: Any) -> tuple[Recorder, list[Request]]:
    """Answer every sample once; return the sink, and the run's requests."""
    sink = Recorder(len(LENGTHS))
    with Scripted(script) as server, opened(server.url, sample, **options) as engine:
        engine.load_samples(range(len(LENGTHS)))
        earlier_streams = len(server.streams)
        engine.submit(range(100, 100 + len(LENGTHS)), range(len(LENGTHS)), sink)
        sink.wait_for_end()
        return sink, server.streams[earlier_streams:]


def test_each_request_asks_for_its_own_length() -> None:
    """Turns of conversations too; the longest must be one that the engine takes."""
    sink, requests = counts(Manner(), [5, 6, 7], min_new_tokens=4)
    lengths = sorted((one.body["max_tokens"], one.body["min_tokens"]) for one in requests)
    assert lengths == [(2, 2), (5, 4), (9, 4)]
    assert not sink.errors
    expected = {100 + index: length for index, length in enumerate(LENGTHS)}
    assert sink.n_tokens == expected
    assert counts(Manner(tokens=30), TURN, api="chat", ignore_eos=False)[0].n_tokens == expected
    message = r"up to 9 tokens, but max_new_tokens = 8; set .* at least 9"
    with Scripted(Manner()) as server, pytest.raises(RunError, match=message):
        opened(server.url, [5, 6, 7], max_new_tokens=8).__enter__()


def test_a_server_that_goes_beyond_a_samples_length_is_an_error() -> None:
    def greedy(request: Request) -> Reply:
        most = request.body.get("max_tokens")
        more = {"max_tokens": most + 1, "ignore_eos": True} if most in LENGTHS else {}
        return Manner()(dataclasses.replace(request, body={**request.body, **more}))

    sink, _ = counts(greedy, [5, 6, 7], ignore_eos=False)

    assert "too many tokens" in sink.message
    assert "the sample's output_tokens = " in sink.message
