"""Send requests for LoadGen's samples, and report their failures as one error."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_mlperf import RunError, Sink
from pytest_mlperf.adapters.engines import engine_error
from pytest_mlperf.adapters.engines.llm.generation import (
    EndWatch,
    Generation,
    logprobs_output,
    too_short,
)
from pytest_mlperf.adapters.engines.llm.streaming import StreamedRequest
from pytest_mlperf.adapters.engines.openai._client import Bodies, Body, Client, Listener
from pytest_mlperf.adapters.engines.openai._count import Piece, ReferenceCount, joined, merged
from pytest_mlperf.adapters.engines.openai._events import (
    STOPS,
    Failed,
    StreamedAnswer,
    prompt_logprobs,
)
from pytest_mlperf.extension import REPLICA_NUMBER

if TYPE_CHECKING:
    from pytest_mlperf.adapters.engines.serving import Server


COLLECT_SECONDS = 1.0
POLL_SECONDS = 0.02
DRAIN_SECONDS = 1.0
MAX_EARLY_FAILURES = 10
"""Failures allowed early in a run, if its scenario allows a share of failed requests."""

MAX_COUNTED_KINDS = 24
"""Maximum kinds of answers to count, as a server may name a different model in each."""

MAX_FAILURE_KINDS = 6
LOOKED_AT = 16
"""Number of first answers whose text is compared with the server's count of tokens."""

MAX_TEMPLATE_TOKENS = 8
"""Maximum tokens of a chat's template around an answer: counted, but not in its text."""

HINTS = {
    429: "set concurrency to the number of requests that the server accepts at a time, or raise "
    "the server's limit",
    503: "the server is overloaded or not ready; see its log",
}


@dataclass(slots=True, eq=False)
class Flight(Listener):
    """Hold a request in flight, and read its answer.

    Attributes:
        heard_s: Time of the stream's last event, on the event loop's clock [s].
        commented: Whether only SSE comments arrived since then.
        pieces: Number of reads so far that returned one or more events.
        reported: Whether the sample was reported as done; only the end of the stream may be
            missing.
        salt: Key for the random words in the prompt, see `Body.of`.
    """

    run: SinkRequests
    request: StreamedRequest
    body: Body
    answer: StreamedAnswer
    report: Callable[[Flight], None]
    task: asyncio.Task[None]
    salt: str = ""
    heard_s: float = 0.0
    begun: bool = False
    commented: bool = False
    reported: bool = False
    pieces: int = 0

    def heard(self, *, comments: bool = False) -> None:
        self.commented = comments
        if not comments:
            self.pieces += 1
            self.run.heard(self)

    def tokens(self, count: int) -> None:
        self.request.tokens(count)

    def complete(self) -> None:
        self.report(self)
        self.reported = True


class SinkRequests:
    """Manage the requests made for one sink, on the event loop's thread."""

    def __init__(
        self, sink: Sink, server: Server | None, timeout_s: float, more: Callable[[], bool]
    ) -> None:
        """Start without requests; `more` returns whether samples are unfinished.

        `timeout_s` is the maximum time without data on a stream that has begun, or on all streams.
        """
        self.sink = sink
        self.over = False
        self._may_fail = float(getattr(sink, "may_fail", 0.0))
        self._server = server
        self._timeout_s = timeout_s
        self._more = more
        self._loop = asyncio.get_running_loop()
        self._flights: set[Flight] = set()
        self._times = Counter[int]()
        self._sent = 0
        self._counts: Counter[str] = Counter()
        self._first = ""
        self._status: int | None = None
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    def salt(self, index: int) -> str:
        """Return the key of the random words in a prompt; "" if a scorer will read the answer."""
        run = "" if self.sink.wants_output else getattr(self.sink, "run", "")
        self._times[index] += 1
        replica = os.environ.get(REPLICA_NUMBER, "")
        return run and f"{run} {replica} {self._times[index]}"

    def begin(self, flight: Flight) -> None:
        flight.heard_s = self._loop.time()
        if not self._flights:
            self._heard_s = flight.heard_s
        if self._timer is None:
            self._watch()
        self._flights.add(flight)
        self._sent += 1

    def heard(self, flight: Flight) -> None:
        self._heard_s = flight.heard_s = self._loop.time()
        flight.begun = True

    def end(self, flight: Flight) -> None:
        self._flights.discard(flight)

    def failed(self, flight: Flight, failure: Failed) -> None:
        """Count a failed request; end the run if failures exceed the allowed share (usually 0)."""
        if self.over or flight.reported:
            return
        self._counts[failure.kind] += 1
        self.sink.ended([flight.request.sample], [failure.kind])
        if self._may_fail and self._counts.total() <= max(
            MAX_EARLY_FAILURES, self._may_fail * self._sent
        ):
            flight.reported = True
            flight.request.lost()
            return
        if not self._first:
            self._first = f"sample {flight.request.index}: {failure}"
            self._status = failure.status
        if self._ending is None:
            self._ending = self._loop.create_task(self._conclude())

    def stop(self, error: BaseException) -> None:
        if self.over:
            return
        self.over = True
        for flight in self._flights:
            if flight.task is not asyncio.current_task():
                flight.task.cancel()
        self.sink.failed(error)

    def close(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._ending is not None:
            self._ending.cancel()

    async def _conclude(self) -> None:
        """End the run with one error on all failures, after a short wait for more of them."""
        deadline = self._loop.time() + COLLECT_SECONDS
        dead = self._death()
        while dead is None and self._loop.time() < deadline and (self._server or self._more()):
            await asyncio.sleep(POLL_SECONDS)
            dead = self._death()
        message = self._summary()
        if dead is not None:
            self.stop(engine_error(f"{dead} ({message})", dead.log))
            return
        if hint := HINTS.get(self._status or 0):
            message += f"; {hint}"
        log = None
        if self._server is not None:
            message, log = message + self._server.log_tail(), str(self._server.log)
        self.stop(engine_error(message, log))

    def _death(self) -> RunError | None:
        try:
            if self._server is not None:
                self._server.check()
        except RunError as error:
            return error
        return None

    def _summary(self) -> str:
        kinds = self._counts.most_common()
        parts = [f"{count} x {kind}" for kind, count in kinds[:MAX_FAILURE_KINDS]]
        if others := sum(count for _, count in kinds[MAX_FAILURE_KINDS:]):
            parts.append(f"{others} x other errors")
        failed, sent = self._counts.total(), self._sent
        return (
            f"{failed} of {sent} request{'s' * (sent != 1)} failed: {', '.join(parts)}; "
            f"first: {self._first}"
        )

    def _watch(self) -> None:
        time_s = self._loop.time()
        silent = time_s - self._heard_s > self._timeout_s
        for flight in tuple(self._flights):
            if flight.reported:
                late = time_s - flight.heard_s > DRAIN_SECONDS
            else:
                late = silent or (flight.begun and time_s - flight.heard_s > self._timeout_s)
                if late:
                    self.failed(flight, self._too_late(flight))
            if late:
                self._flights.discard(flight)
                flight.task.cancel()
        # A server can be dead while something it started still holds its connections.
        if self._flights and not self.over and self._death() is not None:
            for flight in self._flights:
                self.failed(flight, Failed("no answer", "the server is gone"))
        self._timer = self._loop.call_later(min(1.0, self._timeout_s / 4), self._watch)

    def _too_late(self, flight: Flight) -> Failed:
        silence = "the server sent nothing on any stream"
        if flight.begun:
            silence = "a stream sent nothing more"
        if flight.commented:
            silence = "a stream sent only comments"
        return Failed("time-out", f"{silence} for {self._timeout_s:g} s (request_timeout)")


class Checks:
    """Check each answer's model, token counts, length and end against its request."""

    def __init__(
        self,
        generation: Generation,
        *,
        watch_ends: bool,
        models: Collection[str] = (),
        template: int = 0,
        counter: ReferenceCount | None = None,
    ) -> None:
        """Prepare to check answers; `watch_ends` is False if they may all reach the length limit.

        `models` are the model names to accept, () for any. `template` is the number of tokens that
        the server adds to each prompt. `counter` counts the tokens of answers if the server does
        not.
        """
        self._generation, self._models, self.template = generation, models, template
        self.counter = counter
        watching = watch_ends and not generation.ignore_eos
        self._watch = EndWatch(generation, watching=watching, check="the server's model")
        self.expect = self._watch.expect

    def checked_tokens(
        self, answer: StreamedAnswer, body: Body, index: int, sink: Sink, sent: int | None
    ) -> int:
        """Check an answer; return its token count or raise Failed; `sent`: tokens in the prompt."""
        if counted := answer.tokens is None and self.counter is not None:
            answer.completion_tokens = self.counter.count(answer.pieces)
        tokens = answer.tokens
        if self._models and not answer.is_of(self._models):
            requested = next(iter(self._models))
            raise Failed("another model", f'"{answer.model}" answered for "{requested}"')
        if tokens is None:
            advice = 'set count_tokens = "reference"'
            raise Failed("uncounted answer", f"it had neither usage nor token ids; {advice}")
        if not tokens or not answer.started:
            cause = "the model ended its answer at once, or the server sent no text; check its log"
            raise Failed("empty answer", cause)
        self._check_counts(answer, tokens)
        check_prompt(answer.prompt_tokens, sent, body)
        if not counted:
            self._check_length(tokens, body)
        elif self._generation.ignore_eos and answer.finish != "length":
            raise Failed("ignore_eos not obeyed", f"finish_reason {answer.finish!r}, not 'length'")
        if sink.times_tokens and tokens < 2:
            advice = "set min_new_tokens = 2, if the server takes it"
            raise too_short(self._generation, index, tokens, advice)
        # If outputs are read, the scorer judges text without an end.
        if not sink.wants_output:
            self._watch.note([answer.finish != "length"])
        return tokens

    def _check_counts(self, answer: StreamedAnswer, tokens: int) -> None:
        # An end token may be counted and not sent.
        missing = tokens - answer.hidden - answer.n_ids if answer.n_ids else 0
        if missing and (missing != 1 or answer.finish == "length"):
            raise Failed(
                "token ids lost",
                f"the server's usage says {tokens} tokens, but it streamed {answer.n_ids} token "
                "ids; check the server, or a proxy before it, for lost stream events",
            )

    def _check_length(self, tokens: int, body: Body) -> None:
        generation = self._generation.of(body.length)
        most, fewest = generation.max_new_tokens, generation.min_new_tokens
        if tokens > most:
            limit = "max_new_tokens" if body.length is None else "the sample's output_tokens"
            raise Failed("too many tokens", f"{tokens}, but {limit} = {most}")
        if self._generation.ignore_eos and tokens < most:
            raise Failed(
                "ignore_eos not obeyed", f"an answer ended after {tokens} of {most} tokens"
            )
        if tokens < fewest:
            raise Failed("too few tokens", f"{tokens}, but min_new_tokens = {fewest}")


def check_prompt(counted: int | None, sent: int | None, body: Body) -> None:
    if counted is None:
        return
    if sent is not None and (counted < sent or (body.exact and counted != sent)):
        fault = f"the server counts {counted} tokens in a prompt of {sent}, so it changed it"
        raise Failed("another prompt", fault)
    if counted < body.fewest:
        least = f"a prompt that has at least {body.fewest}"
        fault = f"the server counts {counted} tokens in {least}, so it cut the prompt"
        raise Failed("another prompt", fault)


def output(answer: StreamedAnswer, generation: Generation, tokenizer: Any) -> bytes:
    """Return an answer's tokens for scorers: int64, little-endian, end token included."""
    ids = answer.ids
    if not ids:
        ids = list(tokenizer(joined(answer.text), add_special_tokens=False)["input_ids"])
    return generation.packed(ids, answer.finish)


def calls_or_text(answer: StreamedAnswer) -> bytes:
    """Return an answer in UTF-8 for function call scorers: its tool calls, or its text if none.

    Tool calls are a JSON list in the format of OpenAI's API; arguments that are not JSON stay text.
    """
    calls = merged([value for kind, value in answer.pieces if kind == "tools"])
    return (json.dumps(calls) if calls else joined(answer.text)).encode()


def _counts_hidden_tokens(answer: StreamedAnswer, tokens: int) -> bool:
    """Return whether `tokens`, the server's count, is too high for the text of its answer."""
    # The server rewrites tool calls.
    if answer.n_ids or answer.hidden or any(kind == "tools" for kind, _ in answer.pieces):
        return False
    content = "".join(value for _, value in answer.pieces).encode("utf-8", "surrogatepass")
    return tokens > len(content) + MAX_TEMPLATE_TOKENS


MAX_OPEN_FILES = 65_536


def allow_files(undo: contextlib.ExitStack) -> None:
    """Raise the limit of open files, which limits connections too, until `undo` closes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):  # some systems have a limit of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))


class Traffic:
    """Answer samples by requests to the server, on the event loop's thread.

    `submitted` counts samples, on the thread that submits them. `accepted` counts draft tokens that
    the server accepted. `kept` has the answers by sample, None if they are not collected; `seen`
    counts answers by kind, such as "empty". The engine empties both when it reads them. `counted`
    is the total number of output tokens, which arrived in `pieces` reads from the connection.
    """

    def __init__(self, client: Client, server: Server | None, timeout_s: float) -> None:
        self._client = client
        self._server = server
        self._timeout_s = timeout_s
        self._run: SinkRequests | None = None
        self.kept: dict[int, list[Piece]] | None = None
        self.seen = Counter[str]()
        self.submitted = 0
        self.accepted = self.counted = self.pieces = 0
        self._settled = self._looked = 0
        self._hides = False

    def use(
        self,
        bodies: Bodies,
        checks: Checks,
        generation: Generation,
        tokenizer: Any,
        session_header: str | None,
    ) -> None:
        self._bodies = bodies
        self._checks = checks
        self._generation = generation
        self._tokenizer = tokenizer
        self._session_header = session_header

    async def answer(self, request: StreamedRequest) -> None:
        try:
            await self._answer(request, self._run_of(request.sink))
        finally:
            self._settled += 1

    async def close(self) -> None:
        if self._run is not None:
            self._run.close()
            await asyncio.sleep(0)  # cancelled tasks end in the loop's next pass
        await self._client.close()

    def _report(self, flight: Flight) -> None:
        request, answer = flight.request, flight.answer
        sent = flight.body.tokens_of(flight.salt)
        tokens = self._checks.checked_tokens(answer, flight.body, request.index, request.sink, sent)
        self._note(answer, sent)
        output_bytes = None
        evaluates = self._generation.prompt_logprobs
        if request.sink.wants_output and evaluates:
            ids = self._bodies.prompt(request.index, "tokens").ids
            output_bytes = logprobs_output(request.index, ids, prompt_logprobs(answer, ids))
        elif request.sink.wants_output:
            output_bytes = (
                calls_or_text(answer)
                if flight.body.offers_tools
                else output(answer, self._generation, self._tokenizer)
            )
        elif self.kept is not None:
            self.kept[request.sample] = answer.pieces
        if answer.keeps:
            self._looked += 1
            self._hides |= _counts_hidden_tokens(answer, tokens)
        unsized = not (answer.in_first or answer.finish == "tool_calls" or self._hides)
        if unsized and request.sink.times_tokens and self.kept is None:
            self.seen["unsized_tokens"] += answer.visible
            self.seen["unsized_messages"] += answer.events
            self.seen["unsized_answers"] += 1
        held = 2 * answer.joined > answer.events - 1 and not request.held_up(answer.events)
        unknown = self._hides and not answer.hidden
        request.streamed(None if held else answer.after_first, None if unknown else answer.hidden)
        self.accepted += answer.accepted
        self.counted += tokens
        self.pieces += flight.pieces
        reason = "stop" if answer.finish in STOPS else answer.finish
        prompt = answer.prompt_tokens if sent is None else sent
        request.done(output_bytes, None if evaluates else tokens, reason, prompt)

    def _note(self, answer: StreamedAnswer, sent_tokens: int | None) -> None:
        """Add an answer to `Engine.answer_counts`; `sent_tokens`: tokens of its prompt, or None."""
        seen = self.seen
        seen["answers"] += 1
        seen["refused"] += "refusal" in answer.fields
        if answer.is_empty:
            seen["empty"] += 1
            seen["cut_reasoning"] += bool(answer.fields) and answer.finish == "length"
        calls = merged([value for kind, value in answer.pieces if kind == "tools"])
        reads = self._run is not None and self._run.sink.wants_output
        if reads and any(not isinstance(one["function"]["arguments"], dict) for one in calls):
            seen["bad_calls"] += 1
        if answer.prompt_tokens is not None:
            if sent_tokens is not None:
                seen["prompt_tokens"] += answer.prompt_tokens
                seen["expected_tokens"] += sent_tokens + self._checks.template
            if answer.cached is not None:
                seen["cached_tokens"] += answer.cached
                seen["cacheable_tokens"] += answer.prompt_tokens
        if answer.build:
            name = f"build {self._client.mask(answer.build)}"
            seen[
                name if name in seen or len(seen) < MAX_COUNTED_KINDS else "build of another name"
            ] += 1

    async def _answer(self, request: StreamedRequest, run: SinkRequests) -> None:
        if run.over:
            return
        task = asyncio.current_task()
        assert task is not None
        looks = self.kept is not None or self._looked < LOOKED_AT or self._checks.counter
        answer = StreamedAnswer(keeps=bool(request.sink.wants_output or looks))
        body = self._bodies[request.index]
        name, named = self._session_header, getattr(request.sink, "session", None)
        session = str(named(request.sample)) if callable(named) else ""
        header = f"{name}: {session}\r\n".encode() if name and session else b""
        salt = session or run.salt(request.index)
        flight = Flight(run, request, body, answer, self._report, task, salt)
        run.begin(flight)
        try:
            await self._client.stream(body.with_salt(salt), answer, flight, header)
        except Failed as failure:
            run.failed(flight, failure)
        except RunError as error:
            run.stop(error)
        finally:
            run.end(flight)

    def _run_of(self, sink: Sink) -> SinkRequests:
        run = self._run
        if run is None or run.sink is not sink:
            if run is not None:
                run.close()
            run = self._run = SinkRequests(sink, self._server, self._timeout_s, self._more)
        return run

    def _more(self) -> bool:
        return self.submitted > self._settled
