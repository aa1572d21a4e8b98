"""Test that references of another data set's form end in one error, never in a traceback."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest

from pytest_mlperf import registry
from pytest_mlperf.core.errors import RunError

INDEX = struct.pack("<q", 3)

OUTPUTS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "auc": (struct.pack("<f", 0.5), {}),
    "dice": (b"\0", {}),
    "exact_match": (INDEX, {"answers": "ids"}),
    "function_calls": (b"[]", {}),
    "map": (struct.pack("<7f", 0, 0, 0, 0.5, 0.5, 0.9, 1), {}),
    "perplexity": (struct.pack("<ifif", 1, math.nan, 2, -1), {}),
    "pointpainting": (struct.pack("<14f", *[0] * 13, 1), {}),
    "ranking": (struct.pack("<6f", 0, 0, 0.5, 1, 1, 1), {}),
    "squad": (bytes(8), {}),
    "top1": (INDEX, {}),
    "word_accuracy": (INDEX, {}),
}
"""A valid output, and options, by scorer."""

BOX = {"category_id": 1, "bbox": [1, 2, 3, 4], "area": 1, "iscrowd": 0}
IMAGE = {"image_id": 1, "height": 1, "width": 1, "annotations": [BOX]}
FRAME = {"image_id": 1, "names": ["Car"], "difficulty": [0], "boxes": [[1] * 7]}

REFERENCES: list[Any] = [
    *(None, 3, 1.5, "x", b"x", object(), {}, [], [1], ["a"], [[1, 2]], (1, "a")),
    *(np.zeros((2, 2)), {"label": "x", "case": "c"}, {"label": None, "case": "c"}, {"label": 1}),
    *({"labels": "x"}, {"labels": [1, 2]}, {"step": "x"}, {"subset": ["a"]}),
    *({"tokens": ["a"], "scored": 1}, {"question": "q", "answer": 2}),
    *(IMAGE | change for change in ({"image_id": math.inf}, {"height": "x"}, {"annotations": 3})),
    *(
        IMAGE | {"annotations": [BOX | change]}
        for change in ({"category_id": math.inf}, {"bbox": ["a", 2, 3, 4]}, {"area": None})
    ),
    *(FRAME | change for change in ({"image_id": math.inf}, {"difficulty": [math.inf]})),
    FRAME | {"boxes": [["a"] * 7]},
]


@pytest.mark.parametrize("use", OUTPUTS)
def test_a_reference_of_another_form_is_one_error(use: str) -> None:
    """Or is scored, as an answer to a reference that a scorer accepts."""
    output, options = OUTPUTS[use]
    factory = registry.resolve(registry.target("scorers", use))
    refusals = []
    for reference in REFERENCES:
        try:
            factory(model=None, **options).score([output], [reference])
        except RunError as error:
            refusals.append((error.layer, str(error).partition(":")[0]))

    assert set(refusals) == {("scorer", f"scorer {use}")}
    assert len(refusals) > len(REFERENCES) // 3
