"""The requests of LoadGen's samples on their way to the server and back."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Sink
from pytest_mlperf.engines.generation import Generation
from pytest_mlperf.engines.openai.bodies import Bodies, Body
from pytest_mlperf.engines.openai.checks import Checks, output
from pytest_mlperf.engines.openai.client import Client
from pytest_mlperf.engines.openai.events import Answer
from pytest_mlperf.engines.openai.failures import Failed, Flight, Run
from pytest_mlperf.engines.streaming import Request

if TYPE_CHECKING:
    from pytest_mlperf.engines.serving import Server

FILES = 65_536
"""Files that a process may want to have open: a connection is one."""


def allow_files(undo: contextlib.ExitStack) -> None:
    """Let this process have as many connections as it may, until `undo` is closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems have a limit of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))


class Traffic:
    """Answers samples by requests; lives on the event loop's thread.

    Attributes:
        submitted: Samples handed over so far; counted by the thread that does it.
    """

    def __init__(self, client: Client, server: Server | None, timeout_s: float) -> None:
        """Keep whom to ask.

        Args:
            client: Talks to the server.
            server: The server, where it was started here.
            timeout_s: How long streams may be silent.
        """
        self._client = client
        self._server = server
        self._timeout_s = timeout_s
        self._run: Run | None = None
        self.submitted = 0
        self._settled = 0

    def use(self, bodies: Bodies, checks: Checks, generation: Generation, tokenizer: Any) -> None:
        """Take what requests are made of and answers are read by."""
        self._bodies = bodies
        self._checks = checks
        self._generation = generation
        self._tokenizer = tokenizer

    async def answer(self, request: Request) -> None:
        """Send a sample's request and report its answer."""
        try:
            await self._answer(request, self._run_of(request.sink))
        finally:
            self._settled += 1

    async def close(self) -> None:
        """Close all connections; nothing is told any more."""
        if self._run is not None:
            self._run.close()
            await asyncio.sleep(0)  # what was cancelled ends in the loop's next pass
        await self._client.close()

    def report(self, talk: Talk) -> None:
        """Tell that a sample is done.

        Raises:
            Failed: Its answer is not what was asked for.
            RunError: No run with this model can be measured.
        """
        request, answer = talk.request, talk.answer
        tokens = self._checks.passed(answer, talk.body, request.index, request.sink)
        told = None
        if request.sink.wants_output:
            told = output(answer, self._generation, self._tokenizer)
        request.done(told, tokens)

    async def _answer(self, request: Request, run: Run) -> None:
        if run.over:
            return
        body = self._bodies[request.index]
        flight = run.begin(request.index)
        talk = Talk(self, run, flight, request, body)
        try:
            await self._client.stream(body.data, talk.answer, talk)
        except Failed as failure:
            run.failed(flight, failure)
        except RunError as error:
            run.stop(error)
        finally:
            run.end(flight)

    def _run_of(self, sink: Sink) -> Run:
        run = self._run
        if run is None or run.sink is not sink:
            if run is not None:
                run.close()
            run = self._run = Run(sink, self._server, self._timeout_s, self._more)
        return run

    def _more(self) -> bool:
        return self.submitted > self._settled


class Talk:
    """One request and its answer; listens to the stream."""

    __slots__ = ("_flight", "_run", "_traffic", "answer", "body", "request")

    def __init__(
        self, traffic: Traffic, run: Run, flight: Flight, request: Request, body: Body
    ) -> None:
        """Start with nothing heard."""
        self._traffic = traffic
        self._run = run
        self._flight = flight
        self.request = request
        self.body = body
        self.answer = Answer(keeps=request.sink.wants_output)

    def heard(self) -> None:
        """Take note that the server is alive."""
        self._run.heard(self._flight)

    def tokens(self, count: int) -> None:
        """Tell of new tokens."""
        self.request.tokens(count)

    def complete(self) -> None:
        """Report the sample."""
        self._traffic.report(self)
        self._flight.reported = True
