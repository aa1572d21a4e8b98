"""MLPerf's prompts of VBench and the latents of every video."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.datasets.vbench import VBenchDataset
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError

SHAPE = [1, 4, 3, 2, 2]
NOISE = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


def tiny(folder: Path) -> dict[str, Any]:
    (folder / "vbench_prompts.txt").write_text("  a cat runs\n\na dog's nap \n", "utf-8")
    np.save(folder / "fixed_latent.npy", NOISE)
    return {"path": str(folder), "shape": SHAPE}


def test_prompts_are_lines_as_the_reference_strips_them(folder: Path) -> None:
    dataset = VBenchDataset(path=str(folder), shape=SHAPE)

    assert [dataset.reference(index) for index in range(len(dataset))] == [
        "a cat runs",
        "a dog's nap",
    ]
    sample = dataset.input(1)
    assert sample["prompt"] == "a dog's nap"
    np.testing.assert_array_equal(sample["latents"], NOISE)
    assert not sample["latents"].flags.writeable
    assert dataset.input(0)["latents"] is sample["latents"]


def test_latents_of_torch_are_the_same(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    digest = VBenchDataset(path=str(folder), shape=SHAPE).digest
    torch.save(torch.from_numpy(NOISE), folder / "fixed_latent.pt")
    (folder / "fixed_latent.npy").unlink()

    assert VBenchDataset(path=str(folder), shape=SHAPE).digest == digest


def test_the_digest_knows_prompts_and_latents(folder: Path) -> None:
    """An engine may draw its own latents."""
    file = folder / "vbench_prompts.txt"
    for latents in (False, "none"):
        dataset = VBenchDataset(path=str(file), latents=latents)
        assert dataset.input(0) == {"prompt": "a cat runs", "latents": None}
    digests = {VBenchDataset(path=str(folder), shape=SHAPE).digest, dataset.digest}
    np.save(folder / "fixed_latent.npy", NOISE * 2)

    assert len({*digests, VBenchDataset(path=str(folder), shape=SHAPE).digest}) == 3


def test_defects_are_refused_with_a_message(folder: Path) -> None:
    rows: list[Any] = [
        (
            {},
            RunError,
            r"has shape \(1, 4, 3, 2, 2\), but shape requires \(1, 16, 21, 90, 160\);",
        ),
        ({"shape": [1, 2]}, SuiteError, r"shape = \[1, 2\] is not five lengths"),
        ({"latents": True}, SuiteError, "latents = True is not the path of a file, or false"),
        ({"latents": "no.pt"}, UnavailableError, "no.pt: this file of latents does not exist"),
    ]
    for options, error, part in rows:
        with pytest.raises(error, match=part):
            VBenchDataset(**{"path": str(folder), **options})
    (folder / "vbench_prompts.txt").write_text(" \n", "utf-8")
    with pytest.raises(RunError, match="there are no prompts"):
        VBenchDataset(path=str(folder), shape=SHAPE)
