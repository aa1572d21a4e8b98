"""Turn the token ids that a language model gave into text, as MLPerf's reference scripts do."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from pytest_mlperf.scorers.tokenizer import FILES, Tokenizer, library_for, load_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DTYPES = {"int32": "<i4", "int64": "<i8"}
"""Types of token ids in outputs, as numpy names them: little-endian."""

BATCH = 1024
"""Samples that are decoded together: while they are, their ids are Python numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """What a model wrote.

    Attributes:
        texts: The text of each sample, special tokens left out.
        tokens: How many tokens each output has, special ones counted.
    """

    texts: list[str]
    tokens: list[int]


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Decodes the outputs of a language model.

    Attributes:
        scorer: Name of the scorer, for messages.
        folder: Where the tokenizer is, in Hugging Face's files.
        dtype: Type of a token id: "int32" or "int64".
        clean_up: Whether spaces before punctuation are removed; None leaves it to the tokenizer.
    """

    scorer: str
    folder: Path
    dtype: str
    clean_up: bool | None

    @classmethod
    def of(
        cls,
        scorer: str,
        *,
        model: str | None,
        tokenizer: str | None,
        dtype: str,
        clean_up: bool | None = None,
    ) -> Self:
        """Check the options that scorers of texts have in common.

        Args:
            scorer: Name of the scorer, for messages.
            model: Folder of the workload's model.
            tokenizer: Folder of the tokenizer, where that is another one.
            dtype: See the class.
            clean_up: See the class.

        Raises:
            SuiteError: There is no such type, or no folder is named.
            UnavailableError: The folder is not here, or has no tokenizer.
        """
        if dtype not in DTYPES:
            raise SuiteError(
                f"scorer {scorer}: dtype = {dtype!r} is unknown; valid are {', '.join(DTYPES)}"
            )
        if clean_up not in {None, False, True}:
            raise SuiteError(f"scorer {scorer}: clean_up = {clean_up!r} is neither true nor false")
        named = tokenizer or model
        if named is None:
            raise SuiteError(
                f"scorer {scorer} decodes tokens, but neither its option tokenizer nor the "
                "workload's model is set; set one of them to the folder that holds the tokenizer"
            )
        folder = Path(named)
        if not any((folder / file).is_file() for file in FILES):
            what = "holds no tokenizer" if folder.is_dir() else "is not here"
            raise UnavailableError(
                f"scorer {scorer}: the folder {folder} {what} (looked for "
                f"{', '.join(FILES)}); set the scorer's tokenizer to the folder with "
                "the model's Hugging Face files"
            )
        return cls(scorer=scorer, folder=folder, dtype=dtype, clean_up=clean_up)

    def require(self) -> None:
        """Look for the library that reads the tokenizer; nothing is imported.

        Raises:
            EnvironmentFault: It is not installed.
        """
        name = library_for(self.folder)
        if importlib.util.find_spec(name) is None:
            raise self._lacks(name)

    def decode(self, outputs: Sequence[bytes]) -> Decoded:
        """Decode the token ids of each sample; no ids are the empty text.

        Raises:
            EnvironmentFault: A library is not installed.
            RunError: An output is no list of ids, an id is not in the vocabulary, or the tokenizer
                cannot be read.
        """
        ids = [self._ids(output, sample) for sample, output in enumerate(outputs)]
        tokenizer = self._load()
        self._require_known(ids, tokenizer)
        texts: list[str] = []
        for start in range(0, len(ids), BATCH):
            texts += tokenizer.decode([one.tolist() for one in ids[start : start + BATCH]])
        return Decoded(texts=texts, tokens=[len(one) for one in ids])

    def _ids(self, output: bytes, sample: int) -> NDArray[np.int64]:
        import numpy as np

        kind = np.dtype(DTYPES[self.dtype])
        if len(output) % kind.itemsize:
            raise RunError(
                "scorer",
                f"scorer {self.scorer}: the output of sample {sample} has {len(output)} bytes, "
                f"which is no whole number of {self.dtype} token ids ({kind.itemsize} bytes each); "
                "set the scorer's dtype to the type of the engine's outputs",
            )
        return np.frombuffer(output, kind).astype(np.int64)

    def _load(self) -> Tokenizer:
        try:
            return load_tokenizer(self.folder, self.clean_up)
        except ImportError as error:
            raise self._lacks(error.name) from error
        except Exception as error:  # `tokenizers` raises bare Exceptions
            raise RunError(
                "scorer",
                f"scorer {self.scorer}: the tokenizer in {self.folder} cannot be read ({error}); "
                "replace its files by intact ones",
            ) from error

    def _lacks(self, library: str | None) -> EnvironmentFault:
        return EnvironmentFault(
            f"scorer {self.scorer} needs {library} to decode with the tokenizer in {self.folder}, "
            "which is not installed; try: pip install 'pytest-mlperf[lm]'"
        )

    def _require_known(self, ids: Sequence[NDArray[np.int64]], tokenizer: Tokenizer) -> None:
        import numpy as np

        tokens, known = np.concatenate(ids), np.fromiter(tokenizer.ids, np.int64)
        wrong = np.flatnonzero(~np.isin(tokens, known))
        if len(wrong):
            ends = np.cumsum([len(one) for one in ids])
            raise RunError(
                "scorer",
                f"scorer {self.scorer}: token {tokens[wrong[0]]} of sample "
                f"{np.searchsorted(ends, wrong[0], side='right')} is not in the vocabulary of "
                f"{self.folder}, which has {len(known)} tokens up to {known.max()}; set the "
                "scorer's tokenizer to the model's own, and its dtype to the type of the engine's "
                "outputs",
            )
