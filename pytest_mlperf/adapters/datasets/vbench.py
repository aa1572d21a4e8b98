"""Read MLPerf's prompts of VBench, and the initial latents of its videos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.files.json_lines import lines_of
from pytest_mlperf.adapters.datasets.files.latents import (
    LatentDataset,
    find_latents,
    latents_rule,
    read_latents,
)

PROMPTS_FILE = "vbench_prompts.txt"
LATENTS = ("fixed_latent.pt", "fixed_latent.npy")
"""Files next to the prompts; both hold the same numbers."""

SHAPE = (1, 16, 21, 90, 160)
"""Shape of MLPerf's latents: 81 frames of 720 x 1280 pixels."""

PROMPTS_SOURCE = "text_to_video/wan-2.2-t2v-a14b/data in the repository mlcommons/inference"


@dataclass(frozen=True, kw_only=True)
class VBenchOptions(files.ChecksumOptions, dataset="vbench", noun="prompts"):
    """Options of the data set vbench.

    Attributes:
        path: File of prompts, one per line, or a folder with vbench_prompts.txt.
        latents: File of torch.save or numpy.save. None uses fixed_latent.pt or .npy next to the
            prompts; false or "none" leaves latents to the engine.
        shape: Shape of the latents; MLPerf's by default.
    """

    latents: str | bool | None = None
    shape: Sequence[int] = SHAPE

    def __post_init__(self) -> None:
        right = len(self.shape) == 5 and all(type(n) is int and n >= 1 for n in self.shape)
        rule = ("shape", list(self.shape), right, "five lengths, e.g. [1, 16, 21, 90, 160]")
        self.check(rule, latents_rule(self.latents))

    def find(self) -> tuple[Path, Path | None]:
        """Return the paths of prompts and latents; None if the engine generates the latents."""
        path = Path(self.path)
        file = path / PROMPTS_FILE if path.is_dir() else path
        source = f"get them from {PROMPTS_SOURCE}"
        advice = f"{source}, or set the data set's latents to their path, or to false"
        latents, presence = find_latents(self.latents, file.parent, LATENTS, advice)
        lacks = f"{file}: this file of prompts does not exist; {source}, or set path to the file"
        self.require((file.is_file(), lacks), presence)
        return file, latents


class VBenchDataset(LatentDataset[str]):
    """Prompts in the order of the file, and the initial latents that all videos share.

    Lines are stripped, and blank ones skipped, as in MLPerf's reference.
    """

    options = VBenchOptions
    kind = b"vbench"

    def _read(self, options: Any, places: tuple[Path, Path | None]) -> None:
        file, latents = places
        prompts = [line.strip() for line in lines_of(file) if line.strip()]
        self._keep(prompts, options.count, file)
        self._latents = read_latents(latents, tuple(options.shape), "shape")

    def input(self, index: int) -> dict[str, Any]:
        """Return "prompt", and read-only float32 "latents"; None if the engine generates them."""
        return {"prompt": self._sample(index), "latents": self._latents}

    def _content(self, index: int) -> tuple[bytes]:
        return (files.encode(self._samples[index]),)
