"""Task "answer": logits of start and end, whatever the samples' lengths."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from pytest_mlperf.adapters.engines.tasks import pad
from tests.adapters.engines.onnxruntime.models import encoder, logits, question
from tests.adapters.engines.onnxruntime.recorder import answers, run

QUESTIONS = [question(index) for index in range(40)]
PLAIN = [logits(each["input_ids"], each["segment_ids"]) for each in QUESTIONS]


def answers_of(model: str, inputs: Any = QUESTIONS, **options: Any) -> list[Any]:
    raw = answers(model, inputs, task="answer", **options)
    return [np.frombuffer(each, "<f4").reshape(-1, 2) for each in raw]


def same(answers: Any, other: Any) -> bool:
    return all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-4)
        for a, b in zip(answers, other, strict=True)
    )


def test_padding_changes_no_answer(tmp_path: Path) -> None:
    for batch_size, workers in product([1, 7, 64], [0, 2]):
        together = answers_of(encoder(tmp_path), batch_size=batch_size, workers=workers)
        assert same(together, PLAIN)
        assert [len(each) for each in together] == [len(each["input_ids"]) for each in QUESTIONS]


def test_a_list_is_worked_on_in_batches_of_like_length(tmp_path: Path) -> None:
    """The longest come first, and samples of equal length stay in their order."""
    sink = run(encoder(tmp_path), QUESTIONS, task="answer", batch_size=8)

    lengths = [len(each["input_ids"]) for each in QUESTIONS]
    expected = sorted(range(40), key=lambda index: (-lengths[index], index))
    assert [number - 1000 for batch in sink.batches for number in batch] == expected
    assert [len(batch) for batch in sink.batches] == [8] * 5


def test_encoders_of_many_forms_give_the_same_logits(tmp_path: Path) -> None:
    """The data set's names are MLPerf's; the model's may be those of transformers."""
    forms: list[dict[str, Any]] = [
        {"names": ("input_ids", "attention_mask", "token_type_ids")},
        {"names": ("input_ids:0", "input_mask:0", "segment_ids:0")},
        {"outputs": ("start_logits", "end_logits")},
        {"outputs": ("logits",)},
        {"integer": TensorProto.INT32},
        {"width": 24},
        {"names": ("input_ids", "segment_ids")},  # without a mask it is given no padding
    ]
    others = [form for form in forms if not same(answers_of(encoder(tmp_path, **form)), PLAIN)]
    assert others == []
    swapped = answers_of(encoder(tmp_path, outputs=("END:0", "START:0")))
    assert same(swapped, [each[:, ::-1] for each in PLAIN])
    named = [question(i, mask="attention_mask", sides="token_type_ids") for i in range(40)]
    assert same(answers_of(encoder(tmp_path), named), PLAIN)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), more=st.integers(0, 3))
def test_padding_is_zeros_behind_each_array(lengths: list[int], more: int) -> None:
    arrays = [np.arange(1, length + 1) for length in lengths]
    width = max(lengths) + more

    padded = pad(arrays, width)

    assert padded.tolist() == [[*each, *[0] * (width - len(each))] for each in arrays]
