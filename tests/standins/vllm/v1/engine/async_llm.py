from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Self

from vllm.model import Model, Row
from vllm.sampling_params import RequestOutputKind

AT_A_TIME: list[int] = []
"""How many requests there were, whenever one came."""


class EngineDeadError(Exception):
    """As vLLM's."""


class AsyncLLM:
    """Its tasks live on the loop it is made on."""

    def __init__(self, args: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._model = Model(args)
        self._rows: dict[Row, asyncio.Queue[Any]] = {}
        self._task: asyncio.Task[None] | None = None
        self._names: set[str] = set()
        self.vllm_config = self._model.config()
        self.renderer = self._model.renderer

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> Self:
        return cls(engine_args)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str
    ) -> AsyncGenerator[Any, None]:
        if prompt.get("type") not in ("token", "multimodal", "enc_dec"):
            raise ValueError("Passing raw prompts is deprecated and will be removed in the future")
        if request_id in self._names:
            raise ValueError(f"Request id {request_id} already running.")
        self._names.add(request_id)
        row = self._model.row(prompt, sampling_params)
        if self._model.fault == "dies" and self._model.requests == 3:
            raise EngineDeadError("EngineCore encountered an issue. See stack trace (above)")
        queue = self._rows[row] = asyncio.Queue()
        AT_A_TIME.append(len(self._rows))
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._serve())
        try:
            while True:
                output = await queue.get()
                yield output
                if output.outputs[0].finish_reason is not None:
                    return
        finally:
            self._rows.pop(row, None)

    def shutdown(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._model.shutdown()

    async def _serve(self) -> None:
        while self._rows:
            for row, queue in list(self._rows.items()):
                if row.reason is not None:
                    continue
                self._model.step(row)
                if self._due(row):
                    queue.put_nowait(self._model.output(row))
            await asyncio.sleep(0)

    def _due(self, row: Row) -> bool:
        if row.reason is not None or len(row.answer) == 1:
            return row.reason is not None or row.sampling.output_kind is RequestOutputKind.DELTA
        interval = self._model.args.stream_interval or 1
        is_delta = row.sampling.output_kind is RequestOutputKind.DELTA
        return is_delta and len(row.answer) - row.reported >= interval
