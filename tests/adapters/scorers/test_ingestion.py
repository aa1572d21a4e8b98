"""Test the ingestion into a store: documents that arrived, and the MD5 of the written ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.ingestion import IngestionScorer
from pytest_mlperf.core.errors import UnavailableError
from pytest_mlperf.testing import check_scorer

STORE = b"vectors"
MD5 = hashlib.md5(STORE, usedforsecurity=False).hexdigest().encode()
OTHER = b"0" * 32


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.bin"
    path.write_bytes(STORE)
    return path


def test_what_a_log_of_answers_scores(store: Path) -> None:
    """The last of several MD5s counts, in the data set's order; each is a document, too."""
    for outputs, accuracy, same in (
        ([b"\x01", b"\x01", MD5], 100.0, 100.0),
        ([b"\x01", b"\x00", MD5], 200 / 3, 100.0),
        ([b"\x01", b"\x02", MD5], 200 / 3, 100.0),
        ([MD5, b"\x01", OTHER], 100.0, 0.0),
        ([OTHER, b"\x01", MD5], 100.0, 100.0),
        # No MD5: MLPerf's script fails the run.
        ([b"\x01", b"\x01"], 100.0, 0.0),
        ([b"\x01", MD5.upper()], 50.0, 0.0),
        ([b"\x01", MD5 + b"\n"], 50.0, 0.0),
        ([b"", b"\x01\x01", MD5], 100 / 3, 100.0),
    ):
        scores = IngestionScorer(store=str(store)).score(outputs, [None] * len(outputs))

        assert scores.aggregate == {"accuracy": pytest.approx(accuracy), "store": same}
        assert [one for one in scores.per_sample["store"] if one is not None] == [same]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([b"\x00", b"\x01", MD5, OTHER, b"x" * 32, b"1"]), min_size=1))
def test_the_accuracy_is_the_share_of_documents_that_arrived(
    store: Path, outputs: list[bytes]
) -> None:
    scores = IngestionScorer(store=str(store)).score(outputs, [None] * len(outputs))
    arrived = sum(output in {b"\x01", MD5, OTHER} for output in outputs)

    assert scores.aggregate["accuracy"] == pytest.approx(100 * arrived / len(outputs))
    assert len(scores.per_sample["accuracy"]) == len(scores.per_sample["store"]) == len(outputs)


def test_a_document_that_was_not_stored_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="set store to the file that the engine writes"):
        IngestionScorer(store=str(tmp_path / "none")).score([MD5], [None])


@pytest.mark.process
def test_it_keeps_the_contract_of_scorers(store: Path) -> None:
    outputs = [b"\x01", b"\x00", b"\x01", MD5]

    scores = check_scorer(IngestionScorer, outputs, [None] * 4, options={"store": str(store)})

    assert scores.aggregate == {"accuracy": 75.0, "store": 100.0}
