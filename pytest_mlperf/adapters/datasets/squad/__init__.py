"""Read SQuAD v1.1 for MLPerf's BERT: pairs of a question and a window of its paragraph."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.squad import _features
from pytest_mlperf.adapters.lazy import NDArray, np

OFFICIAL_FILE = "dev-v1.1.json"
VOCABULARY = "vocab.txt"
MODEL_FOLDER = "bert_tf_v1_1_large_fp32_384_v2"
"""Folder of vocab.txt in MLPerf's reference, next to dev-v1.1.json."""

LENGTHS = ("max_seq_length", "doc_stride", "max_query_length")


@dataclass(frozen=True, kw_only=True)
class SquadOptions(files.ChecksumOptions, dataset="squad", noun="features"):
    """Options of the data set squad.

    Attributes:
        path: File dev-v1.1.json, or a folder that contains it.
        vocab: Vocabulary of BERT uncased, relative to the file's folder, or absolute. None uses
            vocab.txt next to the file, or in the folder of MLPerf's model next to it.
        max_seq_length: Maximum length of a feature, in word pieces.
        doc_stride: Distance between the starts of two windows, in word pieces.
        max_query_length: Maximum length of a question, in word pieces.
        pad: Whether to pad features with zeros to `max_seq_length`, as MLPerf's reference does.
    """

    vocab: str | None = None
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    pad: bool = True

    def __post_init__(self) -> None:
        pad = ("pad", self.pad, type(self.pad) is bool, "true or false")
        self.check(pad, **dict.fromkeys(LENGTHS, "word pieces"))
        if self.max_query_length + _features.OTHER_PIECES >= self.max_seq_length:
            raise self.wrong(
                f"max_query_length = {self.max_query_length!r} leaves no room for the paragraph in "
                f"max_seq_length = {self.max_seq_length!r}; make it smaller than max_seq_length by "
                f"at least {_features.OTHER_PIECES + 1}",
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
                f"{file}: this file does not exist; put SQuAD's official {OFFICIAL_FILE} there, as "
                "the README of MLPerf's language/bert describes, or set the data set's path to it",
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
    """BERT features in the order of the file: a question with each window of its paragraph.

    A feature is [CLS] question [SEP] window [SEP]. A long paragraph has several windows, each
    starting `doc_stride` word pieces after the previous one. The official dev-v1.1.json has 10,570
    questions, which give 10,833 features, and the checksum "md5:3e85deb501d4e538b6bc56f786231552".
    The features equal those of language/bert/create_squad_data.py of
    https://github.com/mlcommons/inference.
    """

    options = SquadOptions

    def _read(self, options: SquadOptions, places: tuple[Path, Path]) -> None:
        file, vocabulary = places
        pieces = _features.WordPieces(_features.read_vocabulary(vocabulary))
        lengths = {name: getattr(options, name) for name in LENGTHS}
        features = [
            feature
            for passage in _features.read_passages(file)
            for feature in _features.features_of(passage, pieces, **lengths)
        ]
        self._keep(features, options.count, file)
        self._shares = Counter(each.question.identity for each in self._samples)
        self._padded = options.max_seq_length if options.pad else 0
        self._last: NDArray[np.int32] = np.array(pieces.numbers([_features.SEP_TOKEN]), np.int32)

    def input(self, index: int) -> dict[str, NDArray[np.int64]]:
        """Return one feature by the input names of MLPerf's ONNX model.

        Arrays have the shape (seq,), where seq is `max_seq_length`, or without `pad` the feature's
        length. "input_ids": ids of word pieces; "input_mask": 1 for each piece; "segment_ids": 0
        for the question, 1 for the window. Padding is 0.
        """
        feature = self._sample(index)
        numbers = self._numbers(feature)
        arrays = np.zeros((3, max(self._padded, len(numbers))), np.int64)
        arrays[0, : len(numbers)] = numbers
        arrays[1, : len(numbers)] = 1
        arrays[2, len(feature.numbers) : len(numbers)] = 1
        return {"input_ids": arrays[0], "input_mask": arrays[1], "segment_ids": arrays[2]}

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return mean length ("tokens") and mean squared length ("tokens_squared"), unpadded."""
        lengths = [len(self._numbers(self._sample(index))) for index in indices]
        return {"tokens": fmean(lengths), "tokens_squared": fmean(n * n for n in lengths)}

    def reference(self, index: int) -> dict[str, Any]:
        """Return the reference of a feature; features share its lists, so do not modify them.

        "id" and "answers": the question's id and answers; "features": its number of features.
        "words": the paragraph's words; "normalized": the basic tokens of each word, joined by
        spaces; "pieces": the paragraph's word pieces; "word_of_piece": the index of each piece's
        word. "first": position of the window's first piece in the feature; "start": index of that
        piece in "pieces"; "length": number of pieces in the window. "max_context": ranges [begin,
        end) of the pieces for which this window gives the most context, see `max_contexts`.
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
        """Return the article of a feature, because features of one article are not independent."""
        return self._sample(index).paragraph.article

    @cached_property
    def digest(self) -> str:
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
        window = feature.paragraph.numbers[feature.start : feature.start + feature.length]
        return np.concatenate((feature.numbers, window, self._last))


def _add(total: hashlib._Hash, *values: Any) -> None:
    total.update(json.dumps(values).encode() + b"\n")
