"""`make servers`: each faulty server of the tests, what it did, and what our client says of it.

A server with one fault at a time is measured by the engine `openai`, in a short closed loop as a
worker makes it, or by a pytest run of its own where the verdict matters. The server writes down its
own truth: stamps of its own clock and its own counts. A row shows the truth beside the figures of
the client, and whether they agree: a time within 10 % (of 3 ms for the first token), a rate within
10 %, counts exactly, a share within 2 points, a sentence by the words that must be in it. A figure
that nobody can know must be absent, and an honest server must be accused of nothing.

A row that does not agree is measured up to twice more: other work on the machine makes a client
late, and a wrong client is wrong each time. Exit code 1: a row never agreed. `--only WORD` runs the
rows whose name has that word.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any
from urllib.request import urlopen

from pytest_mlperf.adapters.engines.llm.model_folder import load_tokenizer
from pytest_mlperf.core.case import Kind, Scenario
from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.server import answer_signs
from pytest_mlperf.run.worker.closed_loop import ClosedLoop, SlotSink
from pytest_mlperf.run.worker.conversations import Conversations
from pytest_mlperf.stores.results import read_results
from tests.adapters.engines.openai.echo import echo_server
from tests.adapters.engines.openai.recorder import answering, in_a_run, open_engine
from tests.adapters.engines.openai.scripted import (
    Manner,
    PrefixCache,
    Reply,
    Request,
    Script,
    Scripted,
    failure,
)
from tests.adapters.engines.openai.test_identity import FORTY, TINY, TOKENS, listing, named
from tests.plugin import test_first_answers as first_answers
from tests.run.harness import settings

ROOT = Path(__file__).resolve().parents[1]

STREAMS, WINDOW_MS = 4, 2000
SERVICE_MS, PACE_MS, EVENT_S = 20, 5, 2e-3
IDS = [5, 6, 7]
"""A prompt as token ids: the server then gives those of its answers."""

TEXT = "Say it."
MAY_FAIL = 0.1

TTFT, FIRST_READ, TPOT = "TTFT", "first read", "TPOT"
RATE, HIDDEN, CACHED, FAILED = "tokens/s", "hidden share", "cached share", "failed share"
PROMPT, MODEL = "prompt tokens", "model"
RESTARTED = "after the restart"
DIFFER, SAME = "runs differ", "by less than 10 %"

UNITS = {TTFT: "ms", FIRST_READ: "ms", TPOT: "ms"}
SHARES = (HIDDEN, CACHED, FAILED)
NEAR, NEAR_SHARE = 0.1, 0.02
NEAR_MS = {TTFT: 3.0, FIRST_READ: 3.0, TPOT: 0.3}
"""Times of a shared machine may differ by so much: TPOT is a mean of many stamps."""

LIMIT_S, TRIES = 180, 3
LEAN = ("-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:xdist", "-o", "mlperf_wait_idle=0")
COLUMNS = {"fault": 24, "the server": 31, "the client": 34}

Figures = Mapping[str, float | str]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One server as it saw itself, and as the client saw it.

    Attributes:
        server: Figures by the server's own stamps and counts.
        client: Those of the client; what it does not know is left out.
        did: What the server did that is no figure.
        says: Notes, or the error or headline.
        words: What the client must say by the server's counts, beside what the fault asks for.
        absent: Figures that the client must not have.
        doubted: Figures that nobody can know, and that a note calls doubtful.
    """

    server: Figures = field(default_factory=dict)
    client: Figures = field(default_factory=dict)
    did: str = ""
    says: str = ""
    words: Sequence[str] = ()
    absent: Sequence[str] = ()
    doubted: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, how it is looked at, and the tests that hold what is said of it.

    Attributes:
        words: What the client must say; (): nothing at all.
    """

    name: str
    look: Callable[[], Seen]
    tests: Sequence[str]
    words: Sequence[str] = ()

    def disagreements(self, seen: Seen) -> Iterator[str]:
        """Yield in words where the client and the server do not agree."""
        for name, truth in seen.server.items():
            value = seen.client.get(name)
            if name in seen.absent:
                if value is not None:
                    yield f"{name} should be absent"
            elif name not in seen.doubted and (value is None or not is_near(name, value, truth)):
                yield f"{name} differs"
        words = [*self.words, *seen.words]
        yield from (f'"{word}" is not said' for word in words if word not in seen.says)
        if not words and seen.says:
            yield "nothing was to be said"


def is_near(name: str, value: float | str, truth: float | str) -> bool:
    """Tell whether the client has a figure right."""
    if isinstance(value, str) or isinstance(truth, str) or name == PROMPT:
        return value == truth
    limit = NEAR_SHARE if name in SHARES else max(NEAR * truth, NEAR_MS.get(name, 0.0) / 1e3)
    return abs(value - truth) <= limit


# --- a closed loop as a worker makes it --------------------------------------------------------


class MeasuredLoop(ClosedLoop):
    """Ends by the first error that the sink was given: a worker ends its process."""

    errors: Sequence[BaseException] = ()

    def _issue(self, slot: int) -> None:
        if self.errors:
            raise self.errors[0]
        super()._issue(slot)


def measure(
    url: str, samples: Sequence[Any] = (IDS,), may_fail: float = 0.0, **options: Any
) -> tuple[Figures, str]:
    """Return the figures of a short window, and what the client says of it: notes, or the error."""
    errors: list[BaseException] = []

    def fail(error: BaseException) -> None:
        errors.append(error)
        for slot in range(STREAMS):  # who waits for a slot wakes up
            sink.freed.put((slot, time.perf_counter()))

    asked = replace(
        settings("Offline"), scenario=Scenario.CONCURRENCY, points=[STREAMS], tokens=True
    )
    asked = replace(asked, min_duration_ms=WINDOW_MS)
    sink = SlotSink(fail, tokens=True, may_fail=may_fail)
    sink.run = "one"
    try:
        with open_engine(url, samples, **options) as engine:
            engine.load_samples(range(len(samples)))
            engine.answer_counts()  # those of the questions before
            loop = MeasuredLoop(engine, sink, Conversations(range(len(samples))), asked)
            loop.errors = errors
            (point,) = loop.run("one", 0.15, lambda: None)["points"]
            facts = engine.describe()
    except MlperfError as error:
        return {}, str(error)
    counts = point["answer_counts"]
    signs = answer_signs({STREAMS: counts}, facts, {})
    return figures_of(point, facts), "; ".join(
        [*point["notes"].values(), *(sentence(sign.text) for sign in signs)]
    )


def figures_of(point: Mapping[str, Any], facts: Mapping[str, str]) -> Figures:
    """Return the figures of a point of a curve that a server can tell as well."""
    metrics, counts = point["metrics"], Counter(point["answer_counts"])
    names = {TTFT: "ttft_p50", FIRST_READ: "first_read_p50", TPOT: "tpot_p50"}
    names |= {RATE: "tokens_per_second"}
    found: dict[str, float | str] = {
        name: metrics[metric] for name, metric in names.items() if metric in metrics
    }
    if point["hidden_share"] is not None:
        found[HIDDEN] = point["hidden_share"]
    if counts["prompt_tokens"]:
        found[PROMPT] = counts["prompt_tokens"] / counts["answers"]
    if counts["cacheable_tokens"]:
        found[CACHED] = counts["cached_tokens"] / counts["cacheable_tokens"]
    if point["failed"]:
        found[FAILED] = point["failed"] / (point["failed"] + point["requests"])
    return {**found, MODEL: facts["server.model"]}


# --- how answers are delivered -----------------------------------------------------------------


def delivered(
    tokens: int = 20,
    *,
    text: bool = False,
    chat: bool = False,
    held: bool = False,
    doubted: Sequence[str] = (),
    absent: Sequence[str] = (),
    did: str = "",
    **manner: Any,
) -> Seen:
    """Measure a paced server, in a process of its own, that streams in some manner."""
    with echo_server(tokens, SERVICE_MS, PACE_MS, truth=1, **manner) as url:
        prompt: Any = TEXT if text or chat else IDS
        api = "chat" if chat else "completions"
        client, says = measure(url, [prompt], max_new_tokens=128, api=api)
        with urlopen(f"{url}/truth") as page:
            answers = [one for one in json.load(page) if one["most"] == 128]
    return Seen(
        server=truth_of(answers, held=held),
        client=client,
        did=did,
        says=says,
        absent=[*absent, *((TTFT, TPOT) if held else ()), *([] if prompt is IDS else [PROMPT])],
        doubted=doubted,
    )


def truth_of(answers: Sequence[Mapping[str, Any]], *, held: bool) -> Figures:
    """Return what a paced server knows of its answers, by its own stamps.

    Args:
        held: Tokens wait for others: what a user would see without that is when they are made.
    """
    first = answers[0]
    read_s = median(one["first_s"] - one["asked_s"] for one in answers)
    visible = first["tokens"] - first["hidden"]
    paces = [
        (one["last_s"] - one["first_s"]) / (visible - first["in_first"])
        for one in answers
        if visible > first["in_first"]
    ]
    times = {TTFT: first["made_s"], FIRST_READ: read_s, TPOT: PACE_MS / 1e3}
    if not held:
        times = {TTFT: read_s, TPOT: median(paces)}
    return {
        **times,
        RATE: rate_of(answers),
        HIDDEN: first["hidden"] / first["tokens"],
        PROMPT: fmean(one["prompt"] for one in answers),
        MODEL: "echo",
    }


def rate_of(answers: Sequence[Mapping[str, Any]]) -> float:
    """Return tokens/s: of each connection from the end of its first answer to that of its last."""
    total = 0.0
    for _, group in itertools.groupby(
        sorted(answers, key=lambda one: (one["connection"], one["last_s"])),
        key=lambda one: one["connection"],
    ):
        ends_s = [one["last_s"] for one in group]
        if len(ends_s) > 2:
            total += (len(ends_s) - 1) * answers[0]["tokens"] / (ends_s[-1] - ends_s[0])
    return total


# --- who answers, and what was asked -----------------------------------------------------------


def scripted(
    script: Script, samples: Sequence[Any] = (IDS,), did: str = "", **options: Any
) -> Seen:
    """Measure a server that answers at once, as a script says."""
    with Scripted(paced(script)) as server:
        client, says = measure(server.url, samples, **options)
    return Seen(client=client, says=says, did=did)


def paced(script: Script) -> Script:
    """Let a server send the events of its answers one by one."""
    return lambda request: replace(script(request), pace_s=EVENT_S)


def another_before() -> Seen:
    """Ask a server for a model that it does not have."""
    script = named("gpt-oss", listing({"id": "gpt-oss"}))
    return scripted(script, did='model "gpt-oss" answers', served_model="minimax")


def another_in_mid_run() -> Seen:
    """Let another model take over, as behind a gateway."""
    script = after(40, answering(named("other")), Manner())
    return scripted(script, did='model "other" answers from answer 41 on')


def after(count: int, late: Script, early: Script) -> Script:
    """Answer so many requests of a run in one way, and all later ones in another."""
    turns = itertools.count()

    def answer(request: Request) -> Reply:
        return (late if in_a_run(request) and next(turns) >= count else early)(request)

    return answer


def two_builds() -> Seen:
    """Let two builds answer in turn."""
    answered = Counter[str]()

    def answer(request: Request) -> Reply:
        name = f"fp_{answered.total() % 2}"
        answered[name] += in_a_run(request)
        mark = f'{{"system_fingerprint": "{name}", "id"'.encode()
        reply = Manner()(request)
        return replace(reply, parts=[part.replace(b'{"id"', mark) for part in reply.parts])

    seen = scripted(answer)
    each = [f"{name} ({count:,})" for name, count in sorted(answered.items())]
    return replace(seen, did=f"builds that answered: {', '.join(each)}", words=each)


def cut_prompt() -> Seen:
    """Cut the prompts of later requests."""
    cut = after(40, Manner(prompt_tokens=20), Manner(prompt_tokens=TOKENS + 1))
    did = f"prompts of {TOKENS + 1} tokens are cut to 20 from answer 41 on"
    return scripted(cut, [FORTY], did, model=str(TINY), salt=False)


def second_begin_token() -> Seen:
    """Count the begin token that the text has already a second time."""
    tokenizer, _ = load_tokenizer("openai", TINY)
    prompt = f"{tokenizer.bos_token}{FORTY}"
    twice = len(tokenizer(prompt)["input_ids"])

    def count(request: Request) -> Reply:
        return Manner(prompt_tokens=twice if in_a_run(request) else twice - 1)(request)

    did = f"counts {twice} tokens, one begin token more than there are"
    seen = scripted(count, [prompt], did, model=str(TINY), salt=False)
    return replace(seen, server={PROMPT: float(twice)}, client={PROMPT: seen.client[PROMPT]})


# --- requests that fail ------------------------------------------------------------------------


def failing(may_fail: float) -> Seen:
    """Let each 32nd request fail; a share of them may."""
    turns, failed = itertools.count(1), Counter[bool]()

    def answer(request: Request) -> Reply:
        if not in_a_run(request):
            return Manner()(request)
        fails = next(turns) % 32 == 0
        failed[fails] += 1
        return failure("500 Internal Server Error", "out of memory") if fails else Manner()(request)

    with Scripted(paced(answer)) as server:
        client, says = measure(server.url, may_fail=may_fail)
    did = f"{failed[True]} of {failed.total()} requests end with HTTP 500"
    server_share = {FAILED: failed[True] / failed.total()} if may_fail else {}
    kept = {FAILED: client[FAILED]} if FAILED in client else {}
    return Seen(server=server_share, client=kept, did=did, says=says)


def accident(how: str) -> Seen:
    """Measure a server that goes wrong in answer 40, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.adapters.engines.openai.accidents", how, str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            _, says = measure(f"http://127.0.0.1:{port}")
        finally:
            process.kill()
    return Seen(did=f"it {how} in answer 40", says=says)


def wait_for(port: int) -> None:
    """Wait until a server listens."""
    until_s = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)
        else:
            return


# --- verdicts of whole sessions ----------------------------------------------------------------

PROMPTS = """
schema = 1
round = "v6.0"
[workload]
name = "served"
tokens = true
dataset = {{ use = "prompts", samples = 64, input_tokens = {{ fixed = 64 }}{repeat} }}
[[engines]]
use = "openai"
accelerators = ["cpu"]
options = {{ url = "{url}", max_new_tokens = 9 }}
[[scenarios]]
name = "Concurrency"
points = [4]
min_duration = "2500ms"
[limits]
tokens_per_second = {{ max_drop = "40%" }}
"""
ANSWER_S, WORD_S = 0.05, 1e-3
RUNS = 5
JUDGED = (Outcome.OK, Outcome.IMPROVED, Outcome.PROVISIONAL, Outcome.INCONCLUSIVE)
"""The outcomes of a comparison in which no drop is proven: a baseline of one session proves few."""


@contextmanager
def project(suite: str, module: str = "") -> Iterator[Callable[..., Verdict]]:
    """Write a suite into a folder of its own; yield what runs pytest there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "suites").mkdir()
        (folder / "suites/one.mlperf.toml").write_text(suite, "utf-8")
        (folder / "own.py").write_text(module, "utf-8")
        yield partial(session, folder)


def session(folder: Path, *arguments: str, kind: str = "performance") -> Verdict:
    """Return the verdict of a pytest run, at a desk."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    for variable in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"):
        environment.pop(variable, None)
    log = "--mlperf-json=r.json"
    options = (*LEAN, "-o", "mlperf_warmup=never", "-k", kind, log, *arguments)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "suites", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if not (folder / "r.json").exists():
        raise RunError("pytest-mlperf", f"pytest left no results:\n{ended.stdout[-2000:]}")
    (verdict,) = (one.verdict for one in read_results(folder / "r.json").cases)
    (folder / "r.json").unlink()
    return verdict


class CountedCache:
    """A server with a cache of prefixes, and what it had of the prompts of a run."""

    def __init__(self) -> None:
        self.cache = PrefixCache(answer_s=ANSWER_S, word_s=WORD_S)
        self.server = Scripted(paced(self.cache))

    def restart(self) -> None:
        """Forget all prompts, as a server that was started again."""
        self.cache.kept.clear()

    def share(self, begin: int) -> float:
        """Return the mean share of those requests of runs from `begin` on, by its own count."""
        pairs = zip(self.server.streams, self.cache.shares, strict=False)
        runs = [share for one, share in pairs if one.body["max_tokens"] == 9]
        return fmean(runs[begin:])

    @property
    def asked(self) -> int:
        """The requests of runs so far."""
        return sum(one.body["max_tokens"] == 9 for one in self.server.streams)


def figures_of_runs(verdict: Verdict) -> dict[str, float]:
    """Return the figures of the runs of a verdict."""
    return {
        RATE: median(run.metrics["tokens_per_second@4"] for run in verdict.runs),
        TTFT: median(run.metrics["ttft_p50@4"] for run in verdict.runs),
        CACHED: fmean(run.serving.server["prefix_hit_share@4"] for run in verdict.runs),
    }


def in_words(verdict: Verdict) -> str:
    """Return the outcome and the headline of a verdict."""
    return f"{verdict.outcome}: {verdict.headline}" if verdict.headline else str(verdict.outcome)


def made_up_prompts() -> Seen:
    """Record five runs, start the server again, and compare."""
    counted = CountedCache()
    with counted.server as server, project(PROMPTS.format(url=server.url, repeat="")) as pytest:
        recorded = pytest("--mlperf-update=missing", f"-omlperf_baseline_runs={RUNS}")
        recorded_share = counted.share(0)
        counted.restart()
        begin = counted.asked
        again = pytest()
        share = max(recorded_share, counted.share(begin))
    rates = [run.metrics["tokens_per_second@4"] for run in (*recorded.runs, *again.runs)]
    alike = max(rates) / min(rates) - 1
    before, now = figures_of_runs(recorded), figures_of_runs(again)
    first_s = ANSWER_S + 64 * WORD_S
    return Seen(
        did=f"{RUNS} runs, a restart, and a run: no prompt was in its cache",
        server={
            TTFT: first_s,
            CACHED: share,
            DIFFER: SAME,
            RESTARTED: "judged",
            RATE: STREAMS * Manner().tokens / (first_s + Manner().tokens * EVENT_S),
        },
        client={
            **now,
            CACHED: max(before[CACHED], now[CACHED]),
            RESTARTED: "judged" if again.outcome in JUDGED else again.outcome,
            DIFFER: SAME if alike < NEAR else f"by {alike:.0%}",
        },
        says=f"{recorded.outcome} {len(recorded.runs)} runs; {in_words(again)}",
    )


def repeated_prompts() -> Seen:
    """Record with a warm cache, start the server again, and compare."""
    counted = CountedCache()
    repeat = ", repeat = true"
    with counted.server as server, project(PROMPTS.format(url=server.url, repeat=repeat)) as pytest:
        pytest()
        begin = counted.asked
        recorded = pytest("--mlperf-update=missing", "-omlperf_baseline_runs=2")
        warm = counted.share(begin)
        counted.restart()
        judged = pytest()
    return Seen(
        did="answers the same prompts from its cache, and is started again",
        server={CACHED: warm},
        client={CACHED: figures_of_runs(recorded)[CACHED]},
        says=in_words(judged),
    )


def empty_answers() -> Seen:
    """Record the first scores of a server whose answers are empty in part."""
    model = first_answers.Model(every=3)
    with Scripted(model) as server:
        suite = first_answers.SUITE.replace("URL", server.url)
        suite = suite.replace("DATASET", '{ use = "own:Questions" }')
        with project(suite, first_answers.DATA) as pytest:
            verdict = pytest("--mlperf-update=missing", kind=Kind.ACCURACY)
    return Seen(did="20 of 60 answers are reasoning up to the limit", says=in_words(verdict))


# --- all of them -------------------------------------------------------------------------------

TOGETHER = "test_answers_that_come_together_have_no_times_between_their_tokens"
VISIBLE = "test_times_per_token_are_of_tokens_that_a_user_saw_after_the_first_message"
UNCHANGED = "test_comments_reasoning_and_held_arguments_change_no_time_of_a_token"
UNSIZED = "test_a_first_message_of_unknown_size_is_noted_if_it_may_hide_much_of_the_time"
SCORES = "test_answers_of_reasoning_only_are_not_recorded"
CACHE = "test_runs_ask_other_prompts_and_a_baseline_of_the_same_ones_is_not_compared"
FAILURES = "test_each_kind_of_failure_is_reported_with_its_count"

IN_ONE_READ = "of the answers came in one read, or in few"

FAULTS = (
    Fault(name="none: an event a token", look=delivered, tests=[VISIBLE]),
    Fault(
        name="none: text without token ids",
        look=partial(delivered, text=True, ids=0),
        tests=[VISIBLE],
    ),
    Fault(
        name="none: bursts of speculative decoding, 4 tokens an event",
        look=partial(delivered, 21, first=1, step=4),
        words=["of the tokens came together with others"],
        tests=[VISIBLE],
    ),
    Fault(
        name="the first message has 10 tokens, with ids",
        look=partial(delivered, first=10),
        words=["of the tokens came together with others"],
        tests=[VISIBLE],
    ),
    Fault(
        name="events of 10 tokens, and nothing tells how many are in the first",
        look=partial(delivered, 40, first=10, step=10, text=True, ids=0, doubted=[TPOT]),
        words=["TPOT counts it as one token, and may be too short by up to"],
        tests=[UNSIZED],
    ),
    Fault(
        name="a proxy sends 8 tokens in one read",
        look=partial(delivered, 8, hold=1000, held=True),
        words=[IN_ONE_READ],
        tests=[TOGETHER],
    ),
    Fault(
        name="a proxy sends 20 tokens in one read",
        look=partial(delivered, 20, hold=1000, held=True, text=True, ids=0),
        words=[IN_ONE_READ],
        tests=[TOGETHER],
    ),
    Fault(
        name="a proxy flushes every 5 events",
        look=partial(delivered, 20, hold=5, held=True),
        words=[IN_ONE_READ],
        tests=[TOGETHER],
    ),
    Fault(
        name="reasoning is counted and not sent, usage says so",
        look=partial(delivered, 40, hidden=30, details=1, text=True),
        words=["75%"],
        tests=[VISIBLE],
    ),
    Fault(
        name="reasoning is counted and not sent, and usage does not say so",
        look=partial(delivered, 40, hidden=37, ids=0, text=True, doubted=[TPOT], absent=[HIDDEN]),
        words=["hidden"],
        tests=[VISIBLE],
    ),
    Fault(
        name="none: reasoning is streamed in full",
        look=partial(delivered, reasoning=12, details=1, chat=True),
        tests=[UNCHANGED],
    ),
    Fault(
        name="a parser holds the arguments of a call until they are complete",
        look=partial(delivered, chat=True, calls=1, ids=0),
        tests=[UNCHANGED],
    ),
    Fault(
        name="none: comments keep the connection alive until the first token",
        look=partial(delivered, ping_ms=4),
        tests=[UNCHANGED],
    ),
    Fault(
        name="a cache of prefixes, made-up prompts, five runs and a restart",
        look=made_up_prompts,
        words=[f"{Outcome.RECORDED} {RUNS} runs"],
        tests=["test_each_run_asks_other_prompts_of_the_same_lengths", CACHE],
    ),
    Fault(
        name="a cache of prefixes, prompts that are to be repeated, and a restart",
        look=repeated_prompts,
        words=[Outcome.INVALID, "of the prompts' tokens were in the server's cache"],
        tests=["test_repeated_prompts_are_compared_where_the_cache_had_as_many"],
    ),
    Fault(
        name="another model answers, from the start",
        look=another_before,
        words=['"minimax" was asked for, and "gpt-oss" answered'],
        tests=["test_another_model_is_refused_before_anything_is_timed"],
    ),
    Fault(
        name="another model answers, from mid-run on",
        look=another_in_mid_run,
        words=["x another model", '"other" answered for "m"'],
        tests=["test_another_model_in_mid_run_is_an_error_with_its_count"],
    ),
    Fault(
        name="two builds behind one address",
        look=two_builds,
        words=["answers came from several builds of the server (system_fingerprint)"],
        tests=["test_builds_that_change_are_counted"],
    ),
    Fault(
        name="prompts are cut in mid-run",
        look=cut_prompt,
        words=["x another prompt", "the server counts 20 tokens in a prompt of"],
        tests=["test_a_prompt_that_was_cut_is_an_error"],
    ),
    Fault(
        name="a second begin token",
        look=second_begin_token,
        words=["it adds tokens, such as a begin token that the prompts already contain"],
        tests=["test_a_second_begin_token_is_counted"],
    ),
    Fault(
        name="answers of an accuracy pass are empty",
        look=empty_answers,
        words=[Outcome.INVALID, "20 of 60 answers are empty"],
        tests=[SCORES],
    ),
    Fault(
        name="requests fail",
        look=partial(failing, 0.0),
        words=["requests failed: ", "x HTTP 500 (Internal Server Error)", "out of memory"],
        tests=[FAILURES],
    ),
    Fault(
        name="requests fail, and a tenth of them may",
        look=partial(failing, MAY_FAIL),
        tests=["test_requests_that_may_fail_do_so_in_each"],
    ),
    Fault(
        name="the server is killed in mid-run",
        look=partial(accident, "dies"),
        words=["requests failed:"],
        tests=["test_it_is_one_error_and_nothing_is_recorded", FAILURES],
    ),
    Fault(
        name="streams end before their end",
        look=partial(accident, "leaves streams unfinished"),
        words=["stream ended early"],
        tests=[FAILURES],
    ),
)


def shown(name: str, value: float | str | None) -> str:
    """Return a figure as text."""
    if value is None:
        return f"{name} absent"
    if isinstance(value, str):
        return f"{name} {value}"
    if name in UNITS:
        return f"{name} {1e3 * value:.3g} {UNITS[name]}"
    if name in SHARES:
        return f"{name} {value:.0%}"
    return f"{name} {value:,.4g}"


def looked_at(fault: Fault) -> tuple[Seen, Sequence[str], int]:
    """Measure a server until both agree; return what was seen last, what differs, and the tries."""
    tries = 0
    while True:
        tries += 1
        try:
            seen = fault.look()
            wrong = list(fault.disagreements(seen))
        except (MlperfError, LookupError, ValueError) as error:  # as where a figure is missing
            seen, wrong = Seen(), [f"{type(error).__name__}: {error}"]
        if not wrong or tries == TRIES:
            return seen, wrong, tries


def cells(fault: Fault, seen: Seen, wrong: Sequence[str], tries: int) -> list[list[str]]:
    """Return the lines of a row's cells: a figure of both sides stands on one line."""
    truth = [shown(name, value) for name, value in seen.server.items()]
    client = [shown(name, seen.client.get(name)) for name in seen.server]
    width = COLUMNS["the server"]
    did = textwrap.wrap(seen.did, width) if seen.did else []
    said = textwrap.wrap(seen.says, COLUMNS["the client"])
    verdict = "NO: " + "; ".join(wrong) if wrong else "agree"
    if tries > 1:
        verdict += f" (try {tries} of {TRIES})"
    if seen.doubted and not wrong:
        verdict += f", but for {' and '.join(seen.doubted)}, which the note calls unknown"
    return [
        textwrap.wrap(fault.name, COLUMNS["fault"]),
        [*truth, *did],
        [*client, *said],
        textwrap.wrap(verdict, 24),
    ]


def print_row(columns: Sequence[Sequence[str]]) -> None:
    """Print the lines of cells beside each other."""
    widths = [*COLUMNS.values(), 0]
    for parts in itertools.zip_longest(*columns, fillvalue=""):
        line = "  ".join(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True))
        print(line.rstrip(), flush=True)
    print(flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows, print them, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the rows whose name has this word")
    only = parser.parse_args(arguments).only
    faults = [fault for fault in FAULTS if only in fault.name]
    begun_s, bad = time.monotonic(), 0
    print_row([*([name] for name in COLUMNS), ["both"]])
    for fault in faults:
        seen, wrong, tries = looked_at(fault)
        bad += bool(wrong)
        print_row(cells(fault, seen, wrong, tries))
    print(f"{len(faults)} servers, {bad} not as they are, {time.monotonic() - begun_s:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
