"""Split texts into sentences as NLTK does, with local files of a Punkt model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pytest_mlperf import UnavailableError
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.scorers import scorer_error
from pytest_mlperf.adapters.scorers.text import DecoderOptions, TextScorer
from pytest_mlperf.extension import usable_cores

PUNKT_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Punkt:
    """Load a Punkt model: abbreviations, collocations, sentence starters and orthography.

    Attributes:
        scorer: Name of the scorer, for messages.
        folder: Folder with PUNKT_FILES, in the format of NLTK's package punkt_tab.
    """

    scorer: str
    folder: Path

    def check(self) -> None:
        """Raise UnavailableError if a file of the model is missing."""
        for name in PUNKT_FILES:
            if not (self.folder / name).is_file():
                raise UnavailableError(
                    f"scorer {self.scorer}: the Punkt model in {self.folder} lacks {name}; get "
                    "NLTK's package punkt_tab, and set the scorer's punkt to its folder english"
                )

    def require(self) -> None:
        """Check that NLTK is installed; do not import it."""
        if importlib.util.find_spec("nltk") is None:
            raise not_installed(f"scorer {self.scorer}", "nltk", "scoring")

    def load(self) -> Callable[[str], list[str]]:
        """Return the function that splits a text into sentences."""
        try:
            from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
        except ImportError as error:
            raise not_installed(f"scorer {self.scorer}", "nltk", "scoring") from error
        model = PunktParameters()
        try:
            self._fill(model)
        except (UnicodeDecodeError, ValueError) as error:
            raise scorer_error(
                f"scorer {self.scorer}: the Punkt model in {self.folder} cannot be read ({error}); "
                "get NLTK's package punkt_tab again",
            ) from error
        split: Callable[[str], list[str]] = PunktSentenceTokenizer(model).tokenize
        return split

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


@dataclass(frozen=True, kw_only=True)
class SentenceOptions(DecoderOptions):
    """Options of scorers that split texts into sentences.

    Attributes:
        processes: Number of parallel processes for scoring; None is one per core. One process
            scores 25 to 50 samples of 290 words per second.
    """

    processes: int | None = None
    punkt: str | None = None


D = TypeVar("D", bound=SentenceOptions)


class SentenceScorer(TextScorer[D]):
    """Provide a base of ROUGE scorers; option `punkt` is the model that splits sentences."""

    libraries: ClassVar[tuple[str, ...]] = ("rouge_score",)

    def __init__(self, *, model: str | None, **options: Any) -> None:
        """Check the options and the Punkt model's files.

        Args:
            model: Folder with the model's Hugging Face files, for its tokenizer.
        """
        super().__init__(model=model, **options)
        self._processes = self._asked.processes or len(usable_cores())
        self._punkt: Punkt | None = None
        if self._asked.punkt is not None:
            self._punkt = Punkt(scorer=self.name, folder=Path(self._asked.punkt))
            self._punkt.check()

    def require(self) -> None:
        """Check that the libraries for decoding and splitting are installed; import nothing."""
        super().require()
        if self._punkt is not None:
            self._punkt.require()

    def _split(self, texts: Sequence[str]) -> list[str]:
        """Put each sentence on a line of its own if option `punkt` is set; return the texts."""
        stripped = [text.strip() for text in texts]
        if self._punkt is None:
            return stripped
        split = self._punkt.load()
        return ["\n".join(split(text)) for text in stripped]
