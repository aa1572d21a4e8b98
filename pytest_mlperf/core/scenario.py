"""Define the scenarios by what they ask of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal


class AllowedWords:
    """Let pydantic read some words of an enumeration as its members."""

    def __init__(self, members: Sequence[StrEnum]) -> None:
        self._members = members

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        words = handler.generate_schema(Literal[tuple(member.value for member in self._members)])
        member_of = {"type": "no-info", "function": type(self._members[0])}
        return {"type": "function-after", "function": member_of, "schema": words}


class WordEnum(StrEnum):
    """Base of enumerations whose members files and messages show as words."""

    def __repr__(self) -> str:
        return repr(self.value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return AllowedWords(tuple(cls)).__get_pydantic_core_schema__(source, handler)


class Scenario(WordEnum):
    """Scenario of a case: MLPerf's, our two loops, and tests with pytest-benchmark."""

    OFFLINE = "Offline"
    SERVER = "Server"
    INTERACTIVE = "Interactive"
    SINGLE_STREAM = "SingleStream"
    MULTI_STREAM = "MultiStream"
    CONCURRENCY = "Concurrency"
    OPEN_LOOP = "OpenLoop"
    BENCHMARK = "Benchmark"

    @property
    def rate_is_condition(self) -> bool:
        """Whether the offered rate is a condition of the measurement, not a result."""
        return self in {Scenario.SERVER, Scenario.INTERACTIVE}

    @property
    def answers_one_at_a_time(self) -> bool:
        """Whether a query is sent when the one before it is answered."""
        return self in {Scenario.SINGLE_STREAM, Scenario.MULTI_STREAM}

    @property
    def is_curve(self) -> bool:
        """Whether one of our own loops measures it at several points."""
        return self in {Scenario.CONCURRENCY, Scenario.OPEN_LOOP}

    @property
    def of_loadgen(self) -> Scenario:
        """LoadGen's scenario for it: Interactive is Server with other limits."""
        return Scenario.SERVER if self is Scenario.INTERACTIVE else self


SUITE_SCENARIOS = tuple(name for name in Scenario if name is not Scenario.BENCHMARK)
"""Scenarios that a suite can name."""
