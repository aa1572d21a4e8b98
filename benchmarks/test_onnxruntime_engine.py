"""What the onnxruntime engine costs beside a plain loop over an InferenceSession: `make bench`.

Both ways give the same answers, with one thread, in one process, in turn; compared are the best of
some rounds, because other work on the machine can only slow one down.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.adapters.engines.onnxruntime.models import drawn, encoder
from tests.adapters.engines.onnxruntime.recorder import engine
from tests.adapters.engines.recording import Tokenless

RESNET = Path(__file__).parents[1] / "suites" / "tiny" / "resnet50" / "resnet50-tiny.onnx"
ROUNDS = 9
BATCH = 8
SHARE = 0.85
"""What the engine must reach of the better way by hand."""


def by_engine(model: str, inputs: Sequence[Any], **options: Any) -> Callable[[], list[bytes]]:
    """Return one list of all samples through the engine, loaded before."""
    opened = engine(model, inputs, batch_size=BATCH, **options).__enter__()
    opened.load_samples(range(len(inputs)))

    def run() -> list[bytes]:
        sink = Tokenless()
        opened.submit(range(len(inputs)), range(len(inputs)), sink)
        return [sink.outputs[index] for index in range(len(inputs))]

    return run


def session(model: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def classes_by_hand(model: str, images: Sequence[Any]) -> Callable[[], list[bytes]]:
    """Return a loop over slices of one array of all images."""
    opened, stacked = session(model), np.stack(images)
    name = opened.get_inputs()[0].name

    def run() -> list[bytes]:
        found = []
        for start in range(0, len(stacked), BATCH):
            (scores,) = opened.run(None, {name: stacked[start : start + BATCH]})
            found += [number.tobytes() for number in scores.argmax(axis=-1).astype("<i8")]
        return found

    return run


def logits_by_hand(
    model: str, questions: Sequence[Any], *, ordered: bool
) -> Callable[[], list[bytes]]:
    """Return a loop over batches that are padded to their longest, as given or by length."""
    opened = session(model)
    lengths = [len(each["input_ids"]) for each in questions]
    order = sorted(range(len(questions)), key=lengths.__getitem__) if ordered else None

    def run() -> list[bytes]:
        found, places = [b""] * len(questions), order or range(len(questions))
        for start in range(0, len(places), BATCH):
            batch = places[start : start + BATCH]
            width = max(lengths[place] for place in batch)
            feed = {name: np.zeros((len(batch), width), np.int64) for name in questions[0]}
            for name, rows in feed.items():
                for row, place in zip(rows, batch, strict=True):
                    row[: lengths[place]] = questions[place][name]
            both = np.stack(opened.run(None, feed), axis=-1)
            for row, place in zip(both, batch, strict=True):
                found[place] = row[: lengths[place]].tobytes()
        return found

    return run


def compare(
    benchmark: BenchmarkFixture,
    capsys: pytest.CaptureFixture[str],
    what: str,
    samples: int,
    ways: dict[str, Callable[[], list[bytes]]],
) -> None:
    """Take all ways in turn, and hold "engine" against the better of those by hand."""
    rates: dict[str, list[float]] = {name: [] for name in ways}

    def turn() -> None:
        for name, run in ways.items():
            begun_s = perf_counter()
            run()
            rates[name].append(samples / (perf_counter() - begun_s))

    turn()
    for found in rates.values():
        found.clear()
    benchmark.pedantic(turn, rounds=ROUNDS, iterations=1)  # type: ignore[no-untyped-call]
    best = {name: max(found) for name, found in rates.items()}
    ratio = best["engine"] / max(value for name, value in best.items() if name != "engine")
    benchmark.extra_info.update({**best, "ratio": ratio, "target": SHARE})
    with capsys.disabled():
        print(f"\n{what}, samples/s, best of {ROUNDS} (median):")
        for name, found in rates.items():
            print(f"  {name:<24} {best[name]:>9,.0f} ({statistics.median(found):,.0f})")
        print(f"  engine : better by hand = {ratio:.3f}, target >= {SHARE}")
    assert ratio >= SHARE


def test_images_are_classified_as_fast_as_by_hand(
    benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tiny suite's own model, whose work per image is small beside what an engine adds."""
    images = [drawn(index, 3, 32, 32) for index in range(512)]
    ways = {
        "by hand": classes_by_hand(str(RESNET), images),
        "engine": by_engine(str(RESNET), images),
    }

    assert ways["engine"]() == ways["by hand"]()
    compare(benchmark, capsys, "Images", len(images), ways)


def test_questions_are_answered_as_fast_as_by_hand(
    benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Questions of 20 to 384 tokens; by hand in the order given, and sorted by length."""
    model = encoder(tmp_path, words=drawn(1, 1000, 64) / np.float32(8), layers=4)
    questions = []
    for index in range(192):
        numbers = np.random.default_rng(index)
        ids = numbers.integers(0, 1000, numbers.integers(20, 385))
        ones = np.ones_like(ids)
        questions.append({"input_ids": ids, "input_mask": ones, "segment_ids": ones})
    ways = {
        "by hand, as given": logits_by_hand(model, questions, ordered=False),
        "by hand, sorted": logits_by_hand(model, questions, ordered=True),
        "engine": by_engine(model, questions, task="answer"),
    }

    by_hand, found = ways["by hand, sorted"](), ways["engine"]()
    for ours, theirs in zip(found, by_hand, strict=True):
        assert np.allclose(np.frombuffer(ours, "<f4"), np.frombuffer(theirs, "<f4"), atol=1e-3)
    compare(benchmark, capsys, "Questions", len(questions), ways)
