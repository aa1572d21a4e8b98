"""Read MLPerf's prompts of VBench, and the initial latents of its videos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_mlperf import SuiteError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.files.json_lines import lines_of
from pytest_mlperf.adapters.datasets.files.latents import read_latents, require_reader
from pytest_mlperf.adapters.datasets.prompts import encode, hash_of

PROMPTS_FILE = "vbench_prompts.txt"
LATENTS = ("fixed_latent.pt", "fixed_latent.npy")
"""Files next to the prompts; both hold the same numbers."""

SHAPE = (1, 16, 21, 90, 160)
"""Shape of MLPerf's latents: 81 frames of 720 x 1280 pixels."""

PROMPTS_SOURCE = "text_to_video/wan-2.2-t2v-a14b/data in MLPerf's repository inference"


@dataclass(frozen=True, kw_only=True)
class VBenchOptions(files.FileOptions):
    """Options of the data set vbench.

    Attributes:
        path: File of prompts, one per line, or a folder with vbench_prompts.txt.
        latents: File of torch.save or numpy.save. None uses fixed_latent.pt or .npy next to the
            prompts; false or "none" leaves latents to the engine.
        shape: Shape of the latents; MLPerf's by default.
        checksum: "md5:..." or "sha256:..." of the prompts; None skips the check.
    """

    path: str
    latents: str | bool | None = None
    shape: Sequence[int] = SHAPE
    checksum: str | None = None

    def __post_init__(self) -> None:
        right = len(self.shape) == 5 and all(type(n) is int and n >= 1 for n in self.shape)
        rule = ("shape", list(self.shape), right, "five lengths, such as [1, 16, 21, 90, 160]")
        self.check("vbench", rule, count="prompts")
        if self.latents is True or self.latents == "":
            raise SuiteError(
                f"data set vbench: latents = {self.latents!r} is neither the path of a file nor "
                "false",
                option="latents",
            )

    def find(self) -> tuple[Path, Path | None]:
        """Return the files of prompts and of latents; None for latents that the engine draws."""
        path, latents = Path(self.path), None
        file = path / PROMPTS_FILE if path.is_dir() else path
        needed = [
            (file.is_file(), f"{file}: these prompts are not here; get them from {PROMPTS_SOURCE}")
        ]
        if self.latents is None:
            latents = files.first_file(file.parent / name for name in LATENTS)
            lacks = f"{file.parent}: has neither {' nor '.join(LATENTS)}"
        elif isinstance(self.latents, str) and self.latents != "none":
            latents = Path(self.latents) if Path(self.latents).is_file() else None
            lacks = f"{self.latents}: these latents are not here"
        if self.latents not in (False, "none"):
            advice = "or set the data set's latents to their path, or to false"
            needed.append(
                (latents is not None, f"{lacks}; get them from {PROMPTS_SOURCE}, {advice}")
            )
        self.require(*needed)
        if latents:
            require_reader(latents)
        return file, latents


class VBenchDataset(files.FileDataset[str]):
    """Prompts in the order of the file, and the initial latents that all videos share.

    Lines are stripped, and blank ones skipped, as in MLPerf's reference.
    """

    optional_libraries = ("torch",)
    options = VBenchOptions
    unit = "prompt"

    def _read(self, options: Any, places: tuple[Path, Path | None]) -> None:
        file, latents = places
        files.check_file(file, options.checksum)
        prompts = [line.strip() for line in lines_of(file) if line.strip()]
        if not prompts:
            raise files.wrong(file, "has no prompts", f"get it from {PROMPTS_SOURCE}")
        self._keep(prompts, options.count, file, f"the file has {len(prompts)} prompts")
        shape, of = tuple(options.shape), "the option shape"
        self._latents = None if latents is None else read_latents(latents, shape, of)

    def input(self, index: int) -> dict[str, Any]:
        """Return "prompt", and read-only float32 "latents", or None if the engine draws them."""
        return {"prompt": self._sample(index), "latents": self._latents}

    def reference(self, index: int) -> str:
        return self._sample(index)

    @cached_property
    def digest(self) -> str:
        total = hash_of(b"vbench", ((encode(prompt),) for prompt in self._samples))
        if self._latents is not None:
            total.update(repr(self._latents.shape).encode())
            total.update(self._latents.astype("<f4").tobytes())
        return total.hexdigest()
