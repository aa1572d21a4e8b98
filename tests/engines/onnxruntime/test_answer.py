"""Task "answer": logits of start and end, whatever the samples' lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.tasks import pad
from tests.engines.onnxruntime.models import encoder, logits, question
from tests.engines.onnxruntime.recorder import answers, engine, run

QUESTIONS = [question(index) for index in range(40)]
PLAIN = [logits(each["input_ids"], each["segment_ids"]) for each in QUESTIONS]


def found(model: str, inputs: Any = QUESTIONS, **options: Any) -> list[Any]:
    raw = answers(model, inputs, task="answer", **options)
    return [np.frombuffer(each, "<f4").reshape(-1, 2) for each in raw]


def same(one: Any, other: Any) -> bool:
    return all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-4)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("workers", [0, 2])
def test_padding_changes_no_answer(tmp_path: Path, batch_size: int, workers: int) -> None:
    """Each sample has the logits that it has alone and by a plain computation, by its own id."""
    together = found(encoder(tmp_path), batch_size=batch_size, workers=workers)

    assert same(together, PLAIN)
    assert [len(each) for each in together] == [len(each["input_ids"]) for each in QUESTIONS]


def test_a_list_is_worked_on_in_batches_of_like_length(tmp_path: Path) -> None:
    """The longest come first, and samples of equal length stay in their order."""
    sink = run(encoder(tmp_path), QUESTIONS, task="answer", batch_size=8)

    lengths = [len(each["input_ids"]) for each in QUESTIONS]
    expected = sorted(range(40), key=lambda index: (-lengths[index], index))
    assert [number - 1000 for batch in sink.batches for number in batch] == expected
    assert [len(batch) for batch in sink.batches] == [8] * 5


@pytest.mark.parametrize(
    "names",
    [
        ("input_ids", "attention_mask", "token_type_ids"),
        ("input_ids:0", "input_mask:0", "segment_ids:0"),
    ],
)
def test_inputs_are_found_by_the_names_that_are_usual(
    tmp_path: Path, names: tuple[str, str, str]
) -> None:
    """The data set's names are MLPerf's; the model's may be those of transformers."""
    assert same(found(encoder(tmp_path, names=names)), PLAIN)


def test_a_data_set_may_use_the_other_names(tmp_path: Path) -> None:
    other = [question(i, mask="attention_mask", sides="token_type_ids") for i in range(40)]

    assert same(found(encoder(tmp_path), other), PLAIN)


@pytest.mark.parametrize(
    "outputs",
    [("start_logits", "end_logits"), ("END:0", "START:0"), ("logits",)],
)
def test_logits_may_be_two_outputs_or_one(tmp_path: Path, outputs: tuple[str, ...]) -> None:
    plain = [each[:, ::-1] for each in PLAIN] if outputs[0] == "END:0" else PLAIN

    assert same(found(encoder(tmp_path, outputs=outputs)), plain)


def test_a_model_may_take_32_bit_numbers(tmp_path: Path) -> None:
    assert same(found(encoder(tmp_path, integer=TensorProto.INT32)), PLAIN)


def test_a_number_that_does_not_fit_into_32_bits_is_refused(tmp_path: Path) -> None:
    large = {**QUESTIONS[0], "input_ids": np.array([1, 2**31, 3])}
    large["input_mask"] = large["segment_ids"] = np.zeros(3, np.int64)
    model = encoder(tmp_path, integer=TensorProto.INT32)

    with (
        engine(model, [large], task="answer") as opened,
        pytest.raises(RunError, match=r"type int32, but sample 0 .* is int64 from 1 to 2147483648"),
    ):
        opened.load_samples([0])


def test_a_model_of_one_width_is_given_that_width(tmp_path: Path) -> None:
    assert same(found(encoder(tmp_path, width=24)), PLAIN)


def test_a_model_without_a_mask_is_never_given_padding(tmp_path: Path) -> None:
    model = encoder(tmp_path, names=("input_ids", "segment_ids"))

    assert same(found(model, batch_size=16), PLAIN)


@pytest.mark.parametrize(
    ("names", "width", "message"),
    [
        (("input_ids", "input_mask", "segment_ids"), 4, r"takes 4 tokens at most, but sample 3 "),
        (("input_ids", "segment_ids"), 40, r"takes 40 tokens and no mask, so no padding, but "),
    ],
)
def test_a_sample_of_a_length_that_the_model_cannot_take_is_refused(
    tmp_path: Path, names: tuple[str, ...], width: int, message: str
) -> None:
    model = encoder(tmp_path, names=names, width=width)

    with (
        engine(model, QUESTIONS, task="answer") as opened,
        pytest.raises(RunError, match=message),
    ):
        opened.load_samples([3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_mask": np.ones(2, np.int64)}, r"one shape \(seq,\), but sample 0 .*_mask \(2,\)"),
        ({"input_ids": np.ones((1, 4), np.int64)}, r"one shape \(seq,\), but .*_ids \(1, 4\)"),
        (
            {"input_ids": np.ones(4)},
            r"input 'input_ids' takes samples of type int64, but .*float64",
        ),
    ],
)
def test_arrays_that_are_no_tokens_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with (
        engine(encoder(tmp_path), [{**QUESTIONS[0], **changes}], task="answer") as opened,
        pytest.raises(RunError, match=message),
    ):
        opened.load_samples([0])


def test_a_sample_without_tokens_is_refused(tmp_path: Path) -> None:
    empty = {name: np.empty(0, np.int64) for name in QUESTIONS[0]}

    with (
        engine(encoder(tmp_path), [empty], task="answer") as opened,
        pytest.raises(RunError, match=r"input_ids \(0,\)"),
    ):
        opened.load_samples([0])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"names": ("words", "input_mask", "segment_ids")}, "has no input input_ids, but words, "),
        ({"outputs": ("one", "two")}, 'gives one, two; task = "answer" needs one output with'),
        ({"batch": 4}, "batch dimension is fixed at 4"),
    ],
)
def test_models_that_are_no_such_encoders_are_refused(
    tmp_path: Path, made: dict[str, Any], message: str
) -> None:
    with pytest.raises(RunError, match=message):
        engine(encoder(tmp_path, **made), [], task="answer").__enter__()


def test_a_token_that_the_model_cannot_look_up_is_an_error_with_the_models_name(
    tmp_path: Path,
) -> None:
    unknown = {**QUESTIONS[0], "input_ids": QUESTIONS[0]["input_ids"] + 50}

    with pytest.raises(RunError, match=r"model\.onnx: onnxruntime gave up: .*indices") as raised:
        answers(encoder(tmp_path), [unknown], task="answer")
    assert raised.value.layer == "engine"


def test_outputs_that_are_no_logits_are_an_error(tmp_path: Path) -> None:
    model = encoder(tmp_path, outputs=("logits",))
    path = Path(model)

    graph = onnx.load(path)
    head = next(each for each in graph.graph.initializer if each.name == "head")
    head.CopyFrom(onnx.numpy_helper.from_array(np.ones((8, 3), np.float32), "head"))
    del graph.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.save_model(graph, path)

    with pytest.raises(RunError, match=r"gave \(1, \d+, 3\) for inputs of shape \(1, \d+\)"):
        answers(model, QUESTIONS[:1], task="answer")


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), more=st.integers(0, 3))
def test_padding_is_zeros_behind_each_array(lengths: list[int], more: int) -> None:
    arrays = [np.arange(1, length + 1) for length in lengths]
    width = max(lengths) + more

    padded = pad(arrays, width)

    assert padded.tolist() == [[*each, *[0] * (width - len(each))] for each in arrays]
