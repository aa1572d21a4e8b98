"""What a request gives; it has the attributes that the contract's table lists, and no others."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self


@dataclass(slots=True)
class TimingMetrics:
    """Times since the machine was started."""

    arrival_time: timedelta = timedelta()
    first_scheduled_time: timedelta = timedelta()
    first_token_time: timedelta = timedelta()
    last_token_time: timedelta = timedelta()


@dataclass(slots=True)
class RequestPerfMetrics:
    timing_metrics: TimingMetrics
    first_iter: int | None = None
    last_iter: int | None = None


@dataclass(frozen=True, slots=True)
class Response:
    tokens: tuple[int, ...] = ()
    reason: str | None = None
    metrics: RequestPerfMetrics | None = None
    a_step: float | None = None
    error: BaseException | None = None

    @property
    def last(self) -> bool:
        return self.reason is not None or self.error is not None


class CompletionOutput:
    __slots__ = (
        "_seen",
        "finish_reason",
        "index",
        "request_perf_metrics",
        "stop_reason",
        "text",
        "token_ids",
    )

    def __init__(self) -> None:
        self.index = 0
        self.text = ""
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.request_perf_metrics: RequestPerfMetrics | None = None
        self._seen = 0

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._seen :]

    def _take(self, response: Response) -> None:
        self._seen = len(self.token_ids)
        self.token_ids.extend(response.tokens)
        self.finish_reason = response.reason
        if response.metrics is not None:
            self.request_perf_metrics = response.metrics


class RequestOutput:
    """Awaitable, and iterable if it streams, on the event loop that it was made on."""

    def __init__(self, number: int, prompt_token_ids: list[int]) -> None:
        self.request_id = number
        self.prompt_token_ids = prompt_token_ids
        self.outputs = [CompletionOutput()]
        self.finished = False
        self.avg_decoded_tokens_per_iter: float | None = None
        self._queue: queue.Queue[Response] = queue.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._responses: asyncio.Queue[Response] = asyncio.Queue()

    def result(self, timeout: float | None = None) -> Self:
        while not self.finished:
            self._take(self._queue.get(timeout=timeout))
        return self

    async def aresult(self) -> Self:
        while not self.finished:
            await self._step()
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.aresult().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Self:
        if self.finished:
            raise StopAsyncIteration
        await self._step()
        return self

    def _put(self, response: Response) -> None:
        if self._loop is None:
            self._queue.put(response)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._responses.put_nowait, response)

    async def _step(self) -> None:
        assert self._loop is not None, "The asyncio event loop was not present"
        self._take(await self._responses.get())

    def _take(self, response: Response) -> None:
        self.finished = response.last
        self.avg_decoded_tokens_per_iter = response.a_step
        if response.error is not None:
            raise response.error
        self.outputs[0]._take(response)
