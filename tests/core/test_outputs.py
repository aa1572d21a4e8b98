"""Outputs are told apart by two bytes each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.measurement import Scored, digest, others


@given(st.binary(max_size=64))
def test_a_digest_is_a_function_of_the_output_and_takes_two_bytes(output: bytes) -> None:
    assert digest(output) == digest(bytes(output))
    assert 0 <= digest(output) < 2**16


def test_outputs_that_differ_in_one_bit_are_told_apart() -> None:
    """Of 20,000 pairs, less than 1 in 5,000 is missed."""
    missed = 0
    for number in range(20_000):
        output = number.to_bytes(8, "little")
        missed += digest(output) == digest((number ^ 1 << number % 60).to_bytes(8, "little"))

    assert missed < 4


def test_changed_outputs_are_counted_by_data_set_index() -> None:
    scored = Scored(indices=(1, 3, 4), per_sample={}, outputs=(11, 99, 14))

    assert others([10, 11, 12, 13, 14], scored) == 1
    assert others(None, scored) is None
    assert others([10, 11], Scored(indices=(0, 1), per_sample={})) is None
    assert Scored(indices=(), per_sample={}).outputs is None
