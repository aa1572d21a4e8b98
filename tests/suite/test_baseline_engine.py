"""What a suite may say about the build of its baseline."""

from __future__ import annotations

from pathlib import Path

from pytest_mlperf.suite.load import load_suite
from tests.suite.texts import with_

ENTRY = 'accelerators = ["cpu"]'


def read(tmp_path: Path, table: str) -> dict[str, object]:
    """Return the table as it was read from a suite whose seventh line of engines it is."""
    file = tmp_path / "s.mlperf.toml"
    file.write_text(with_((ENTRY, f"{ENTRY}\nbaseline_engine = {table}")), "utf-8")
    (entry,) = load_suite(file)[0].engines
    assert entry.baseline_engine is not None
    return entry.baseline_engine.model_dump(exclude_none=True)


def test_one_of_four_ways_is_named(tmp_path: Path) -> None:
    ways: tuple[dict[str, object], ...] = (
        {"python": "~/venvs/old/bin/python"},
        {"command": ["docker", "run", "--init", "-i", "--rm", "old", "python"]},
        {"git": "v1.2.0"},
        {"git": "HEAD~1"},
        {"git": "feature/a-b"},
        {"git": "${BASE_SHA}"},
        {"wheel": "onnxruntime==1.30.0"},
        {"wheel": "torch==${TORCH} triton==3.1.0"},
        {"wheel": "../dist/acme-1.0-py3-none-any.whl"},
    )
    for way in ways:
        ((key, value),) = way.items()
        assert read(tmp_path, f"{{ {key} = {value!r} }}") == way
