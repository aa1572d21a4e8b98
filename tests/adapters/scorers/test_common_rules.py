"""What holds for every scorer: outputs and references match, and the suite names the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf import registry
from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.registry import check_call

Reference = Callable[[int], Any]
OF_TEXT = ("exact_match", "gsm8k", "mixtral", "rouge", "long_context", "deepseek_r1", "gpt_oss")
"""Scorers that decode tokens by the tokenizer of the workload's model."""

REFERENCES: Mapping[str, tuple[bytes, Reference]] = {
    "auc": (bytes(4), lambda _: [1]),
    "dice": (bytes(24), lambda _: np.zeros((2, 3, 4), np.uint8)),
    "evaluate": (bytes(8), lambda _: 0),
    "exact_match": (b"", lambda _: "text"),
    "gsm8k": (b"", lambda _: "1"),
    "map": (b"", lambda index: {"index": index, "annotations": []}),
    "mixtral": (b"", lambda _: {"dataset": "GSM8K", "target": "1"}),
    "rouge": (b"", lambda _: "text"),
    "squad": (b"", lambda _: {}),
    "top1": (bytes(8), lambda _: 0),
}
"""An output and a reference of each scorer; neither is read if the counts differ."""


def built(name: str, model: Path) -> Any:
    options: dict[str, Any] = {"model": str(model)} if name in OF_TEXT else {}
    if name == "evaluate":
        options = {"metric": f"evaluate:{__file__}", "outputs": "number"}
    return registry.resolve(registry.target("scorers", name))(**options)


@pytest.mark.parametrize("name", REFERENCES)
def test_every_reference_needs_one_output_and_there_must_be_one(name: str, model: Path) -> None:
    output, reference = REFERENCES[name]
    problems = {}
    for outputs, references in ((0, 0), (1, 0), (0, 1), (2, 3), (3, 2)):
        with pytest.raises(RunError) as caught:
            built(name, model).score([output] * outputs, [*map(reference, range(references))])
        sentence = (
            f"scorer {name}: got {outputs} outputs for {references} references; it needs "
            "one output per reference, and at least one"
        )
        if str(caught.value) != sentence or caught.value.layer != "scorer":
            problems[outputs, references] = str(caught.value)

    assert problems == {}


@pytest.mark.parametrize("name", OF_TEXT)
def test_the_suite_names_the_model_once_for_the_whole_workload(name: str) -> None:
    scorer = registry.resolve(registry.target("scorers", name))
    check_call(f"scorer {name!r}", scorer, {"tokenizer": "x", "dtype": "int32"})

    with pytest.raises(SuiteError, match="has no option 'model'"):
        check_call(f"scorer {name!r}", scorer, {"model": "x"})
