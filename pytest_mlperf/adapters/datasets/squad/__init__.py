"""Read SQuAD v1.1 as MLPerf's BERT takes it: windows of word pieces, a question before each."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_mlperf import SuiteError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.squad import _features

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OFFICIAL_FILE = "dev-v1.1.json"
VOCABULARY = "vocab.txt"
MODEL_FOLDER = "bert_tf_v1_1_large_fp32_384_v2"
"""Where MLPerf's reference keeps vocab.txt, beside dev-v1.1.json."""


@dataclass(frozen=True, kw_only=True)
class SquadOptions(files.ChecksumOptions):
    """Where the questions are, and how features are cut.

    Attributes:
        path: The file dev-v1.1.json, or a folder with it.
        vocab: The vocabulary of BERT uncased, relative to the file's folder, or absolute. None
            finds vocab.txt beside the file, or in the folder of MLPerf's model there.
        max_seq_length: Word pieces of a feature at most.
        doc_stride: Word pieces from the start of a window to that of the next.
        max_query_length: Word pieces that are kept of a question.
        pad: Fill each feature with zeros up to `max_seq_length`, as MLPerf's reference does;
            False gives each its own length.
    """

    path: str
    vocab: str | None = None
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    pad: bool = True

    def __post_init__(self) -> None:
        self.check(
            "squad",
            ("pad", self.pad, type(self.pad) is bool, "true or false"),
            max_seq_length="",
            doc_stride="",
            max_query_length="",
            count="",
        )
        if self.max_query_length + _features.OTHER_PIECES >= self.max_seq_length:
            raise SuiteError(
                f"data set squad: max_query_length = {self.max_query_length!r} leaves no room for "
                f"the paragraph in max_seq_length = {self.max_seq_length!r}; it must be at least "
                f"{_features.OTHER_PIECES + 1} smaller",
                option=("max_query_length", "max_seq_length"),
            )

    def find(self) -> tuple[Path, Path]:
        folder = Path(self.path)
        file = folder / OFFICIAL_FILE if folder.is_dir() else folder
        names = [VOCABULARY, f"{MODEL_FOLDER}/{VOCABULARY}"] if self.vocab is None else [self.vocab]
        places = [file.parent / name for name in names]
        vocabulary = files.first_file(places)
        self.require(
            (
                file.is_file(),
                f"{file}: this file does not exist; put SQuAD's official {OFFICIAL_FILE} "
                "there, as the "
                "README of MLPerf's language/bert describes, or set the data set's path to it",
            ),
            (
                vocabulary is not None,
                f"{places[0]}: this file does not exist; put the {VOCABULARY} of MLPerf's BERT "
                "model there, or set the data set's option vocab to its path",
            ),
        )
        assert vocabulary is not None
        return file, vocabulary


class SquadDataset(files.FileDataset[_features.Feature]):
    """Features by index, in the order of the file: the questions of a paragraph, their windows.

    A feature is [CLS] question [SEP] window [SEP]; a paragraph that is too long for one is shown in
    several windows, each `doc_stride` pieces further. The official dev-v1.1.json has 10,570
    questions, which give 10,833 features, and the checksum "md5:3e85deb501d4e538b6bc56f786231552".

    Equal to language/bert/create_squad_data.py of https://github.com/mlcommons/inference.
    """

    unit = "feature"
    options = SquadOptions

    def _read(self, asked: SquadOptions, places: tuple[Path, Path]) -> None:
        import numpy as np

        file, vocabulary = places
        files.check_file(file, asked.checksum)
        pieces = _features.WordPieces(_features.read_vocabulary(vocabulary))
        builder = _features.FeatureBuilder(
            pieces=pieces,
            max_seq_length=asked.max_seq_length,
            doc_stride=asked.doc_stride,
            max_query_length=asked.max_query_length,
        )
        features = [
            each for passage in _features.read_passages(file) for each in builder.features(passage)
        ]
        if not features:
            raise files.wrong(file, "has no question", f"get {OFFICIAL_FILE} again")
        self._keep(features, asked.count, file, f"its questions give {len(features)} features")
        self._shares = Counter(each.question.identity for each in self._samples)
        self._padded = asked.max_seq_length if asked.pad else 0
        self._last: NDArray[np.int32] = np.array(pieces.numbers([_features.SEP_TOKEN]), np.int32)

    def input(self, index: int) -> dict[str, NDArray[np.int64]]:
        """Return one feature, by the names of the inputs of MLPerf's ONNX model.

        Arrays have the shape (seq,), where seq is `max_seq_length`, or without `pad` the feature's
        own length: "input_ids" has numbers of word pieces, "input_mask" 1 for each that is there,
        "segment_ids" 0 for the question and 1 for the window; after them, zeros.
        """
        import numpy as np

        feature = self._sample(index)
        numbers = self._numbers(feature)
        arrays = np.zeros((3, max(self._padded, len(numbers))), np.int64)
        arrays[0, : len(numbers)] = numbers
        arrays[1, : len(numbers)] = 1
        arrays[2, len(feature.numbers) : len(numbers)] = 1
        return {"input_ids": arrays[0], "input_mask": arrays[1], "segment_ids": arrays[2]}

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return the means of these features' lengths without padding, and of their squares."""
        lengths = [len(self._numbers(self._sample(index))) for index in indices]
        return {"tokens": fmean(lengths), "tokens_squared": fmean(n * n for n in lengths)}

    def reference(self, index: int) -> dict[str, Any]:
        """Return what scores a feature; lists are shared between features, so leave them as is.

        "id" of the question; its "answers". "words" of the paragraph, and each of them
        "normalized", its basic tokens with spaces between. "pieces" of the paragraph, and each
        one's "word_of_piece". "first", the position of the window's first piece in the feature;
        "start", its number in "pieces"; "length", the pieces of the window. "max_context", runs
        [begin, end) of the pieces that no other window of the question shows with more context.
        "features", how many the question has here.
        """
        feature = self._sample(index)
        paragraph = feature.paragraph
        return {
            "id": feature.question.identity,
            "answers": feature.question.answers,
            "words": paragraph.words,
            "normalized": paragraph.normalized,
            "pieces": paragraph.pieces,
            "word_of_piece": paragraph.word_of_piece,
            "first": len(feature.numbers),
            "start": feature.start,
            "length": feature.length,
            "max_context": feature.max_context,
            "features": self._shares[feature.question.identity],
        }

    def group(self, index: int) -> int:
        """Return the article of a feature: its questions, and their windows, belong together."""
        return self._sample(index).paragraph.article

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over every feature for the engine and its reference, whatever the file."""
        total = hashlib.sha256(f"squad {self._padded}".encode())
        paragraph = None
        for feature in self._samples:
            if feature.paragraph is not paragraph:
                paragraph = feature.paragraph
                _add(total, paragraph.words, paragraph.normalized, paragraph.pieces)
                _add(total, paragraph.word_of_piece)
            question = feature.question
            _add(total, question.identity, question.answers, feature.numbers.tolist())
            _add(total, feature.start, feature.length, feature.max_context)
            total.update(self._numbers(feature).astype("<i4").tobytes())
        return total.hexdigest()

    def _numbers(self, feature: _features.Feature) -> NDArray[np.int32]:
        import numpy as np

        window = feature.paragraph.numbers[feature.start : feature.start + feature.length]
        return np.concatenate((feature.numbers, window, self._last))


def _add(total: hashlib._Hash, *values: Any) -> None:
    total.update(json.dumps(values).encode() + b"\n")
