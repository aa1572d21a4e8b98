"""Perplexity through the whole path: that of transformers, kept by int8, lost by damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suites.test_precision_suites import BASELINES, PRECISE
from tests.suites.tiny_twin import LANGUAGE, TINY, Twin, load_tool, twin_marks

pytestmark = twin_marks(*LANGUAGE[:2], "torchao")

DAMAGED = """
[[engines]]
use = "torch"
name = "damaged"
precision = "fp32"
model = "damaged"
options = { batch_size = 32, threads = 1, prompt_logprobs = true }
"""


def test_it_is_the_perplexity_of_the_model_without_an_engine() -> None:
    """The trainer measured it window by window, in float64 and by transformers alone."""
    twin = Twin("perplexity", shared="llama2-70b")

    perplexity = twin.score(twin.answers()).aggregate["perplexity"]

    assert perplexity == pytest.approx(twin.training["perplexity"]["perplexity"], abs=1e-4)


def test_a_loss_above_one_per_cent_fails_and_smaller_ones_pass(tmp_path: Path) -> None:
    """A thousandth of the weights is ten times as large in the damaged model."""
    folder = tmp_path / "precision"
    (folder / "baselines").mkdir(parents=True)
    (tmp_path / "tiny").symlink_to(TINY)
    (folder / "baselines" / "accuracy").symlink_to(BASELINES)
    model = TINY / "llama2-70b" / "model"
    load_tool("damage_weights").damage(model, folder / "damaged", share=0.001)
    text = (PRECISE / "perplexity.mlperf.toml").read_text("utf-8") + DAMAGED
    lines = [line for line in text.splitlines() if not line.startswith(("reference", "target"))]
    (folder / "copy.mlperf.toml").write_text("\n".join(lines), "utf-8")

    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "copy.mlperf.toml", "-k", "accuracy"),
            *("-p", "no:cacheprovider", "-p", "no:xdist", "--mlperf-json=results.json"),
            "-omlperf_control=off",  # other tests compute beside it
        ],
        cwd=folder,
        env={**os.environ, "PYTEST_MLPERF_LEASES": str(tmp_path / "leases")},
        capture_output=True,
        text=True,
        check=False,
    )

    results = json.loads((folder / "results.json").read_text("utf-8"))
    outcomes = [case["verdict"]["outcome"] for case in results["cases"]]
    assert done.returncode == 1, done.stdout
    assert outcomes == ["ok", "ok", "ok", "ACC DROP"]
