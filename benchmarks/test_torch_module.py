"""What the engine of modules costs beside a plain loop over the same module: `make bench`.

Compared is processor time, with one torch thread, the best of some rounds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.engines.torch.module import TorchModuleEngine
from pytest_mlperf.testing import RecordingSink

torch = pytest.importorskip("torch")

ROUNDS = 7
SHARE = 0.9
"""What the engine must reach of the plain loop."""

SAMPLES, BATCH = 64, 8
SIZES = {
    "num_embeddings_per_feature": [20_000] * 26,
    "embedding_dim": 32,
    "dense_arch_layer_sizes": [128, 64, 32],
    "dcn_low_rank_dim": 64,
    "over_arch_layer_sizes": [128, 64, 1],
}
HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)


class Given:
    """A data set of samples that are there."""

    digest = "0" * 64

    def __init__(self, samples: Sequence[Any]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def input(self, index: int) -> Any:
        return self._samples[index]

    def reference(self, index: int) -> Any:
        return index


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def compare(
    benchmark: Any,
    capsys: pytest.CaptureFixture[str],
    what: str,
    engine: Callable[[], dict[int, bytes]],
    by_hand: Callable[[], dict[int, bytes]],
) -> None:
    """Take both ways in turn; their answers are the same."""
    times: dict[str, list[float]] = {"engine": [], "by hand": []}
    found: dict[str, dict[int, bytes]] = {}

    def turn() -> None:
        for name, work in (("engine", engine), ("by hand", by_hand)):
            start = time.process_time()
            found[name] = work()
            times[name].append(time.process_time() - start)

    turn()
    for each in times.values():
        each.clear()
    benchmark.pedantic(turn, rounds=ROUNDS, iterations=1)
    best = {name: min(each) for name, each in times.items()}
    ratio = best["by hand"] / best["engine"]
    benchmark.extra_info.update({**best, "ratio": ratio, "target": SHARE})
    with capsys.disabled():
        print(
            f"\n{what}: engine {best['engine']:.3f} s, by hand {best['by hand']:.3f} s of "
            f"processor time; engine : by hand = {ratio:.2f}, target >= {SHARE}"
        )
    assert found["engine"] == found["by hand"]
    assert ratio >= SHARE


def opened(samples: Sequence[Any], **options: Any) -> TorchModuleEngine:
    given = {"precision": "fp32", "threads": 1, "batch_size": BATCH, "weights": "dummy"}
    return TorchModuleEngine(dataset=Given(samples), **{**given, **options})


def answered(engine: TorchModuleEngine) -> dict[int, bytes]:
    sink = RecordingSink(SAMPLES)
    engine.submit(list(range(SAMPLES)), list(range(SAMPLES)), sink)
    sink.wait_for_end()
    return sink.outputs


@pytest.mark.benchmark(group="torch-module")
def test_a_recommendation_model_is_as_fast_as_by_hand(
    benchmark: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Samples of 100 to 700 pairs, as MLPerf draws them; a loop that joins and cuts by hand."""
    from pytest_mlperf.adapters.engines.torch.module.dlrm import dlrm_v2

    (tmp_path / "config.json").write_text(json.dumps(SIZES), "utf-8")
    rng = np.random.default_rng(3)
    samples = [
        {
            "dense": rng.normal(size=(pairs, 13)).astype(np.float32),
            "sparse": [rng.integers(0, 20_000, (pairs, many), np.int32) for many in HOTNESS],
        }
        for pairs in rng.integers(100, 700, SAMPLES)
    ]
    module = dlrm_v2(model=str(tmp_path), weights="dummy").eval()
    prepared = [module.prepare(sample) for sample in samples]

    def by_hand() -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for start in range(0, SAMPLES, BATCH):
            batch = prepared[start : start + BATCH]
            dense = torch.from_numpy(np.concatenate([each["dense"] for each in batch]))
            sparse = torch.from_numpy(np.concatenate([each["sparse"] for each in batch]))
            with torch.inference_mode():
                probabilities = module(dense, sparse).numpy()
            ends = np.cumsum([len(each["dense"]) for each in batch])[:-1]
            parts = np.split(probabilities, ends)
            found.update({start + row: part.tobytes() for row, part in enumerate(parts)})
        return found

    with opened(samples, factory="dlrm-v2", model=str(tmp_path)) as engine:
        engine.load_samples(range(SAMPLES))
        compare(benchmark, capsys, "DLRM", lambda: answered(engine), by_hand)


@pytest.mark.benchmark(group="torch-module")
def test_question_answering_is_as_fast_as_by_hand(
    benchmark: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Features of 384 pieces, a small BERT; a loop that stacks and cuts by hand."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    model = transformers.BertForQuestionAnswering(config).eval()
    model.save_pretrained(tmp_path)
    rng = np.random.default_rng(3)
    samples = []
    for length in rng.integers(60, 384, SAMPLES):
        arrays = np.zeros((3, 384), np.int64)
        arrays[0, :length], arrays[1, :length] = rng.integers(1, 30_000, length), 1
        arrays[2, 12:length] = 1
        names = ("input_ids", "input_mask", "segment_ids")
        samples.append(dict(zip(names, arrays, strict=True)))

    def by_hand() -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for start in range(0, SAMPLES, BATCH):
            batch = samples[start : start + BATCH]
            ids, mask, segments = (
                torch.from_numpy(np.stack([each[name] for each in batch]))
                for name in ("input_ids", "input_mask", "segment_ids")
            )
            with torch.inference_mode():
                scores = model(input_ids=ids, attention_mask=mask, token_type_ids=segments)
            rows = np.stack((scores.start_logits.numpy(), scores.end_logits.numpy()), axis=-1)
            found.update({start + row: each.tobytes() for row, each in enumerate(rows)})
        return found

    options = {"factory": "question-answering", "model": str(tmp_path), "weights": "checkpoint"}
    with opened(samples, **options) as engine:
        engine.load_samples(range(SAMPLES))
        compare(benchmark, capsys, "BERT", lambda: answered(engine), by_hand)
