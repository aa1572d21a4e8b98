"""Sentences as NLTK splits them, with the files of a Punkt model and no download."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import EnvironmentFault, RunError, UnavailableError

PUNKT_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Punkt:
    """A Punkt model: abbreviations, collocations, frequent starters of sentences, and case.

    Attributes:
        scorer: Name of the scorer, for messages.
        folder: Where PUNKT_FILES are, in the form that NLTK's package punkt_tab has.
    """

    scorer: str
    folder: Path

    def check(self) -> None:
        """Look whether the files are there."""
        for name in PUNKT_FILES:
            if not (self.folder / name).is_file():
                raise UnavailableError(
                    f"scorer {self.scorer}: the Punkt model in {self.folder} lacks {name}; get "
                    "NLTK's package punkt_tab, and set the scorer's punkt to its folder english"
                )

    def require(self) -> None:
        """Look for NLTK; it is not imported."""
        if importlib.util.find_spec("nltk") is None:
            raise self._lacks()

    def load(self) -> Callable[[str], list[str]]:
        """Return what splits a text."""
        try:
            from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
        except ImportError as error:
            raise self._lacks() from error
        model = PunktParameters()
        try:
            self._fill(model)
        except (UnicodeDecodeError, ValueError) as error:
            raise RunError(
                "scorer",
                f"scorer {self.scorer}: the Punkt model in {self.folder} cannot be read ({error}); "
                "get NLTK's package punkt_tab again",
            ) from error
        split: Callable[[str], list[str]] = PunktSentenceTokenizer(model).tokenize
        return split

    def _lacks(self) -> EnvironmentFault:
        return EnvironmentFault(
            f"scorer {self.scorer} needs NLTK to split sentences; try: pip install nltk"
        )

    def _fill(self, model: Any) -> None:
        model.abbrev_types = set(self._lines("abbrev_types.txt"))
        model.sent_starters = set(self._lines("sent_starters.txt"))
        for line in self._lines("collocations.tab"):
            first, second = line.split("\t")
            model.collocations.add((first, second))
        for line in self._lines("ortho_context.tab"):
            word, _, flags = line.rpartition("\t")
            model.ortho_context[word] = int(flags)

    def _lines(self, name: str) -> list[str]:
        return [line for line in (self.folder / name).read_text("utf-8").split("\n") if line]
