from __future__ import annotations

import functools
import operator
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_mlperf.adapters.datasets.squad import SquadDataset
from pytest_mlperf.adapters.scorers.squad import (
    SquadScorer,
    normalized_words,
    text_scores,
    written_text,
)
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.datasets.squad_made_here import logits, squad, write
from tests.adapters.scorers import squad_plain
from tests.adapters.scorers.inputs import Once
from tests.adapters.scorers.refusals import differences

Reference = Mapping[str, Any]

WORDS = ["Steve", "Smith's", "(café)", "in", "Łódź."]
NORMALIZED = ["steve", "smith ' s", "( cafe )", "in", "łodz ."]
PIECES = ["steve", "smith", "'", "s", "(", "ca", "##fe", ")", "in", "[UNK]", "."]
WORD_OF_PIECE = [0, 1, 1, 1, 2, 2, 2, 2, 3, 4, 4]
LENGTH = len(PIECES)


def reference(**changes: Any) -> dict[str, Any]:
    """Return the reference of a feature: [CLS] who [SEP] and eleven pieces [SEP]."""
    return {
        "id": "q",
        "answers": ["Steve Smith", "café"],
        "words": WORDS,
        "normalized": NORMALIZED,
        "pieces": PIECES,
        "word_of_piece": WORD_OF_PIECE,
        "first": 3,
        "start": 0,
        "length": LENGTH,
        "max_context": [[0, LENGTH]],
        "features": 1,
        **changes,
    }


def output(
    starts: Mapping[int, float], ends: Mapping[int, float], positions: int = LENGTH + 4
) -> bytes:
    """Return logits that are 0 but at these positions."""
    pairs = np.zeros((positions, 2), "<f4")
    for side, given_logits in enumerate((starts, ends)):
        for position, logit in given_logits.items():
            pairs[position, side] = logit
    return pairs.tobytes()


def predictions(outputs: Sequence[bytes], references: Sequence[Reference], **options: Any) -> Any:
    """Return (F1, exact match) of each sample, rounded to a tenth."""
    per_sample = SquadScorer(**options).score(outputs, references).per_sample
    return [
        None if f1 is None or exact is None else (round(f1, 1), exact)
        for f1, exact in zip(per_sample["f1"], per_sample["exact_match"], strict=True)
    ]


Logits = dict[int, float]

BARRED: Logits = dict.fromkeys(range(15), float("-inf"))

SPANS: list[tuple[Logits, Logits, dict[str, Any], dict[str, Any], tuple[float, float]]] = [
    # The best span is turned into text as it was written.
    ({3: 9}, {4: 9}, {}, {}, (100, 100)),
    ({3: 9}, {6: 9}, {}, {}, (50, 0)),
    ({8: 9}, {9: 9}, {}, {}, (100, 100)),
    ({7: 9}, {10: 9}, {}, {}, (100, 100)),
    ({4: 9}, {4: 9}, {}, {}, (66.7, 0)),
    ({11: 9}, {11: 9}, {}, {}, (0, 0)),
    ({8: 9}, {11: 9}, {}, {}, (66.7, 0)),
    # An unknown piece gives its whole words.
    ({12: 9}, {12: 9}, {"answers": ["Łódź"]}, {}, (100, 100)),
    # A span in the question, of [SEP], or that ends before it starts is none.
    ({1: 20, 3: 9}, {1: 20, 4: 9}, {}, {}, (100, 100)),
    ({14: 20, 3: 9}, {14: 20, 4: 9}, {}, {}, (100, 100)),
    ({8: 9, 3: 8}, {4: 9, 9: 1}, {}, {}, (100, 100)),
    # A span may not start where another window has more context, but may end there.
    ({4: 20, 3: 9}, {4: 20}, {"max_context": [[0, 1]]}, {}, (100, 100)),
    ({4: 20, 3: 9}, {4: 20}, {"max_context": [[0, 1], [5, 11]]}, {}, (100, 100)),
    # A span has so many pieces at most.
    ({8: 9}, {8: 1, 9: 9}, {}, {"max_answer_length": 2}, (100, 100)),
    ({7: 9, 8: 3}, {9: 9}, {}, {"max_answer_length": 2}, (100, 100)),
    # Equal sums: the higher start comes first, of equal starts the earlier position.
    ({3: 9, 8: 8}, {4: 8, 11: 9}, {}, {"max_answer_length": 2}, (100, 100)),
    ({3: 9, 11: 9}, {4: 9, 11: 9}, {}, {"max_answer_length": 2}, (100, 100)),
    # Only the best starts and ends meet: without them there is no answer.
    ({0: 9}, {0: 9}, {}, {"n_best": 1}, (0, 0)),
    ({0: 9}, {0: 9}, {"answers": ["Empty!"]}, {"n_best": 1}, (100, 100)),
    ({13: 9}, {3: 9}, {"answers": ["empty"]}, {"n_best": 1}, (100, 100)),
    ({}, {}, {"answers": ["empty"], "max_context": []}, {}, (100, 100)),
    # Minus infinity bars a position.
    (BARRED | {3: 0}, BARRED | {4: -9e3}, {}, {}, (100, 100)),
    (BARRED, BARRED, {"answers": ["empty"]}, {}, (100, 100)),
]


def test_a_span_is_chosen_by_the_rules_of_the_reference() -> None:
    assert [
        predictions([output(starts, ends)], [reference(**changes)], **options)
        for starts, ends, changes, options, _ in SPANS
    ] == [[score] for *_, score in SPANS]


WINDOWS = [
    reference(length=7, max_context=[[0, 5]], features=2),
    reference(start=4, length=7, max_context=[[5, 11]], features=2),
]


def test_the_best_span_of_all_features_of_a_question_counts_once() -> None:
    for first, second, score in (
        (({3: 5}, {4: 5}), ({4: 4}, {5: 5}), (100, 100)),
        (({3: 4}, {4: 5}), ({4: 5}, {5: 5}), (100, 100)),
        (({3: 4}, {3: 5}), ({4: 5}, {5: 5}), (100, 100)),
        (({3: 5}, {3: 5}), ({4: 5}, {5: 5}), (66.7, 0)),
        (({3: 5}, {3: 5}), ({3: 9}, {5: 9}), (66.7, 0)),
    ):
        outputs = [output(*first, positions=11), output(*second, positions=11)]

        assert predictions(outputs, WINDOWS) == [score, None]
        assert predictions(outputs[::-1], WINDOWS[::-1]) == [score, None]


def test_a_question_with_some_of_its_features_has_no_score_yet() -> None:
    right, wrong = output({4: 5}, {5: 5}, positions=11), output({3: 5}, {3: 9}, positions=11)
    other, third = reference(id="r"), output({8: 9}, {9: 9})

    assert predictions([wrong, third, right], [WINDOWS[0], other, WINDOWS[1]]) == [
        (66.7, 0),
        (100, 100),
        None,
    ]
    assert predictions([third, right], [other, WINDOWS[1]]) == [(100, 100), None]
    assert predictions([right], [WINDOWS[1]]) == [(100, 100)], "no question is complete"


def test_what_was_found_is_cut_from_what_was_written_if_the_characters_match() -> None:
    rows = [
        ("steve smith", "steve smith ' s", "Steve Smith's", "Steve Smith"),
        ("1895", "( 1895 - 1943 ) .", "(1895-1943).", "1895"),
        ("cafe", "« cafe »", "«Café»", "Café"),
        ("cafe", "cafe noir", "cafe\u0301 noir", "cafe\u0301 noir"),
        ("noir", "a noir", "a\u00a0noir", "a\u00a0noir"),
        ("b c", "a b c d", "A B C D", "B C"),
        ("smyth", "steve smith", "Steve Smith", "Steve Smith"),
        ("[UNK]", "łodz .", "Łódź.", "Łódź."),
        ("", "steve", "Steve", "Steve"),
        ("京", "東 京", "東京", "京"),
        ("i", "izmir", "İzmir", "İ"),
        ("a", "a b a", "A b-a", "A b-a"),
        ("a", "a b a", "A ba", "A"),
    ]

    assert [
        written_text(span=cut, normalized=normalized, written=written)
        for cut, normalized, written, _ in rows
    ] == [text for *_, text in rows]


def test_a_word_of_which_nothing_is_left_does_not_part_those_beside_it() -> None:
    """A Hangul syllable becomes three characters, so that the numbers of characters agree."""
    jamo = "\u1112\u1161\u11ab"
    given_words = reference(
        words=["\ud55c", "\u200b\u200b", "x。"],
        normalized=[jamo, "", "x 。"],
        pieces=[jamo, "x", "。"],
        word_of_piece=[0, 2, 2],
        length=3,
        answers=["\ud55c \u200b\u200b x"],
    )

    assert predictions([output({3: 9}, {4: 9})], [given_words]) == [(100, 100)]
    assert squad_plain.final_text(3, 4, given_words) == given_words["answers"][0]


def test_words_are_lower_case_without_marks_and_articles() -> None:
    words = {
        "The cat's  hat": ["cats", "hat"],
        "An apple, a day!": ["apple", "day"],
        "the-cat": ["thecat"],
        "a": [],
        "«the» Über\u00a0alles": ["«", "»", "über", "alles"],
        "$1,000.50": ["100050"],
        "anthem atheist": ["anthem", "atheist"],
        "the_a": ["thea"],
        "...": [],
        "": [],
    }

    assert {text: normalized_words(text) for text in words} == words
    assert {text: squad_plain.normalize(text).split() for text in words} == words


def test_an_answer_is_compared_with_each_that_is_accepted_and_the_best_counts() -> None:
    rows = [
        ("Denver Broncos", ["Denver Broncos"], 1.0, True),
        ("The Denver Broncos!", ["denver broncos"], 1.0, True),
        ("Broncos Denver", ["Denver Broncos"], 1.0, False),
        ("Broncos", ["Denver Broncos", "Carolina"], 2 / 3, False),
        ("a b b c", ["b c c d"], 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4), False),
        ("x", ["y", "x z", "x"], 1.0, True),
        ("the", ["..."], 0.0, True),
        ("the", ["word"], 0.0, False),
        ("", ["", "a"], 0.0, True),
    ]

    assert [(*row[:2], *text_scores(*row[:2])) for row in rows] == rows


texts = st.text("the an a,.- X\u00e9\u00a0bc", max_size=12)


@given(texts, st.lists(texts, min_size=1, max_size=4))
def test_texts_are_scored_as_the_reference_does(answer: str, accepted: list[str]) -> None:
    expected = (
        max(squad_plain.f1_score(answer, text) for text in accepted),
        any(squad_plain.normalize(answer) == squad_plain.normalize(text) for text in accepted),
    )

    assert text_scores(answer, accepted) == expected
    assert text_scores(answer, accepted[::-1] + accepted) == expected


@cache
def made(odd: float) -> list[dict[str, Any]]:
    """Return the references of a small data set, some questions with many features."""
    content, lines = squad(5, paragraphs=14, questions=3, words=90, odd=odd)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), content, lines)
        dataset = SquadDataset(path=folder, max_seq_length=120, max_query_length=20, doc_stride=40)
    return [dataset.reference(index) for index in range(len(dataset))]


def check(seed: int, *, odd: float, levels: int | None, features: int, **options: Any) -> None:
    """Score logits made from a seed as we do and as the reference does."""
    part = made(odd)[seed % 40 : seed % 40 + features]
    shares = Counter(each["id"] for each in part)
    references = [{**each, "features": shares[each["id"]]} for each in part]
    arrays = [
        logits(seed + number, each["first"] + each["length"] + 1 + seed % 3, levels=levels)
        for number, each in enumerate(references)
    ]
    outputs = [array.tobytes() for array in arrays]
    plain = {
        "n_best": options.get("n_best", 20),
        "longest": options.get("max_answer_length", 30),
    }
    _, answers = squad_plain.evaluate(arrays, references, **plain)

    # The same texts are found, and texts that agree in part score the same.
    equal = [{**each, "answers": [answers[each["id"]]]} for each in references]
    assert SquadScorer(**options).score(outputs, equal).aggregate["exact_match"] == 100
    partly = [
        {**each, "answers": [text[: len(text) * 2 // 3], "the " + text[len(text) // 3 :]]}
        for each in references
        for text in [answers[each["id"]]]
    ]
    got = SquadScorer(**options).score(outputs, partly)
    assert got.aggregate == squad_plain.evaluate(arrays, partly, **plain)[0]
    for name, values in got.per_sample.items():
        single = [value for value in values if value is not None]
        assert len(values) == len(references)
        assert len(single) == len({each["id"] for each in references})
        total = functools.reduce(operator.add, single)
        assert total / len(single) == pytest.approx(got.aggregate[name], rel=1e-12)


@pytest.mark.slow
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    levels=st.sampled_from([None, 3, 20, 200]),
    odd=st.sampled_from([0.05, 0.6]),
    n_best=st.sampled_from([1, 2, 5, 20, 40]),
    longest=st.sampled_from([1, 3, 30]),
)
def test_scores_are_those_of_the_reference_to_the_last_digit(
    seed: int, levels: int | None, odd: float, n_best: int, longest: int
) -> None:
    check(seed, odd=odd, levels=levels, features=20, n_best=n_best, max_answer_length=longest)


def test_every_position_may_be_among_the_best() -> None:
    for n_best, levels in ((383, 3), (384, 3), (500, None)):
        check(3, odd=0.05, levels=levels, features=2, n_best=n_best)


def test_outputs_have_the_type_and_the_layout_that_is_said() -> None:
    for dtype in ("float32", "float16", "float64", "int8", "int16", "int32", "int64"):
        pairs = np.zeros((20, 2), np.dtype(dtype).newbyteorder("<"))
        pairs[3, 0] = pairs[4, 1] = 9
        for transposed, layout in ((False, pairs), (True, np.ascontiguousarray(pairs.T))):
            options = {"dtype": dtype, "transposed": transposed}
            assert predictions([layout.tobytes()], [reference()], **options) == [(100, 100)], (
                options
            )


def test_outputs_are_read_once_in_their_order() -> None:
    references = [reference(id=str(number)) for number in range(5)]
    outputs = Once([output({3: 9}, {4: 9})] * 5)

    assert SquadScorer().score(outputs, references).aggregate == {"f1": 100, "exact_match": 100}
    assert outputs.reads == [0, 1, 2, 3, 4]


def test_wrong_inputs_and_options_are_refused() -> None:
    good = output({}, {})
    outputs = [
        *(
            (
                bytes(size),
                (
                    f"^scorer squad: output of sample 1 has {size} bytes; it must be two "
                    f"logits of type float32 for each of 15 to 384 positions; set the scorer's "
                    f"dtype and max_seq_length to those of the engine's outputs$"
                ),
            )
            for size in (0, 1, 8, 8 * 14, 8 * 15 + 4, 8 * 385)
        ),
        *(
            (
                output({}, {position: float(name)}),
                f"^scorer squad: the end logit at position {position} of sample 1 is {name}, which "
                "is not finite; check the engine for an overflow, or for outputs of another type "
                "than the scorer's dtype$",
            )
            for name in ("nan", "inf")
            for position in (0, 5, 14)
        ),
    ]
    references = [
        (
            wrong,
            "^scorer squad: the reference of sample 0 does not come from data set squad; use "
            'scorer squad only in a suite with dataset = { use = "squad", ... }$',
        )
        for wrong in (3, "text", None, {}, {"id": "q", "answers": ["x"]})
    ]
    options = [
        (
            {"dtype": "bfloat16"},
            "^scorer squad: dtype = 'bfloat16' is not one of float32, float16, float64, "
            "int8, int16, int32, int64$",
        ),
        ({"transposed": 1}, "transposed = 1 is not true or false"),
        ({"n_best": 0}, "n_best = 0 is not a whole number of at least 1"),
        ({"max_answer_length": 2.0}, r"max_answer_length = 2\.0 is not a whole number"),
        ({"max_seq_length": True}, "max_seq_length = True is not a whole number of at least 1"),
    ]
    score = SquadScorer().score

    assert (
        differences(lambda output: score([good, output], [reference()] * 2), RunError, outputs)
        == []
    )
    assert differences(lambda reference: score([good], [reference]), RunError, references) == []
    assert differences(lambda options: SquadScorer(**options), SuiteError, options) == []


def test_a_shorter_output_is_filled_up_as_the_reference_does() -> None:
    """If every logit is below -10000, the padding ranks among the best."""
    low: NDArray[np.float32] = np.full((15, 2), -20000, "<f4")
    low[3, 0] = low[4, 1] = -15000

    answers = {"answers": ["empty"]}
    assert predictions([low.tobytes()], [reference(**answers)]) == [(100, 100)]
    assert predictions([low.tobytes()], [reference()], max_seq_length=16) == [(100, 100)]
    assert squad_plain.evaluate([low], [reference(**answers)])[1] == {"q": "empty"}
