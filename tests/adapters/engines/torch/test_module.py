"""Any module, any nested arrays, in batches: what comes back is each sample's own part."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_mlperf.adapters.engines.torch.module import _runner as module_factories
from pytest_mlperf.adapters.engines.torch.module._runner import join, length, split, tensors
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.engines.recording import Tokenless
from tests.adapters.engines.torch.models import (
    broken_but_accepted,
    config_with,
    weights_with,
    without,
)
from tests.adapters.engines.torch.modules import (
    HERE,
    answer,
    describe,
    linear,
    load,
    open_engine,
    rows,
)
from tests.refusals import unrefused


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.sampled_from(["concat", "pad"]))
def test_joined_samples_are_cut_into_the_same_parts(sizes: list[int], name: str) -> None:
    """For any lengths, also of nested samples; padding never reaches a sample's own part."""
    samples: list[Any] = [
        {"a": np.full((size, 2), place, np.float32), "b": [np.arange(size)]}
        for place, size in enumerate(sizes)
    ]
    trees = [tensors(sample) for sample in samples]
    lengths = [length(tree, name) for tree in trees]

    joined = join(trees, name)

    assert lengths == sizes
    for sample, part in zip(samples, split(name, joined["a"], lengths), strict=True):
        np.testing.assert_array_equal(part.numpy(), sample["a"])
    for sample, part in zip(samples, split(name, joined["b"][0], lengths), strict=True):
        np.testing.assert_array_equal(part.numpy(), sample["b"][0])


def test_arrays_are_stacked() -> None:
    """Whatever the batch, each sample has the answer it has alone."""
    samples = rows(7)
    expected = np.stack(samples) @ np.arange(12, dtype=np.float32).reshape(3, 4).T
    for batch_size, workers in ((1, 0), (3, 2), (7, 0), (50, 2)):
        outputs = answer(samples, "linear", batch_size=batch_size, workers=workers)
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


def test_runs_of_pairs_are_joined_and_cut_apart_again() -> None:
    """Nested inputs, by name; the module sees one run of all pairs."""
    rng = np.random.default_rng(2)
    samples: list[dict[str, Any]] = [
        {
            "user": rng.normal(size=(count, 3)),
            "items": [rng.integers(0, 9, (count, 1)), rng.integers(0, 9, (count, 2), np.int32)],
        }
        for count in (3, 1, 5, 2)
    ]

    outputs = answer(samples, "pairs", batch_size=3)

    for sample, numbers in zip(samples, outputs, strict=True):
        first, second = sample["items"]
        expected = sample["user"].sum(axis=1) + first[:, 0] * second[:, 0]
        np.testing.assert_allclose(numbers, expected, rtol=1e-5)


def test_short_samples_are_filled_up_and_cut_again() -> None:
    """Samples of similar length share a batch; the output is picked by its name."""
    samples = [
        {"tokens": np.arange(1, size + 1), "mask": np.ones(size, np.int64)} for size in (2, 9, 3, 8)
    ]

    twice = answer(samples, "lengths", "<i8", batch_size=2, output="twice")
    filled = answer(samples, "lengths", "<i8", batch_size=2, output="filled")

    assert [list(each) for each in twice] == [list(2 * each["tokens"]) for each in samples]
    assert [each[0] for each in filled] == [3, 9, 3, 9]


def test_lists_go_by_position_and_outputs_keep_their_kind() -> None:
    """Floats are float32, whole numbers int64, truths bytes: little-endian all of them."""
    samples = [[np.array([1.0, -2.0]), np.array([0.5, 4.0])], [np.array([3.0, 0.0])] * 2]

    totals, places, truths = (
        answer(samples, "kinds", dtype, output=place)
        for place, dtype in enumerate(("<f4", "<i8", "u1"))
    )

    assert [list(each) for each in totals] == [[1.5, 2.0], [6.0, 0.0]]
    assert [list(each) for each in places] == [[1], [0]]
    assert [list(each) for each in truths] == [[1, 1], [1, 0]]


def test_precision_is_that_of_parameters_and_inputs() -> None:
    """Answers stay float32, near to those of fp32 but not the same."""
    samples = rows(5, 64)
    options: dict[str, Any] = {"arguments": {"width": 64}}
    usual = np.stack(answer(samples, "linear", **options))

    for precision, most, dtype in (
        ("bf16", 0.02, "bfloat16"),
        ("fp16", 0.002, "float16"),
        ("int8", 0.01, "float32"),
        ("int4", 0.2, "float32"),
    ):
        outputs = np.stack(answer(samples, "linear", precision=precision, **options))
        assert 0 < np.abs(outputs - usual).max() < most * np.abs(usual).max(), precision
        facts = describe(samples, "linear", precision=precision, **options)
        assert (facts["dtype"], "torchao" in facts) == (dtype, precision in {"int8", "int4"})


def test_arguments_reach_the_factory_prepare_its_samples_and_eval_its_module() -> None:
    """`forward` sees what `prepare` returned; only dummy weights are an argument."""
    sample = [np.ones(2, np.float32)]

    assert [list(found) for found in answer(["a", "four"], "prepared")] == [[1.0], [4.0]]
    assert answer([np.ones(1000, np.float32)], "dropout")[0].sum() == 1000
    assert answer([np.zeros(4)], "linear", arguments={"bias": 7.0})[0].tolist() == [7.0] * 3
    assert answer(sample, "seeded")[0].tolist() == [4.0]
    assert answer(sample, "seeded", weights="dummy")[0].tolist() == [2.0]


def test_compiled_modules_answer_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes of batches were compiled before the run; graphs run as torch traced them."""
    compile_with = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, mode: compile_with(self, backend="eager")
    )
    torch._dynamo.reset()
    graphs, samples = torch._dynamo.utils.counters["stats"], rows(7)
    sink = Tokenless(expected=7)
    with open_engine(samples, "dropout", batch_size=4, compile="default") as engine:
        engine.load_samples(range(7))
        made = graphs["unique_graphs"]
        engine.submit(list(range(7)), list(range(7)), sink)
        sink.wait()

    assert graphs["unique_graphs"] == made > 0
    np.testing.assert_array_equal(
        [np.frombuffer(sink.outputs[place], "<f4") for place in range(7)], samples
    )


def test_workers_answer_in_threads_of_their_own() -> None:
    """They take at most `batch_size` of the gathered samples at once."""
    samples, sink = rows(20), Tokenless(expected=20, wants_output=False)
    with open_engine(samples, "linear", batch_size=3, workers=2) as engine:
        engine.load_samples(range(20))
        for sample in range(20):
            engine.submit([sample], [sample], sink)
        sink.wait()

    assert sorted(sink.ids) == list(range(20))
    assert max(map(len, sink.batches)) <= 3
    assert sink.outputs == {}


def test_the_fingerprint_tells_weights_and_ways() -> None:
    """Without `facts` of its own, a module's state is hashed: other weights, other words."""
    facts = describe(rows(1), "linear", workers=1)

    expected = {
        "engine": "torch-module",
        "torch": str(torch.__version__),
        "factory": f"{HERE}:linear",
        "architecture": "Linear",
        "batching": "stack",
        "batch_size": "8",
        "threads": "1",
        "workers": "1",
        "compile": "false",
        "device": "cpu",
        "dtype": "float32",
        "weights_sha256": module_factories.state_sha256(linear())[:16],
    }
    assert facts.items() >= expected.items()
    other = describe(rows(1), "linear", arguments={"bias": 1.0})
    assert facts["weights_sha256"] != other["weights_sha256"]
    assert describe([], "pairs")["weights_sha256"] == "given"


def test_samples_can_be_unloaded_and_loaded_again() -> None:
    """As LoadGen does between parts of a run."""
    samples, sink = rows(3), Tokenless(expected=1)
    with open_engine(samples, "linear") as engine:
        engine.load_samples([0, 1])
        engine.unload_samples([0, 1])
        engine.load_samples([2])
        engine.submit([5], [2], sink)

    assert sink.ids == [5]


def test_a_factory_that_is_not_there_is_refused() -> None:
    table = [
        ("absent_package.module:make", "cannot be imported: no module absent_package in "),
        (f"{HERE}:absent", "is not there: .*has no 'absent'"),
        (f"{HERE}:HERE", "cannot be called"),
    ]
    places: list[Any] = [
        ([], place, f"factory = '{re.escape(place)}' {text}") for place, text in table
    ]
    assert unrefused(load, SuiteError, places) == []


ONE = np.ones(4, np.float32)

MISFITS: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("broken", [], {}, r"factory .*:broken failed, called with model: KeyError: 'no weights'"),
    ("linear", [], {"arguments": {"x": 1}}, "linear failed, called with model, x: TypeError"),
    ("linear", [], {"weights": "dummy"}, "called with model, weights: TypeError"),
    ("nothing", [], {}, "nothing returned str, not a torch.nn.Module"),
    ("sorting", [], {}, "the module's batching is 'sort', which is not one of stack, concat, pad"),
    ("linear", ["text"], {}, "sample 0 of the data set has a value of type str; this"),
    ("linear", [None], {}, "sample 0 of the data set has a value of type NoneType"),
    ("linear", [np.array(["a"])], {}, "sample 0 of the data set has an array of type <U1"),
    (
        "linear",
        [ONE, np.ones(5, np.float32)],
        {},
        r"sample 1 of the data set is float32 \(5\), but the first one is float32 \(4\); batching",
    ),
    ("linear", [ONE, ONE.astype(int)], {}, r"sample 1 of the data set is int64 \(4\)"),
    (
        "pairs",
        [{"user": np.ones((2, 1)), "items": [np.ones((3, 1)), np.ones((2, 1))]}],
        {},
        r"has arrays of shapes \(2, 1\), \(3, 1\), \(2, 1\); batching = 'concat' needs the same",
    ),
    (
        "pairs",
        [{"user": np.ones((0, 1)), "items": [np.ones((0, 1))] * 2}],
        {},
        "sample 0 of the data set is empty",
    ),
    ("linear", [np.ones(5, np.float32)], {}, r"module failed on a batch of 1 .*sample 0 .*Runtime"),
    ("linear", [{"x": ONE}], {}, "module failed on a batch of 1 .*TypeError.*'x'"),
    ("kinds", [[ONE, ONE]], {}, "result has 0, 1, 2, 3; set output to one of them"),
    ("kinds", [[ONE, ONE]], {"output": 3}, "result has 0, 1, 2, 3; output = 3 is not a tensor"),
    ("linear", [ONE], {"output": "x"}, "result is a single tensor, but output = 'x'; leave"),
    ("short", [ONE], {}, r"result has shape \(0, 4\), but its first dimension must be 1"),
    ("short", [ONE], {"batching": "concat"}, r"\(3,\), but its first dimension must be 4"),
]


def test_factories_that_break_and_samples_that_do_not_fit_are_refused() -> None:
    def attempt(factory: str, samples: list[Any], options: dict[str, Any]) -> None:
        with pytest.raises(RunError) as caught:
            load(samples, factory, **options)
        assert caught.value.layer == "engine"
        raise caught.value

    assert unrefused(attempt, RunError, MISFITS) == []


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with random weights that are large enough to tell samples apart."""
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=48,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        transformers.BertForQuestionAnswering(config).save_pretrained(folder)
    return folder


def features(*sizes: int, padded: int = 0) -> list[dict[str, NDArray[np.int64]]]:
    """Return features as the data set squad gives them."""
    rng, samples = np.random.default_rng(8), []
    for size in sizes:
        arrays = np.zeros((3, max(size, padded)), np.int64)
        arrays[0, :size], arrays[1, :size] = rng.integers(1, 60, size), 1
        arrays[2, size // 3 : size] = 1
        samples.append(dict(zip(("input_ids", "input_mask", "segment_ids"), arrays, strict=True)))
    return samples


def ask_bert(folder: Path, samples: list[Any], **options: Any) -> list[Any]:
    return answer(samples, "question-answering", model=str(folder), **options)


def test_question_answering_gives_the_models_own_scores(bert: Path) -> None:
    """Features of different length in one batch: as transformers answers each alone."""
    samples = features(11, 40, 25, 7)
    model = transformers.BertForQuestionAnswering.from_pretrained(bert).eval()

    for sample, numbers in zip(samples, ask_bert(bert, samples, batch_size=3), strict=True):
        with torch.no_grad():
            single = model(
                input_ids=torch.tensor(sample["input_ids"])[None],
                attention_mask=torch.tensor(sample["input_mask"])[None],
                token_type_ids=torch.tensor(sample["segment_ids"])[None],
            )
        expected = torch.stack((single.start_logits[0], single.end_logits[0]), dim=1).numpy()
        np.testing.assert_allclose(numbers.reshape(-1, 2), expected, atol=2e-5)
        assert expected.std() > 0.1


def test_features_that_come_filled_up_keep_their_length(bert: Path) -> None:
    (full,), (bare,) = ask_bert(bert, features(11, padded=48)), ask_bert(bert, features(11))

    assert full.shape == (96,)
    np.testing.assert_allclose(full[:22], bare, atol=2e-5)


def test_question_answering_tells_its_weights(bert: Path, tmp_path: Path) -> None:
    facts = describe(features(9), "question-answering", model=str(bert))
    expected = {
        "model": "BertForQuestionAnswering",
        "batching": "pad",
        "transformers": transformers.__version__,
        "attention": "sdpa",
    }
    assert facts.items() >= expected.items()
    assert len(facts["weights_sha256"]) == 16
    shutil.copy(bert / "config.json", tmp_path)
    with open_engine(
        features(9), "question-answering", model=str(tmp_path), weights="dummy"
    ) as engine:
        assert engine.describe()["weights"] == "dummy"
        engine.load_samples([0])


def test_broken_folders_and_features_are_refused(bert: Path, tmp_path: Path) -> None:
    def enter(folder: Path, sample: Any = None) -> None:
        load([] if sample is None else [sample], "question-answering", model=str(folder))

    bias = "qa_outputs.bias"
    assert broken_but_accepted(bert, tmp_path, enter, [
        (
            config_with(architectures=["BertForMaskedLM"]),
            "BertForMaskedLM in config.json is not a model for question answering; this",
        ),
        (weights_with(lambda all_: all_.pop(bias)), f"the checkpoint lacks {bias}"),
        (weights_with(lambda all_: all_[bias].fill_(float("nan"))), "a weight is NaN or infinite"),
        (without("model.safetensors"), "has no model.safetensors"),
    ]) == []  # fmt: skip
    lacks = "lacks one of input_ids, input_mask, segment_ids"
    table: list[tuple[Any, str]] = [
        ({"input_ids": np.arange(3)}, lacks),
        (np.arange(3), lacks),
        (features(49)[0], "has 49 word pieces, but the model takes 48"),
        (
            features(9)[0] | {"input_ids": np.full(9, 60)},
            "has word piece id 60, but the model's vocabulary has 60",
        ),
    ]
    misfits = [(bert, sample, f"sample 0 of the data set {text}") for sample, text in table]
    assert unrefused(enter, RunError, misfits) == []
