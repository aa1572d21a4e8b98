"""Read SQuAD v1.1 as MLPerf's BERT takes it: windows of word pieces, a question before each."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.datasets.checksum import check_file, parse_checksum
from pytest_mlperf.datasets.squad_features import OTHER_PIECES, Builder, Feature
from pytest_mlperf.datasets.squad_file import read_passages
from pytest_mlperf.datasets.squad_wordpiece import SEPARATOR, WordPieces, read_vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OFFICIAL = "dev-v1.1.json"
VOCABULARY = "vocab.txt"
MODEL_FOLDER = "bert_tf_v1_1_large_fp32_384_v2"
"""Where MLPerf's reference keeps vocab.txt, beside dev-v1.1.json."""


class SquadDataset:
    """Features by index, in the order of the file: the questions of a paragraph, their windows.

    A feature is [CLS] question [SEP] window [SEP]; a paragraph that is too long for one is shown in
    several windows, each `doc_stride` pieces further. The official dev-v1.1.json has 10,570
    questions, which give 10,833 features, and the checksum "md5:3e85deb501d4e538b6bc56f786231552".

    Equal to language/bert/create_squad_data.py of https://github.com/mlcommons/inference.
    """

    libraries = ()

    def __init__(
        self,
        *,
        path: str,
        vocab: str | None = None,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        pad: bool = True,
        count: int | None = None,
        checksum: str | None = None,
    ) -> None:
        """Read and check the whole file, and split it into word pieces.

        Args:
            path: The file dev-v1.1.json, or a folder with it.
            vocab: The vocabulary of BERT uncased, relative to the file's folder, or absolute. None
                finds vocab.txt beside the file, or in the folder of MLPerf's model there.
            max_seq_length: Word pieces of a feature at most.
            doc_stride: Word pieces from the start of a window to that of the next.
            max_query_length: Word pieces that are kept of a question.
            pad: Fill each feature with zeros up to `max_seq_length`, as MLPerf's reference does;
                False gives each its own length.
            count: Use the first `count` features only; None uses all.
            checksum: What the file's must be: "md5:..." or "sha256:..."; None checks nothing.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: The file or the vocabulary is not here.
            RunError: The file has another checksum, or is not as expected.
        """
        import numpy as np

        expected = parse_checksum("data set squad", checksum)
        _check_options(max_seq_length, doc_stride, max_query_length, pad, count)
        file, vocabulary = _find(path, vocab)
        check_file(file, expected)
        pieces = WordPieces(read_vocabulary(vocabulary))
        builder = Builder(
            pieces=pieces,
            max_seq_length=max_seq_length,
            doc_stride=doc_stride,
            max_query_length=max_query_length,
        )
        features = [each for passage in read_passages(file) for each in builder.features(passage)]
        _check_size(file, len(features), count)
        self._features = features[:count]
        self._shares = Counter(each.question.identity for each in self._features)
        self._padded = max_seq_length if pad else 0
        self._last: NDArray[np.int32] = np.array(pieces.numbers([SEPARATOR]), np.int32)

    @classmethod
    def look(
        cls,
        *,
        path: str,
        vocab: str | None = None,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        pad: bool = True,
        count: int | None = None,
        checksum: str | None = None,
    ) -> None:
        """Find the file and the vocabulary without reading them; other options do not matter.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: One of them is not here; says what to put where.
        """
        parse_checksum("data set squad", checksum)
        _check_options(max_seq_length, doc_stride, max_query_length, pad, count)
        _find(path, vocab)

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self._features)

    def input(self, index: int) -> dict[str, NDArray[np.int64]]:
        """Return one feature, by the names of the inputs of MLPerf's ONNX model.

        Returns:
            Arrays of shape (seq,), where seq is `max_seq_length`, or without `pad` the feature's
            own length: "input_ids" has numbers of word pieces, "input_mask" 1 for each that is
            there, "segment_ids" 0 for the question and 1 for the window; after them, zeros.

        Raises:
            IndexError: There is no such feature.
        """
        import numpy as np

        feature = self._feature(index)
        numbers = self._numbers(feature)
        arrays = np.zeros((3, max(self._padded, len(numbers))), np.int64)
        arrays[0, : len(numbers)] = numbers
        arrays[1, : len(numbers)] = 1
        arrays[2, len(feature.numbers) : len(numbers)] = 1
        return {"input_ids": arrays[0], "input_mask": arrays[1], "segment_ids": arrays[2]}

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return the mean length of these features without padding, and of its square.

        Returns:
            "tokens" and "tokens_squared".
        """
        lengths = [len(self._numbers(self._feature(index))) for index in indices]
        return {"tokens": fmean(lengths), "tokens_squared": fmean(n * n for n in lengths)}

    def reference(self, index: int) -> dict[str, Any]:
        """Return what scores a feature; lists are shared between features, so leave them as is.

        Returns:
            "id" of the question; its "answers"; "words" of the paragraph, and each of them
            "normalized", its basic tokens with spaces between; "pieces" of the paragraph, and of
            each of them "word_of_piece"; "first", the position of the window's first piece in the
            feature; "start", the number of that piece in "pieces"; "length", how many pieces the
            window has; "max_context", runs [begin, end) of the pieces that no other window of the
            question shows with more context; "features", how many the question has here.

        Raises:
            IndexError: There is no such feature.
        """
        feature = self._feature(index)
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

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over every feature as the engine gets it, and its reference, in order.

        The same paragraphs, questions and answers in another file have the same digest.
        """
        total = hashlib.sha256(f"squad {self._padded}".encode())
        paragraph = None
        for feature in self._features:
            if feature.paragraph is not paragraph:
                paragraph = feature.paragraph
                _add(total, paragraph.words, paragraph.normalized, paragraph.pieces)
                _add(total, paragraph.word_of_piece)
            question = feature.question
            _add(total, question.identity, question.answers, feature.numbers.tolist())
            _add(total, feature.start, feature.length, feature.max_context)
            total.update(self._numbers(feature).astype("<i4").tobytes())
        return total.hexdigest()

    def _feature(self, index: int) -> Feature:
        if not 0 <= index < len(self):
            raise IndexError(f"feature {index!r} of {len(self)}")
        return self._features[index]

    def _numbers(self, feature: Feature) -> NDArray[np.int32]:
        import numpy as np

        window = feature.paragraph.numbers[feature.start : feature.start + feature.length]
        return np.concatenate((feature.numbers, window, self._last))


def _find(path: str, vocab: str | None) -> tuple[Path, Path]:
    """Return the paths of the questions and of the vocabulary, if both are here."""
    given = Path(path)
    file = given / OFFICIAL if given.is_dir() else given
    missing = []
    if not file.is_file():
        missing.append(
            f"{file}: this file does not exist; put SQuAD's official {OFFICIAL} there, as the "
            "README of MLPerf's language/bert describes, or set the data set's path to it"
        )
    names = (VOCABULARY, f"{MODEL_FOLDER}/{VOCABULARY}") if vocab is None else (vocab,)
    places = [file.parent / name for name in names]
    vocabulary = next((place for place in places if place.is_file()), None)
    if vocabulary is None:
        missing.append(
            f"{places[0]}: this file does not exist; put the {VOCABULARY} of MLPerf's BERT model "
            "there, or set the data set's option vocab to its path"
        )
    if missing or vocabulary is None:
        raise UnavailableError("; also ".join(missing))
    return file, vocabulary


def _check_options(
    max_seq_length: int, doc_stride: int, max_query_length: int, pad: bool, count: int | None
) -> None:
    whole = {"max_seq_length": max_seq_length, "doc_stride": doc_stride, "count": count}
    whole["max_query_length"] = max_query_length
    for name, value in whole.items():
        if (value is not None or name != "count") and (type(value) is not int or value < 1):
            raise SuiteError(f"data set squad: {name} = {value!r} is not a number, at least 1")
    if max_query_length + OTHER_PIECES >= max_seq_length:
        raise SuiteError(
            f"data set squad: max_query_length = {max_query_length!r} leaves no room for the "
            f"paragraph in max_seq_length = {max_seq_length!r}; it must be at least "
            f"{OTHER_PIECES + 1} smaller"
        )
    if type(pad) is not bool:
        raise SuiteError(f"data set squad: pad = {pad!r} is not true or false")


def _check_size(file: Path, features: int, count: int | None) -> None:
    if not features:
        raise RunError("dataset", f"{file}: has no question; get {OFFICIAL} again")
    if count is not None and count > features:
        raise SuiteError(
            f"{file}: count = {count!r}, but its questions give {features} features; lower count, "
            "or leave it out to use all"
        )


def _add(total: hashlib._Hash, *values: Any) -> None:
    """Add values to a hash as one line of JSON."""
    total.update(json.dumps(values).encode() + b"\n")
