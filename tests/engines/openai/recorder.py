"""An engine on a scripted server, a data set, and a sink that keeps everything in order."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any

from pytest_mlperf.engines.openai import OpenAiEngine

LIMIT_S = 30.0
"""A sample that takes longer is lost."""

RUN_TOKENS = 32
"""max_new_tokens of these tests; questions before a run ask for fewer, and tell themselves so."""


class Samples:
    """Prompts as they are."""

    digest = "0" * 64

    def __init__(self, *, prompts: Sequence[Any]) -> None:
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def input(self, index: int) -> Any:
        return self._prompts[index]

    def reference(self, index: int) -> int:
        return index


class Recorder:
    """Keeps what it is told, and lets a test wait for the end of all samples or of the run."""

    def __init__(
        self, expected: int, *, times_tokens: bool = True, wants_output: bool = False
    ) -> None:
        self.times_tokens = times_tokens
        self.wants_output = wants_output
        self.events: list[tuple[str, int]] = []
        self.outputs: dict[int, tuple[int, ...]] = {}
        self.n_tokens: dict[int, int | None] = {}
        self.errors: list[BaseException] = []
        self._left = expected
        self._over = threading.Event()

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        self.events += [("first", sample) for sample in ids]

    def next_tokens(self, ids: Sequence[int]) -> None:
        self.events += [("next", sample) for sample in ids]

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        self.events += [("done", sample) for sample in ids]
        for place, sample in enumerate(ids):
            self.n_tokens[sample] = None if n_tokens is None else n_tokens[place]
            if outputs is not None:
                data = outputs[place]
                self.outputs[sample] = struct.unpack(f"<{len(data) // 8}q", data)
        self._left -= len(ids)
        if not self._left:
            self._over.set()

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self._over.set()

    def wait(self) -> None:
        assert self._over.wait(LIMIT_S), f"{self._left} samples are lost"

    def reports(self, sample: int) -> list[str]:
        return [kind for kind, told in self.events if told == sample]

    @property
    def error(self) -> str:
        """The text of the one error."""
        self.wait()
        (error,) = self.errors
        return str(error)


def open_engine(
    url: str | None, samples: Sequence[Any] = ([5, 6, 7],), /, **options: Any
) -> OpenAiEngine:
    given = {"url": url, "model": None, "max_new_tokens": RUN_TOKENS, **options}
    return OpenAiEngine(dataset=Samples(prompts=samples), precision="fp32", **given)


def run(
    url: str | None, samples: Sequence[Any] = ([5, 6, 7],), /, *, sink: Recorder, **options: Any
) -> None:
    """Answer every prompt once."""
    with open_engine(url, samples, **options) as engine:
        engine.load_samples(range(len(samples)))
        engine.submit([100 + place for place in range(len(samples))], range(len(samples)), sink)
        sink.wait()


def in_a_run(body: dict[str, Any]) -> bool:
    """Tell a run's request from a question before it."""
    return bool(body.get("max_tokens") == RUN_TOKENS)
