"""Read documents and split them into windows of tokens, to measure perplexity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pytest_mlperf import SuiteError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.files import json_lines
from pytest_mlperf.adapters.datasets.files.tokenizer import load_tokenizer, require_tokenizer
from pytest_mlperf.adapters.datasets.prompts import SampleFile, token_list
from pytest_mlperf.adapters.lazy import NDArray, np

JSON_LINES = ".jsonl"
TEXT_KEY, TOKENS_KEY = "text", "tokens"

HEADING = re.compile(r" ?= [^=].* = ?\n?")
"""Title of an article of WikiText, " = Title = "; titles of sections have more "="."""


class TokenWindow(NamedTuple):
    """Hold a window of a document's tokens.

    Attributes:
        document: Index of the document.
        start, end: Range [start, end) of the window in the document's tokens.
        scored: Number of final tokens of the window that are scored.
    """

    document: int
    start: int
    end: int
    scored: int


@dataclass(frozen=True, kw_only=True)
class WindowsOptions(files.ChecksumOptions, dataset="windows", noun="windows"):
    """Options of the data set windows: documents, and the windows to cut.

    Attributes:
        path: JSON Lines (.jsonl) with a document in each object, as "text" or as "tokens", a list
            of token ids. Or a text file: one document, or one for each article of WikiText, which
            begins with " = Title = ".
        tokenizer: Folder of the model with its tokenizer, for documents that are text. A document
            begins with the tokenizer's own begin tokens.
        length: Maximum tokens of a window, at least 2.
        stride: Distance between the starts of windows, in tokens; None is `length`. Overlapping
            windows score each token once, with at least `length - stride` tokens before it.
            Without overlap the first token of a window is not scored.
    """

    tokenizer: str | None = None
    length: int = 512
    stride: int | None = None

    def __post_init__(self) -> None:
        self.check(length="tokens", stride="tokens")
        if self.length < 2:
            defect = "length = 1 leaves nothing to score, as a window's first token is not scored"
            raise self.wrong(f"{defect}; set length to at least 2", option="length")
        if self.stride is not None and self.stride > self.length:
            raise self.wrong(
                f"stride = {self.stride} is above length = {self.length}, so that the tokens "
                "between two windows would not be scored; lower stride, or leave it out",
                option=("stride", "length"),
            )

    def find(self) -> Path:
        if self.tokenizer is not None:
            require_tokenizer(self.tokenizer)
        endings = (JSON_LINES, ".txt", ".raw", ".tokens")
        return files.find_file(Path(self.path), endings=endings, whole="file of documents")


class WindowsDataset(files.FileDataset[TokenWindow]):
    """Windows of documents as token ids, for scorer perplexity; a document is a group.

    A document, or the rest of one, with less than two tokens gives no window.
    """

    optional_libraries = ("transformers",)
    options = WindowsOptions
    kind = b"windows"

    def _read(self, options: WindowsOptions, path: Path) -> None:
        self._documents = [*_documents(path, options)]
        windows = [
            window
            for index, tokens in enumerate(self._documents)
            for window in token_windows(
                index, len(tokens), options.length, options.stride or options.length
            )
        ]
        if not windows:
            raise files.wrong(
                path, "no document has two or more tokens", "set path to another file"
            )
        self._keep(windows, options.count, path)

    def input(self, index: int) -> list[int]:
        """Return the token ids of a window."""
        tokens: list[int] = self._tokens(self._sample(index)).tolist()
        return tokens

    def reference(self, index: int) -> dict[str, Any]:
        """Return the token ids as "tokens", and the number of scored final tokens as "scored"."""
        return {"tokens": self.input(index), "scored": self._sample(index).scored}

    def group(self, index: int) -> int:
        """Return the document of a window, as windows of one document are not independent."""
        return self._sample(index).document

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return the mean number of tokens of these windows as "input_tokens"."""
        return {"input_tokens": fmean(len(self._tokens(self._sample(i))) for i in indices)}

    def _content(self, index: int) -> tuple[bytes, bytes]:
        window = self._samples[index]
        return self._tokens(window).astype("<i4").tobytes(), files.encode(repr(tuple(window)))

    def _tokens(self, window: TokenWindow) -> NDArray[np.int32]:
        return self._documents[window.document][window.start : window.end]


def token_windows(document: int, tokens: int, length: int, stride: int) -> Iterator[TokenWindow]:
    """Yield windows of up to `length` tokens, one every `stride`, over a document of `tokens`.

    Example of (start, end, number of scored tokens at the end):

    >>> [tuple(window)[1:] for window in token_windows(0, 9, 4, 2)]
    [(0, 4, 3), (2, 6, 2), (4, 8, 2), (6, 9, 1)]
    """
    end = 0
    for start in range(0, tokens, stride):
        previous_end, end = end, min(start + length, tokens)
        scored = min(end - previous_end, end - start - 1)
        if scored > 0:
            yield TokenWindow(document, start, end, scored)
        if end == tokens:
            return


def _documents(path: Path, options: WindowsOptions) -> Iterator[NDArray[np.int32]]:
    source = SampleFile(file=path, row="line", whole="file")
    tokenizer = load_tokenizer("windows", options.tokenizer) if options.tokenizer else None
    for line, column, value in _values(source):
        if column == TOKENS_KEY:
            yield token_list(source, line, column, value, "document")
        elif tokenizer is None:
            raise SuiteError(
                f"data set windows: {path} has text; set tokenizer to the model's folder",
                option="tokenizer",
            )
        else:
            yield np.array(tokenizer(source.text(line, column, value))["input_ids"], np.int32)


def _values(source: SampleFile) -> Iterator[tuple[int, str, Any]]:
    """Yield (line, key, value) of each document; the key is "text" or "tokens"."""
    if source.file.suffix != JSON_LINES:
        yield from _articles(source.file)
        return
    for line, record in json_lines.objects(source.file):
        columns = [name for name in (TOKENS_KEY, TEXT_KEY) if name in record]
        if not columns:
            raise source.wrong(line, TEXT_KEY, "the line has neither this key nor 'tokens'")
        yield line, columns[0], record[columns[0]]


def _articles(path: Path) -> Iterator[tuple[int, str, str]]:
    first, lines = 1, list[str]()
    for number, line in enumerate(json_lines.lines_of(path), 1):
        if HEADING.fullmatch(line):
            if "".join(lines).strip():
                yield first, TEXT_KEY, "".join(lines)
            first, lines = number, []
        lines.append(line)
    if "".join(lines).strip():
        yield first, TEXT_KEY, "".join(lines)
