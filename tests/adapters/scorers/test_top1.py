from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.top1 import Top1Scorer
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.scorers.refusals import differences

Answers = list[tuple[int, int]]

answers = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=60)


def int64(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


@given(answers)
def test_top1_is_the_share_of_right_classes_in_percent(pairs: Answers) -> None:
    scores = Top1Scorer().score([int64(found) for found, _ in pairs], [label for _, label in pairs])

    right = [found == label for found, label in pairs]
    assert scores.aggregate == {"top1": 100.0 * sum(right) / len(pairs)}
    assert scores.per_sample == {"top1": [100.0 * one for one in right]}
    mean = math.fsum(100.0 * one for one in right) / len(pairs)
    assert scores.aggregate["top1"] == pytest.approx(mean, rel=1e-12)


def test_the_aggregate_is_the_figure_that_the_reference_script_prints() -> None:
    for right, total, printed in ((38228, 50000, "76.456"), (1, 3, "33.333"), (2, 3, "66.667")):
        scores = Top1Scorer().score([int64(1)] * total, [1] * right + [0] * (total - right))
        assert f"{scores.aggregate['top1']:.3f}" == printed


def test_an_output_is_one_little_endian_number_whose_fraction_is_cut_off() -> None:
    for dtype, output, value in (
        ("int64", int64(7), 7),
        ("int64", int64(-1), -1),
        ("int64", b"\0\0\0\0\1\0\0\0", 2**32),
        ("int32", b"\7\0\0\0", 7),
        ("int32", b"\xff\xff\xff\xff", -1),
        ("uint8", b"\xff", 255),
        ("float32", struct.pack("<f", 7.0), 7),
        ("float32", struct.pack("<f", 7.9), 7),
        ("float32", struct.pack("<f", -0.5), 0),
    ):
        scores = Top1Scorer(dtype=dtype).score([output, output], [value, value + 1])
        assert scores.per_sample == {"top1": [100.0, 0.0]}, (dtype, output)


def test_an_output_that_is_no_such_number_names_its_sample_and_the_type() -> None:
    rows = [
        ("int64", b""),
        ("int64", b"\7\0\0\0"),
        ("int32", int64(7)),
        ("uint8", b""),
        ("uint8", int64(7)),
        ("float32", b"\0\0\0"),
        ("float32", struct.pack("<f", math.nan)),
        ("float32", struct.pack("<f", math.inf)),
    ]

    def score(dtype: str, output: bytes) -> None:
        right = bytes({"int64": 8, "uint8": 1}.get(dtype, 4))
        Top1Scorer(dtype=dtype).score([right, right, output], [0, 0, 0])

    texts = [(*row, rf"of sample 2 is not a class number of type {row[0]}") for row in rows]
    assert differences(score, RunError, texts) == []


def test_a_class_above_255_is_another_one_in_the_log_of_r_gats_reference() -> None:
    """Which casts to uint8; its script then finds class 44 where 300 was meant."""
    logged = (300 & 0xFF).to_bytes(1, "little")

    assert Top1Scorer(dtype="uint8").score([logged], [300]).aggregate == {"top1": 0.0}
    assert Top1Scorer(dtype="uint8").score([logged], [44]).aggregate == {"top1": 100.0}
    assert Top1Scorer().score([int64(300)], [300]).aggregate == {"top1": 100.0}


def test_an_unknown_type_lists_the_valid_ones() -> None:
    with pytest.raises(
        SuiteError, match="dtype = 'int16' is not one of float32, int32, int64, uint8"
    ):
        Top1Scorer(dtype="int16")


def test_the_model_that_every_scorer_is_given_changes_nothing() -> None:
    assert Top1Scorer(model="models/resnet50.onnx").score([int64(1)], [1]).aggregate["top1"] == 100
