"""A server that fails in a run: `python -m tests.adapters.engines.openai.accidents HOW PORT`."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Callable, Mapping

from tests.adapters.engines.openai.echo import HEAD, Echo, chunked, piece
from tests.adapters.engines.serving.scripted_servers import CUDA, complain

ACCIDENT = 40
"""The stream that goes wrong, and all after it: warm-up and the start of a run go well."""

ACCIDENTS: Mapping[str, Callable[[asyncio.Transport], object]] = {
    "dies": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "leaves streams unfinished": lambda transport: transport.close(),
    "runs out of memory": lambda _: complain(CUDA, 1),
}


class Breaking(Echo):
    """Answers requests of a completion, until one goes wrong in the middle of its stream."""

    how = ""
    turns = itertools.count(1)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET") or next(self.turns) < ACCIDENT:
            super()._answer(head, body)
            return
        self._transport.write(HEAD + chunked(piece("half", [10], None, chat=False)))
        print(f"an accident: it {self.how}", flush=True)
        ACCIDENTS[self.how](self._transport)


async def main(how: str, port: int) -> None:
    Breaking.how = how
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Breaking(8, 0.0), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
