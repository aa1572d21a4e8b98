"""Define a case, its id, and the names of scenarios, kinds of tests, precisions, techniques."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args

from pytest_mlperf.core.errors import BaselineError

PrecisionName = Literal[
    "fp64",
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "fp8",
    "int8",
    "fp4",
    "nvfp4",
    "mxfp4",
    "int4",
    "int4-awq",
    "w4a8-awq",
    "gptq",
    "mixed",
    "int4-g128",
]
"""Precisions of recipes, engines and roofline limits; user engines may have further ones."""

PRECISION_NAMES: tuple[PrecisionName, ...] = get_args(PrecisionName)

PLAIN_PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "bf16", "fp16")
"""Precisions of unquantised weights of language and diffusion models."""


TECHNIQUES: Mapping[str, str] = {
    "2:4-sparsity": "two of every four weights are zero and are skipped",
    "pruning": "layers, heads or channels were taken out",
    "distillation": "trained to answer as a larger model does",
    "retraining": "the weights were trained further",
    "deepcache": "deep features of a diffusion model are reused between steps",
    "fewer-steps": "fewer denoising steps than the reference",
    "latent-consistency": "a diffusion model that was trained to need few steps",
    "early-exit": "early exit: a sample may skip the last layers",
    "speculative-decoding": "a draft of several tokens is checked at once",
    "prefix-caching": "the work on a prefix that prompts share is reused",
}
"""Descriptions; other names are invalid, because a technique may change the roofline."""


Arrivals = Literal["poisson", "constant", "gamma", "trace"]
"""Arrival processes of OpenLoop; "trace" replays a recorded trace."""

Profile = Literal["quick", "official"]
Division = Literal["closed", "open"]


class AllowedWords:
    """Validate with pydantic that a word is one of the allowed members of an enumeration."""

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
    """Name a scenario: MLPerf's, Concurrency, OpenLoop, or a pytest-benchmark test."""

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
        """Whether each query is sent only after the previous query is answered."""
        return self in {Scenario.SINGLE_STREAM, Scenario.MULTI_STREAM}

    @property
    def is_curve(self) -> bool:
        """Whether it measures a curve of several points (Concurrency, OpenLoop)."""
        return self in {Scenario.CONCURRENCY, Scenario.OPEN_LOOP}

    @property
    def of_loadgen(self) -> Scenario:
        """LoadGen's scenario for this one: Interactive is Server with other limits."""
        return Scenario.SERVER if self is Scenario.INTERACTIVE else self


SUITE_SCENARIOS = tuple(name for name in Scenario if name is not Scenario.BENCHMARK)
"""Scenarios that a suite can name."""


class Kind(WordEnum):
    """Name the kind of a test: accuracy, speed, energy, claim of a ratio, or compliance."""

    ACCURACY = "accuracy"
    PERFORMANCE = "performance"
    EFFICIENCY = "efficiency"
    PAIR = "pair"
    TEST01 = "TEST01"
    TEST04 = "TEST04"
    TEST05 = "TEST05"
    TEST06 = "TEST06"
    TEST07 = "TEST07"
    TEST08 = "TEST08"
    TEST09 = "TEST09"

    @property
    def is_of_runs(self) -> bool:
        """Whether tests of this kind judge timed runs against a baseline's runs."""
        return self in {Kind.PERFORMANCE, Kind.EFFICIENCY}

    @property
    def is_audit(self) -> bool:
        """Whether tests of this kind are compliance tests of MLPerf."""
        return self.name == self.value


AUDITS = tuple(kind for kind in Kind if kind.is_audit)

Phase = Literal["performance", "accuracy", "compliance"]
"""Use of a data set: timed, scored, or both in compliance test TEST07."""

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+]*(-[A-Za-z0-9._+]+)*")
"""Names appear in test ids, on the command line and as file names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Identify one workload x scenario x engine x precision x accelerator.

    Attributes:
        workload: Workload name, e.g. "llama2-70b-99.9".
        scenario: MLPerf scenario.
        engine: Name of the suite's engine entry (not the kind of engine).
        precision: Precision as named in the suite, e.g. "fp8".
        accelerator: Class and count: "H200", "8xH100", "cpu".
    """

    workload: str
    scenario: Scenario
    engine: str
    precision: str
    accelerator: str

    @property
    def id(self) -> str:
        """Text between the brackets of a test id: all five words, joined by hyphens."""
        return "-".join(
            (self.workload, self.scenario, self.engine, self.precision, self.accelerator)
        )


def one_file(path: str) -> str:
    """Return a key that is equal for paths of one file on a case-insensitive file system."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def path_part(noun: str, name: str) -> str:
    """Return a name that is safe as one part of a path.

    Every path built from names of untrusted files must use this, so that none leaves its folder.

    Raises:
        BaselineError: The name does not match `NAME_PATTERN`.
    """
    if NAME_PATTERN.fullmatch(name):
        return name
    short = name if len(name) <= 60 else f"{name[:60]}..."
    raise BaselineError(
        f"{noun} {short!r} cannot be part of a file's path: letters, digits, '.', '_', '+' and "
        "single inner '-' only"
    )
