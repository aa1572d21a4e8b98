"""Accepted scores and passes of earlier sessions come back as they were kept, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import tracemalloc
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.baseline import (
    Accepted,
    AccuracyBaseline,
    Rerun,
    rounded_scores,
    steps_per_point,
)
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.judge.inputs import Leverage
from pytest_mlperf.stores.accuracy import AccuracyPasses, StoredPass
from pytest_mlperf.stores.accuracy_baselines import (
    ACCURACY_DOCUMENT,
    OUTPUTS,
    Scores,
    load,
    load_outputs,
    path_for,
    replace_scores,
    scores_path,
)
from tests.core.made import make_accuracy_baseline, present

BASELINE = make_accuracy_baseline(
    workload="llama2-70b-99.9",
    engine="torch",
    samples=3,
    scores={"rouge1": 44.4312},
    scorer="{}",
    identity={"cpu": "x"},
    fingerprint={"dataset": "abc"},
    history=(
        Accepted(
            date="2026-11-21",
            commit=None,
            reason="first baseline",
            action="record",
            old={},
            new={"rouge1": 44.4312},
        ),
    ),
)


def save(
    path: Path, baseline: AccuracyBaseline, scores: Scores, outputs: Sequence[int] | None = None
) -> AccuracyBaseline:
    return replace_scores(path, lambda _: baseline, scores, outputs)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return path_for(tmp_path, workload="llama2-70b-99.9", engine="torch", precision="fp32")


@given(
    st.lists(
        st.one_of(
            st.floats(0, 100),
            st.floats(-1, 1),
            st.integers(0, 20_000).map(float),
            st.just(0.0),
            st.none(),
        ),
        min_size=1,
        max_size=30,
    )
)
@settings(deadline=None, max_examples=20)
def test_a_baseline_is_read_with_the_precision_of_new_passes(values: list[float | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        written = save(path, replace(BASELINE, samples=len(values)), {"x": values})
        baseline = present(load(path))

    assert baseline == (written, {"x": rounded_scores(values, written.steps["x"])})
    step = 1 / steps_per_point(values)
    for read, value in zip(baseline[1]["x"], values, strict=True):
        assert (read is None) == (value is None)
        assert read is None or value is None or abs(read - value) <= step / 2 + 1e-9


def test_a_full_data_set_takes_two_bytes_a_score_and_metric_or_digest(
    path: Path, tmp_path: Path
) -> None:
    """No hardware is part of the path; scores between 0 and 1 are kept finer."""
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 100, 24_576).tolist()
    digests = rng.integers(0, 2**16, 24_576).tolist()
    full = replace(BASELINE, samples=24_576)

    name = scores_path(path).name
    save(path, full, {"rouge1": values})
    without = scores_path(path).stat().st_size
    save(path, full, {"rouge1": values}, digests)

    assert path == tmp_path / "accuracy" / "llama2-70b-99.9" / "torch.fp32.json"
    assert name == "torch.fp32.scores.npz"
    assert 40_000 < without < 50_000
    assert scores_path(path).stat().st_size - without < 50_000
    ranges = [[0.0, 44.43, 100.0], [0.1, 0.9999, 1.0], [-0.5, 0.5], [312.0]]
    assert [*map(steps_per_point, ranges)] == [100, 10_000, 10_000, 100]


def test_the_same_scores_are_the_same_bytes(path: Path) -> None:
    """Another number of scores or digests than samples is refused."""
    a, b = [4.0, 5.0, 6.0], [1.0, 2.0, 3.0]
    assert load(path) is None
    save(path, BASELINE, {"b": b, "a": a})
    first = scores_path(path).read_bytes()
    save(path, BASELINE, {"a": a, "b": b})
    assert scores_path(path).read_bytes() == first

    save(path, replace(BASELINE, samples=4), {"rouge1": b}, outputs=[1, 2])
    with pytest.raises(BaselineError, match="has 3 scores of rouge1 for 4 samples; restore both"):
        load(path)
    with pytest.raises(BaselineError, match="has 2 output digests for 4 samples; record anew"):
        load_outputs(path)


def put_scores(path: Path, content: bytes) -> None:
    """Write other scores, with their digest in the baseline."""
    save(path, BASELINE, {"rouge1": [1.0, 2.0, 3.0]})
    scores_path(path).write_bytes(content)
    raw = json.loads(path.read_text("utf-8"))
    raw["scores_sha256"] = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps(raw), "utf-8")


def test_a_damaged_file_names_its_defect_and_an_invalid_digest_names_no_file(
    path: Path,
) -> None:
    written = save(path, BASELINE, {"rouge1": [1.0, 2.0, 3.0]})
    raw = json.loads(path.read_text("utf-8"))
    for change, message in (
        ({"schema": 99}, r"written by a newer pytest-mlperf \(schema 99"),
        ({"samples": 0}, "samples is 0; at least 1 is needed"),
        ({"colour": "red"}, "colour: is not a key of the accuracy baseline"),
    ):
        path.write_text(json.dumps({**raw, **change}), "utf-8")
        with pytest.raises(BaselineError, match=message):
            load(path)

    for digest in ("", "../../../x", "/etc/passwd", "A" * 64, "\x00" * 64):
        ACCURACY_DOCUMENT.save(path, replace(written, scores_sha256=digest))
        for read in (load, load_outputs, scores_path):
            with pytest.raises(BaselineError, match=r"not a SHA-256\. Restore the file"):
                read(path)


def test_digests_and_repeats_are_kept_with_the_scores(path: Path) -> None:
    """A baseline of an older release has neither."""
    repeated = {
        "rouge1": Rerun(sd=0.031, correlation=0.95, passes=2),
        "flat": Rerun(sd=0.0, correlation=None, passes=1),
    }
    scores = {"rouge1": [1.0, 2.0, 3.0]}
    written = save(path, replace(BASELINE, rerun=repeated), scores, outputs=[0, 513, 65_535])

    assert load(path) == (written, scores), "digests are no metric"
    assert written.rerun == repeated
    assert load_outputs(path) == [0, 513, 65_535]
    save(path, BASELINE, scores)
    raw = json.loads(path.read_text("utf-8"))
    del raw["rerun"]
    path.write_text(json.dumps(raw), "utf-8")
    assert present(load(path))[0].rerun == {}
    assert load_outputs(path) is None


def test_committed_baselines_are_read() -> None:
    committed = [*(Path(__file__).parents[2] / "baselines" / "accuracy").glob("*/*.json")]
    assert committed
    for file in committed:
        baseline, scores = present(load(file))
        assert {len(values) for values in scores.values()} == {baseline.samples}, file


def header(shape: str, dtype: str = "<u2") -> bytes:
    """Return an array in NumPy's format without values, with any header."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


WRONG_SCORES: list[tuple[dict[str, bytes], str]] = [
    ({"rouge1": bytes(2**23)}, r"rouge1 unpacks to 8,388,608 bytes \(at most 1,036\)"),
    ({OUTPUTS: bytes(2**23)}, r"output digests unpacks to 8,388,608 bytes"),
    ({"rouge1": header("(1000000000000,)")}, "is damaged"),
    ({"rouge1": header("(-3,)")}, "is damaged"),
    ({"rouge1": header("(3, 1)") + bytes(6)}, "is damaged"),
    ({"rouge1": header("(True,)") + bytes(2)}, "is damaged"),
    ({"rouge1": header(f"({'1, ' * 300})") + bytes(6)}, "is damaged"),
    ({"rouge1": header("(3,)", "<f8") + bytes(24)}, "is damaged"),
    ({"other": header("(3,)") + bytes(6)}, "holds 'other', which is not a metric of llama2"),
    ({}, "lacks the scores of rouge1"),
    ({f"{n}": b"" for n in range(2_000)}, "which is not a metric of"),
]


def test_scores_that_contradict_their_header_are_refused_before_they_are_unpacked(
    path: Path,
) -> None:
    pickled = io.BytesIO()
    np.savez(pickled, rouge1=np.array([1, "two", None], dtype=object), allow_pickle=True)
    put_scores(path, pickled.getvalue())
    with pytest.raises(BaselineError, match="is damaged: Object arrays cannot be loaded"):
        load(path)

    for members, message in WRONG_SCORES:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(f"{name}.npy", content)
        put_scores(path, buffer.getvalue())

        tracemalloc.start()
        try:
            with pytest.raises(BaselineError, match=message):
                load(path)
            assert tracemalloc.get_traced_memory()[1] < 2**22
        finally:
            tracemalloc.stop()


ACCURACY = Accuracy(
    scores={"clip": 31.7, "fid": 23.5},
    samples=2,
    total=2,
    full=True,
    folder="x",
    lower=("fid",),
    whole=("fid",),
)
PLAIN = Scored(indices=(0, 1), per_sample={"clip": [31.0, None], "fid": [20.0, 27.0]})
SCORED = replace(
    PLAIN,
    outputs=(7, 65_535),
    groups=(0, 0),
    leverage={"fid": Leverage(seen=0.75, df=12.5, hidden=2.0)},
)


def test_a_pass_is_read_back_and_one_of_an_older_release_lacks_later_fields(
    tmp_path: Path,
) -> None:
    passes = AccuracyPasses(tmp_path / "accuracy")
    passes.save("key", ACCURACY, SCORED)
    stored = passes.load("key")

    file = tmp_path / "accuracy" / "key.json"
    content = json.loads(file.read_text("utf-8"))
    for name in ("lower", "whole"):
        del content["accuracy"][name]
    for name in ("outputs", "leverage", "groups"):
        del content["scored"][name]
    file.write_text(json.dumps(content), "utf-8")

    assert stored == StoredPass(accuracy=replace(ACCURACY, source="stored"), scored=SCORED)
    older = replace(ACCURACY, source="stored", lower=(), whole=())
    assert passes.load("key") == StoredPass(accuracy=older, scored=PLAIN)
    passes.save("plain", ACCURACY, PLAIN)
    assert present(passes.load("plain")).scored == PLAIN
    file.write_text("{", "utf-8")
    assert passes.load("key") is passes.load("other") is None
