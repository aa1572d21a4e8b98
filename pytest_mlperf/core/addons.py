"""What an add-on declares: commands and report formats, by the module that has each.

A module of declarations imports nothing else, so that `--help` and a session load no add-on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand of `pytest-mlperf`.

    Attributes:
        summary: Its line in `--help`.
        module: Has `HELP` (description, "examples:" and examples), `add_arguments(parser)` and
            `run(parsed)`, which returns the exit code.
    """

    summary: str
    module: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A form in which a session's results, or a store, are written.

    Attributes:
        module: Has `report(session)`, which returns the text; of a store
            `write(store_url, folder)`, which returns how many pages it wrote.
        libraries: Modules that it needs, each with what `pip install` takes.
        of_store: It is made of a store, and is a folder.
    """

    module: str
    libraries: Mapping[str, str] = field(default_factory=dict)
    of_store: bool = False
