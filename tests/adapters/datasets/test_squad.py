from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.datasets.squad import SquadDataset
from pytest_mlperf.adapters.datasets.squad import _features as squad_features
from pytest_mlperf.adapters.datasets.squad._features import WordPieces, basic_tokens
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.datasets import squad_plain
from tests.adapters.datasets.refusals import not_refused
from tests.adapters.datasets.squad_made_here import ODDITIES, listed, squad, write

Build = Callable[..., SquadDataset]

LINES = listed("[PAD] [UNK] [CLS] [SEP] who sang ? mo ##zart the aria . cafe ##s in 17 ##91 - ## #")
CONTEXT = "Mozart  sang\tthe aria\u202fin Cafés.\n"


def content(context: str = CONTEXT, question: str = "Who sang?") -> dict[str, Any]:
    """Return a file with one question."""
    answers = [{"text": "Mozart", "answer_start": 0}, {"text": "Cafés.", "answer_start": 25}]
    questions = [{"id": "q1", "question": question, "answers": answers}]
    paragraphs = [{"context": context, "qas": questions}]
    return {"version": "1.1", "data": [{"title": "Opera", "paragraphs": paragraphs}]}


def tiny(folder: Path) -> dict[str, Any]:
    write(folder, content(), LINES)
    return {"path": str(folder)}


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Write a file and build the data set of its folder."""

    def with_options(
        made: object = None, lines: list[str] | None = None, **options: Any
    ) -> SquadDataset:
        write(tmp_path, content() if made is None else made, LINES if lines is None else lines)
        return SquadDataset(**{"path": str(tmp_path), **options})

    return with_options


def test_a_feature_is_the_question_between_two_marks_then_the_paragraph_and_a_mark(
    build: Build,
) -> None:
    """It is filled up with zeros unless pad is false."""
    padded, unpadded = build(max_seq_length=80).input(0), build(pad=False).input(0)

    pieces = listed("[CLS] who sang ? [SEP] mo ##zart sang the aria in cafe ##s . [SEP]")
    assert unpadded["input_ids"].tolist() == [LINES.index(piece) for piece in pieces]
    assert unpadded["segment_ids"].tolist() == [0] * 5 + [1] * 10
    assert unpadded["input_mask"].tolist() == [1] * 15
    assert {array.dtype for array in unpadded.values()} == {np.dtype(np.int64)}
    for name, array in padded.items():
        assert array.shape == (80,)
        assert array.tolist() == unpadded[name].tolist() + [0] * 65
    assert build().input(0)["input_ids"].shape == (384,)


def test_the_reference_leads_from_a_position_to_the_words_as_they_were_written(
    build: Build,
) -> None:
    """A long paragraph is shown in windows that share its lists."""
    assert build().reference(0) == {
        "id": "q1",
        "answers": ["Mozart", "Cafés."],
        "words": ["Mozart", "sang", "the", "aria", "in", "Cafés."],
        "normalized": ["mozart", "sang", "the", "aria", "in", "cafes ."],
        "pieces": ["mo", "##zart", "sang", "the", "aria", "in", "cafe", "##s", "."],
        "word_of_piece": [0, 0, 1, 2, 3, 4, 5, 5, 5],
        "first": 5,
        "start": 0,
        "length": 9,
        "max_context": [[0, 9]],
        "features": 1,
    }
    dataset = build(max_seq_length=11, doc_stride=2, max_query_length=3)

    references = [dataset.reference(index) for index in range(len(dataset))]
    assert [(each["start"], each["length"]) for each in references] == [(0, 5), (2, 5), (4, 5)]
    assert [each["features"] for each in references] == [3, 3, 3]
    assert [each["max_context"] for each in references] == [[[0, 4]], [[4, 6]], [[6, 9]]]
    assert all(each["pieces"] is references[0]["pieces"] for each in references)
    assert [dataset.input(index)["input_ids"].tolist()[5] for index in range(3)] == [
        LINES.index(piece) for piece in ("mo", "sang", "aria")
    ]


@pytest.mark.parametrize("odd", [0.05, 0.6])
def test_features_are_those_of_the_reference(build: Build, odd: float) -> None:
    made, lines = squad(7, paragraphs=12, questions=3, odd=odd)
    for longest, stride, query in ((384, 128, 64), (64, 20, 16), (40, 100, 10), (320, 101, 8)):
        lengths = {"max_seq_length": longest, "doc_stride": stride, "max_query_length": query}
        dataset = build(made, lines, pad=False, **lengths)
        plain = squad_plain.features(made, lines, longest=longest, stride=stride, query=query)
        assert len(plain) == len(dataset) > 36
        for index, expected in enumerate(plain):
            features, reference = dataset.input(index), dataset.reference(index)
            assert features["input_ids"].tolist() == expected.input_ids
            assert features["segment_ids"].tolist() == expected.segment_ids
            assert features["input_mask"].tolist() == [1] * len(expected.input_ids)
            assert reference["id"] == expected.identity
            first, size = reference["first"], reference["length"]
            shift, window = reference["start"] - first, range(first, first + size)
            pieces = [reference["pieces"][at + shift] for at in window]
            assert pieces == expected.tokens[first:-1]
            words = {at: reference["word_of_piece"][at + shift] for at in window}
            assert words == expected.token_to_orig_map
            runs = reference["max_context"]
            best = {at: any(low <= at + shift < high for low, high in runs) for at in window}
            assert best == expected.token_is_max_context


@given(st.integers(1, 250), st.integers(1, 90), st.integers(1, 120))
def test_windows_cover_a_paragraph_and_each_piece_has_most_context_in_one(
    pieces: int, room: int, stride: int
) -> None:
    windows = squad_features.split_windows(pieces, room, stride)
    contexts = squad_features.max_contexts(windows, pieces)

    assert [(start, start + length) for start, length in windows] == squad_plain.windows(
        pieces, room, stride
    )
    assert all(after[0] <= sum(before) for before, after in pairwise(windows))
    owned = [piece for runs in contexts for low, high in runs for piece in range(low, high)]
    assert sorted(owned) == list(range(pieces))
    for number, runs in enumerate(contexts):
        for low, high in runs:
            spans = squad_plain.windows(pieces, room, stride)
            assert {squad_plain.best_window(spans, at) for at in range(low, high)} == {number}


def test_basic_tokens_are_plain_words_and_single_marks() -> None:
    rows = [
        ("Hello, WORLD", ["hello", ",", "world"]),
        ("Café cafe\u0301 İzmir", ["cafe", "cafe", "izmir"]),
        ("ΣΑΣ", ["σας"]),
        ("Straße ﬁne", ["straße", "ﬁne"]),
        ("ab東京c", ["ab", "東", "京", "c"]),
        ("カタ 한", ["カタ", "\u1112\u1161\u11ab"]),
        ("a\u00adb\u200bc\x00d\ufffde\ue000f", ["abcdef"]),
        ("a\u00a0b\u3000c\u2028d\u202fe\tf", ["a", "b", "c", "d", "e", "f"]),
        ("$5.00^_`~“x”", ["$", "5", ".", "00", "^", "_", "`", "~", "“", "x", "”"]),
        ("№½™≥", ["№½™≥"]),
        ("[SEP] [sep] a[SEP]", ["[SEP]", "[", "sep", "]", "a", "[", "sep", "]"]),
        ("\u0301 \u200b", []),
        ("", []),
    ]
    for text, tokens in rows:
        assert basic_tokens(text) == tokens == squad_plain.basic_tokens(text), text


@given(st.text(max_size=40) | st.lists(st.sampled_from(ODDITIES)).map(" ".join))
def test_basic_tokens_are_those_of_the_plain_rule(text: str) -> None:
    assert basic_tokens(text) == squad_plain.basic_tokens(text)


def test_basic_tokens_are_those_of_transformers() -> None:
    module = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy")
    original = module.BasicTokenizer()
    edges = (0x3400, 0x4DBF, 0x9FFF, 0xA000, 0xF900, 0xFAFF, 0x1F600, 0x20000, 0x2A6E0, 0x2FA1F)
    codes = [*range(0x2500), *edges, 0xE000, 0xFFFD, 0xFFFF]

    for text in [*ODDITIES, *(f"A{chr(code)}b{chr(code)}" for code in codes)]:
        if "[" not in text or text.startswith("A"):
            assert basic_tokens(text) == original.tokenize(text), text


def test_a_word_is_split_into_the_longest_pieces_from_the_left() -> None:
    rows = [
        ("Mozart", ["mo", "##zart"]),
        ("mo zart", ["mo", "[UNK]"]),
        ("mozarts", ["mo", "##zart", "##s"]),
        ("mozartx", ["[UNK]"]),
        ("1791-Aria", ["17", "##91", "-", "aria"]),
        ("##", ["#", "#"]),
        ("[SEP]", ["[SEP]"]),
        ("[MASK]", ["[UNK]"]),
        ("mo" + "s" * 98, ["mo"] + ["##s"] * 98),
        ("mo" + "s" * 99, ["[UNK]"]),
    ]
    numbers = {line: number for number, line in enumerate(LINES)}

    for text, pieces in rows:
        assert WordPieces(numbers).split(text) == pieces == squad_plain.word_pieces(text, numbers)
        assert list(WordPieces(numbers).word(text).pieces) == pieces


def test_a_question_keeps_its_first_pieces_and_count_the_first_features(build: Build) -> None:
    reference = build(content(question="who " * 70)).reference(0)
    assert reference["first"] == 66
    assert build(content(question=""), max_query_length=1).reference(0)["first"] == 2
    made, lines = squad(1, paragraphs=3, questions=2)
    every, some = build(made, lines), build(made, lines, count=4)

    assert len(some) == 4 < len(every)
    assert [some.reference(i) for i in range(4)] == [every.reference(i) for i in range(4)]


def test_the_file_and_the_vocabulary_are_found_where_mlperf_keeps_them(
    build: Build, tmp_path: Path
) -> None:
    """Lines of the vocabulary may end as on Windows."""
    expected = build().digest
    model, file = tmp_path / "bert_tf_v1_1_large_fp32_384_v2", str(tmp_path / "mine.json")
    model.mkdir()
    (tmp_path / "vocab.txt").rename(model / "vocab.txt")
    (tmp_path / "dev-v1.1.json").rename(file)
    digests = [SquadDataset(path=file).digest]
    (model / "vocab.txt").rename(tmp_path / "words.txt")
    digests += [
        SquadDataset(path=file, vocab=vocab).digest
        for vocab in ("words.txt", str(tmp_path / "words.txt"))
    ]
    (tmp_path / "words.txt").write_bytes("\r\n".join(LINES).encode())
    digests.append(SquadDataset(path=file, vocab="words.txt").digest)

    assert digests == [expected] * 4


def changed(*keys: Any, to: Any = None, drop: bool = False) -> Any:
    """Return a file with one value changed or left out."""
    made = content()
    inner: Any = made
    for key in keys[:-1]:
        inner = inner[key]
    if drop:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = to
    return made


PARAGRAPH = ("data", 0, "paragraphs", 0)
QUESTION = (*PARAGRAPH, "qas", 0)


WHERE = "but SQuAD 1.1 needs an object with key"
AGAIN = "; correct the file, or get dev-v1.1.json again"
TWICE = content()["data"][0]["paragraphs"][0]["qas"] * 2
DEFECTS: list[tuple[Any, str]] = [
    ([], f"is a value of type list, {WHERE} 'version', a text{AGAIN}"),
    ({"images": [], "annotations": []}, f"has 'images', 'annotations', {WHERE} 'version', a text"),
    ({}, f"has no key, {WHERE} 'version', a text"),
    (changed("version", to="v2.0"), "is SQuAD version 'v2.0', but MLPerf's BERT needs version"),
    (changed("data", drop=True), f"has 'version', {WHERE} 'data'"),
    (changed("data", to={}), f"has 'data' of type dict, {WHERE}"),
    (changed("data", to=[]), "there are no features; get it from its source again"),
    (changed("data", 0, to=3), "article 1: is a value of type int, but SQuAD 1.1 needs"),
    (changed("data", 0, "paragraphs", drop=True), "article 1: has 'title', but SQuAD 1.1"),
    (changed(*PARAGRAPH, "context", drop=True), "article 1, paragraph 1: has 'qas', but"),
    (changed(*PARAGRAPH, "context", to=" \u200b\n"), r"paragraph 1: its context ' \u200b\n' has n"),
    (changed(*QUESTION, "id", drop=True), "paragraph 1, question 1: has 'question', 'answers', b"),
    (changed(*QUESTION, "question", to=1), "question 1: has 'question' of type int, but"),
    (changed(*QUESTION, "answers", to=[]), "question 1: has no answer, but each question of SQuAD"),
    (changed(*QUESTION, "answers", 1, "text", to=None), "1, answer 2: has 'text' of type NoneType"),
    (changed(*PARAGRAPH, "qas", to=TWICE), "an earlier question already has the id 'q1';"),
]


def test_a_file_of_another_kind_is_refused_with_the_place_and_the_key(
    build: Build, tmp_path: Path
) -> None:
    assert not_refused(RunError, DEFECTS, build, start=f"{tmp_path / 'dev-v1.1.json'}: ") == []
    for data in (b"\xff\xfe\xfa", b'"\x80"'):
        (tmp_path / "dev-v1.1.json").write_bytes(data)
        with pytest.raises(RunError, match=r"is not JSON \("):
            SquadDataset(path=str(tmp_path))


def test_an_invalid_vocabulary_file_is_refused(build: Build, tmp_path: Path) -> None:
    without = [line for line in LINES if line != "[CLS]"]
    with pytest.raises(
        RunError, match=rf"vocab.txt: has {len(without)} lines, but none reads \[CLS"
    ):
        build(lines=without)
    (tmp_path / "vocab.txt").write_bytes(b"[CLS]\n\xff\n")
    with pytest.raises(RunError, match=r"vocab.txt: is not UTF-8 text \("):
        SquadDataset(path=str(tmp_path))


def test_a_wrong_option_is_refused_before_anything_is_looked_for() -> None:
    rows: list[Any] = [
        *(
            ({name: value}, f"{name} = {value} is not a number of word pieces, at least 1")
            for name, value in (
                *(("max_seq_length", 0), ("max_seq_length", None)),
                *(("doc_stride", 1.5), ("max_query_length", True)),
            )
        ),
        ({"pad": 1}, "pad = 1 is not true or false"),
        (
            {"max_seq_length": 67},
            "max_query_length = 64 leaves no room for the paragraph in max_seq_length = 67; "
            "make it smaller than max_seq_length by at least 4",
        ),
    ]
    calls: list[Any] = [
        lambda options: SquadDataset(path="nowhere", **options),
        lambda options: SquadDataset.look(path="nowhere", **options),
    ]
    assert not_refused(SuiteError, rows, *calls, start="data set squad: ") == []


def test_the_digest_covers_inputs_of_the_engine_and_the_scorer(build: Build) -> None:
    """And neither a title nor the start of an answer."""
    other = copy.deepcopy(content())
    other["data"][0]["title"] = "Another"
    other["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 7
    changes: list[dict[str, Any]] = [
        {},
        {"pad": False},
        {"max_seq_length": 80},
        {"made": content(question="Who sang")},
        {"made": content(context=CONTEXT + "Mozart")},
        {"made": content(context=CONTEXT.replace("aria", "Aria"))},
        {"made": changed(*QUESTION, "id", to="q2")},
        {"made": changed(*QUESTION, "answers", 0, "text", to="He")},
        {"lines": [*LINES[:4], "more", *LINES[4:]]},
        {"max_seq_length": 11, "max_query_length": 3, "pad": False},
    ]
    digests = [build(**change).digest for change in changes]

    assert len(set(digests)) == len(changes)
    assert build(other).digest == digests[0]
