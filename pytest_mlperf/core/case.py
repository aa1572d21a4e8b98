"""Define a case and its id; enumerate scenarios, kinds of tests, precisions and techniques."""

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
    """Make pydantic accept only the given members of an enumeration."""

    def __init__(self, members: Sequence[StrEnum]) -> None:
        self._members = members

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        words = handler.generate_schema(Literal[tuple(member.value for member in self._members)])
        member_of = {"type": "no-info", "function": type(self._members[0])}
        return {"type": "function-after", "function": member_of, "schema": words}


class WordEnum(StrEnum):
    """Base class of enumerations whose members are shown as their plain text."""

    def __repr__(self) -> str:
        return repr(self.value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return AllowedWords(tuple(cls)).__get_pydantic_core_schema__(source, handler)


class Scenario(WordEnum):
    """Enumerate scenarios: MLPerf's, Concurrency, OpenLoop, and pytest-benchmark's tests."""

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
        """Whether the offered rate is set before the measurement, not its result."""
        return self in {Scenario.SERVER, Scenario.INTERACTIVE}

    @property
    def answers_one_at_a_time(self) -> bool:
        """Whether a query is issued only after the previous one is answered."""
        return self in {Scenario.SINGLE_STREAM, Scenario.MULTI_STREAM}

    @property
    def is_curve(self) -> bool:
        """Whether the scenario measures several points of a curve (Concurrency, OpenLoop)."""
        return self in {Scenario.CONCURRENCY, Scenario.OPEN_LOOP}

    @property
    def of_loadgen(self) -> Scenario:
        """LoadGen's scenario: Server for Interactive, else this one."""
        return Scenario.SERVER if self is Scenario.INTERACTIVE else self


SUITE_SCENARIOS = tuple(name for name in Scenario if name is not Scenario.BENCHMARK)
"""Scenarios that a suite can name."""


class Kind(WordEnum):
    """Enumerate kinds of tests: accuracy, speed, energy, claimed speed ratio, compliance."""

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
    def compares_runs(self) -> bool:
        """Whether tests of this kind compare timed runs with those of a baseline."""
        return self in {Kind.PERFORMANCE, Kind.EFFICIENCY}

    @property
    def is_audit(self) -> bool:
        """Whether this kind is one of MLPerf's compliance tests."""
        return self.name == self.value


AUDITS = tuple(kind for kind in Kind if kind.is_audit)

Phase = Literal["performance", "accuracy", "compliance"]
"""Use of a data set: timed, scored, or both in compliance test TEST07."""

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+]*(-[A-Za-z0-9._+]+)*")
"""Names appear in test ids, on the command line and as file names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Identify a combination of workload, scenario, engine, precision and accelerator.

    Attributes:
        workload: Workload name, e.g. "llama2-70b-99.9".
        scenario: MLPerf scenario.
        engine: Name of the engine entry in the suite (not of the engine's type).
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
        """Text in the brackets of a pytest node id: the five fields, joined by hyphens."""
        return "-".join(
            (self.workload, self.scenario, self.engine, self.precision, self.accelerator)
        )


def same_file_key(path: str) -> str:
    """Return a key that is equal for paths of the same file if the file system ignores case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def path_part(noun: str, name: str) -> str:
    """Return the name if it is safe as one component of a path.

    Names from untrusted files must pass this check before they are used in a path.

    Raises:
        BaselineError: The name does not match `NAME_PATTERN`.
    """
    if NAME_PATTERN.fullmatch(name):
        return name
    short = name if len(name) <= 60 else f"{name[:60]}..."
    raise BaselineError(
        f"{noun} {short!r} cannot be part of a file's path: use only letters, digits, '.', '_', "
        "'+', and single '-' between them"
    )
