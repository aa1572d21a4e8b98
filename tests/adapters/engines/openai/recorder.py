"""An engine on a scripted server, and a sink for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.engines.openai import OpenAiEngine
from pytest_mlperf.builtin.null import NullEngine
from tests.adapters.engines import recording
from tests.adapters.engines.openai.scripted import Manner, Request, Script

RUN_TOKENS = 32
"""max_new_tokens of these tests; questions before a run ask for fewer, and tell themselves so."""


class Recorder(recording.Recorder):
    """A sink whose outputs are not read unless a test says so."""

    limit_s = 30.0

    def __init__(
        self, expected: int, *, times_tokens: bool = True, wants_output: bool = False
    ) -> None:
        super().__init__(expected, times_tokens=times_tokens, wants_output=wants_output)


def open_engine(
    url: str | None, samples: Sequence[Any] = ([5, 6, 7],), /, **options: Any
) -> OpenAiEngine:
    arguments = {"url": url, "model": None, "max_new_tokens": RUN_TOKENS, **options}
    return OpenAiEngine(dataset=recording.Samples(samples), precision="fp32", **arguments)


def run(
    url: str | None, samples: Sequence[Any] = ([5, 6, 7],), /, *, sink: Recorder, **options: Any
) -> None:
    """Answer every prompt once."""
    with open_engine(url, samples, **options) as engine:
        engine.load_samples(range(len(samples)))
        engine.submit(range(100, 100 + len(samples)), range(len(samples)), sink)
        sink.wait_for_end()


def in_a_run(request: Request) -> bool:
    """Tell a run's request from a question before it."""
    return bool(request.method == "POST" and request.body.get("max_tokens") == RUN_TOKENS)


def answering(reply: Script, manner: Script = Manner()) -> Script:  # noqa: B008 - a frozen value
    """Return a script that answers a run by `reply`, and questions before it in a manner."""
    return lambda request: (reply if in_a_run(request) else manner)(request)


class CountingEngine(NullEngine):
    """Says that it counts tokens again after a curve."""

    def counted_again(self) -> dict[int, tuple[int, int]]:
        return {}


SUITE = """\
schema = 1
round = "v4.1"

[workload]
name = "echo"
tokens = true
dataset = { use = "prompts", path = "prompts.jsonl" }

ENGINES

[[scenarios]]
name = "Concurrency"
"""


def write_suite(engines: str, scenario: str, prompts: Sequence[str]) -> None:
    """Write s.mlperf.toml and its prompts here: these engines, and lines of the scenario."""
    Path("s.mlperf.toml").write_text(SUITE.replace("ENGINES", engines) + scenario, "utf-8")
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
    Path("prompts.jsonl").write_text("".join(lines), "utf-8")
