"""Test the tiny DLRM v3.

Trained, above the loss of the true probabilities, and worse when damaged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.suites.tiny_twin import TINY, Twin, load_tool, twin_marks

pytestmark = twin_marks("torch", "safetensors")
SUITE = "dlrm-v3"


@pytest.fixture(scope="module")
def stream(twin: Twin) -> Any:
    """The tastes that the data were drawn from."""
    return load_tool("tiny_stream").Stream(twin.training["seed"])


def test_the_true_probabilities_are_better(twin: Twin, answers: list[bytes], stream: Any) -> None:
    """Entropy that nothing can be expected to be below, from the committed requests themselves."""
    rows = []
    for index, answer in enumerate(answers):
        request, row = twin.dataset.input(index), np.frombuffer(answer, "<f4").copy()
        row[2 : 2 + int(row[-1])] = stream.chances(request["user"], request["candidates"])
        rows.append(row.tobytes())

    bound = twin.score(rows).aggregate["normalized_entropy"]

    assert bound == pytest.approx(twin.training["true_normalized_entropy"], abs=1e-4)
    assert 0 < twin.training["normalized_entropy"] - bound < 0.1


def test_the_data_come_from_the_model_of_tastes(twin: Twin, stream: Any) -> None:
    folder = TINY / "dlrm-v3" / "data" / "sampled_data"

    for name, content in stream.files(0).items():
        assert (folder / name).read_bytes() == content
    assert len(twin.dataset) == twin.training["samples"]
