"""A server that breaks in the middle of a curve: one error that says how, and nothing recorded."""

from __future__ import annotations

import math
import re
import time
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.engines.openai.recorder import write_suite
from tests.adapters.engines.openai.scripted import Manner, Reply, Scripted

ENGINE = """\
[[engines]]
use = "openai"
options = {{ url = "{url}", api = "chat", max_new_tokens = 16, request_timeout = 5 }}
"""

HOLDS_S = 34.0
"""For so long requests are answered well: longer than a warm-up may take."""

GARBAGE = repeat(b"data: {" + b"[" * 60_000)
MALFORMED = "malformed event"
NEGATIVE = b'data: {"usage": {"completion_tokens": -4}, "choices": []}\n\n'
BREAKS: dict[str, tuple[Reply, str]] = {
    "is gone": (Reply(end="cut"), "connection closed before an answer"),
    "sends an event without an end": (Reply(parts=GARBAGE, end="hang"), MALFORMED),
    "sends what is not JSON": (Reply(parts=[b"data: {]\n\n"]), MALFORMED),
    "counts tokens below zero": (Reply(parts=[NEGATIVE]), MALFORMED),
    "is silent": (Reply(end="hang"), "time-out"),
}


class Breaking(Manner):
    """Answers some requests, and then none any more."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(tokens=4)
        self.reply, self.breaks_s = reply, math.inf
        self.server: Scripted | None = None

    def stream(self, request: Any) -> Any:
        self.breaks_s = min(self.breaks_s, time.monotonic() + HOLDS_S)
        if time.monotonic() < self.breaks_s:
            return super().stream(request)
        if self.reply.end == "cut" and self.server is not None:
            self.server.stop_listening()
        return self.reply


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.parametrize("how", BREAKS)
def test_it_is_one_error_and_nothing_is_recorded(how: str, pytester: pytest.Pytester) -> None:
    reply, words = BREAKS[how]
    manner = Breaking(reply)
    with Scripted(manner) as server:
        manner.server = server
        scenario = 'points = [1, 4]\nmin_duration = "60s"\n'
        write_suite(ENGINE.format(url=server.url), scenario, ["x"])
        ended = pytester.runpytest_subprocess("s.mlperf.toml", "--mlperf-update=missing")

    printed = ended.stdout.str()
    printed_line = " ".join(printed.split())
    assert ended.ret == 1
    assert printed.count("ERROR engine: ") == 1, printed
    assert re.search(rf"\d x {words}", printed_line), printed_line
    assert re.search(r"ERROR engine: at [14]: \d+ of \d+ requests? failed", printed_line), (
        printed_line
    )
    assert not [path for path in Path().rglob("baselines/**/*") if path.is_file()]
