"""No mutated file ends a reader in a traceback."""

from __future__ import annotations

import pytest

from tests.stores import fuzzing


@pytest.mark.process
@pytest.mark.parametrize("reader", fuzzing.READERS)
def test_no_mutated_file_ends_a_reader_in_a_traceback(reader: str) -> None:
    assert fuzzing.defects(reader, range(4))[1] == []


@pytest.mark.nightly
@pytest.mark.process
def test_no_traceback_in_5000_files_of_which_1000_are_stores() -> None:
    assert fuzzing.every(5000) == []
