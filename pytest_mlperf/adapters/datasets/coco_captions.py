"""Read MLPerf's captions of COCO 2014, and the initial latents of its images."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.conventions import sides_of
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.files.columns import csv_records
from pytest_mlperf.adapters.datasets.files.json_lines import broken_line
from pytest_mlperf.adapters.datasets.files.latents import (
    LatentDataset,
    find_latents,
    latents_rule,
    read_latents,
)

CAPTION_FILES = (
    "captions/captions.tsv",
    "captions/captions_source.tsv",
    "captions.tsv",
    "captions_source.tsv",
)
"""Paths of the captions, in search order; the reference makes captions.tsv from the source."""

LATENTS = ("latents.pt", "latents.npy")
"""Files in the folder "latents" next to the captions; both hold the same numbers."""

NEEDED_COLUMNS = ("id", "caption")
"""Required columns; the official file also has image_id, height, width and names."""

IMAGE = "image_id"

CHANNELS = 4
PIXELS_PER_LATENT = 8
"""Channels and downscaling of Stable Diffusion XL's autoencoder."""

ADVICE = (
    "put the folder text_to_image/coco2014/captions of the repository mlcommons/inference there, "
    "or set the data set's path to its captions_source.tsv"
)
ADVICE_LATENTS = (
    "put latents.pt or latents.npy from text_to_image/tools of the repository mlcommons/inference "
    "there, set the data set's latents to its path, or set latents = false if the engine draws its "
    "own latents"
)


Row = tuple[int, str, str | None]
"""Id, caption and image of a row."""


@dataclass(frozen=True, kw_only=True)
class CocoCaptionsOptions(files.ChecksumOptions, dataset="coco_captions", noun="captions"):
    """Options of the data set coco_captions.

    Attributes:
        path: Folder with captions/captions.tsv or captions/captions_source.tsv, or a tab-separated
            table with the columns "id" and "caption".
        latents: File of torch.save or numpy.save. None uses the official file in the folder
            "latents" next to the captions. With false or "none" the engine generates the latents.
        size: Side of a square image, or [height, width], in pixels. Latents have the shape (1, 4,
            height / 8, width / 8).
    """

    latents: str | bool | None = None
    size: int | Sequence[int] = 1024

    def __post_init__(self) -> None:
        self.check(latents_rule(self.latents))
        _ = self.shape

    @property
    def shape(self) -> tuple[int, ...]:
        sides = sides_of(self.size) or (1,)
        if not any(side % PIXELS_PER_LATENT for side in sides):
            return 1, CHANNELS, *(side // PIXELS_PER_LATENT for side in sides)
        raise self.wrong(
            f"size = {self.size!r} must be a multiple of {PIXELS_PER_LATENT} pixels, or "
            "[height, width] with two such multiples",
            option="size",
        )

    def find(self) -> tuple[Path, Path | None]:
        """Return the paths of captions and latents; None if the engine generates the latents."""
        path = Path(self.path)
        table = path if path.is_file() else files.first_file(path / name for name in CAPTION_FILES)
        lacks = (
            f"has neither {' nor '.join(CAPTION_FILES[:2])}"
            if path.is_dir()
            else "no folder or file of captions has this path"
        )
        folder = (table or path / CAPTION_FILES[-1]).absolute().parent
        folder = (folder.parent if folder.name == "captions" else folder) / "latents"
        latents, presence = find_latents(self.latents, folder, LATENTS, ADVICE_LATENTS)
        self.require((table is not None, f"{path}: {lacks}; {ADVICE}"), presence)
        assert table is not None
        return table, latents


class CocoCaptionsDataset(LatentDataset[Row]):
    """Captions in the order of the table, and the initial latents that all images share.

    All files are read and checked when the data set is built, in less than a second for the
    official ones.
    Source: Coco in text_to_image/coco.py of https://github.com/mlcommons/inference.
    """

    options = CocoCaptionsOptions
    kind = b"coco_captions"

    def _read(self, options: CocoCaptionsOptions, places: tuple[Path, Path | None]) -> None:
        file, latents = places
        self._keep(list(_rows(file)), options.count, file)
        self._latents = read_latents(latents, options.shape, "size")

    def input(self, index: int) -> dict[str, Any]:
        """Return "caption" and "latents", which is None if the engine generates the latents.

        Latents are read-only float32 of shape (1, 4, height / 8, width / 8), shared by all samples.
        """
        return {"caption": self._sample(index)[1], "latents": self._latents}

    def reference(self, index: int) -> dict[str, Any]:
        identity, caption, _ = self._sample(index)
        return {"caption": caption, "id": identity}

    def group(self, index: int) -> str | None:
        """Return a caption's "image_id" as its group; None if the table has no such column."""
        return self._sample(index)[2]

    def _content(self, index: int) -> tuple[bytes, bytes]:
        identity, caption, _ = self._samples[index]
        return files.encode(str(identity)), files.encode(caption)


def _rows(file: Path) -> Iterator[Row]:
    first_lines: dict[int, int] = {}
    for line, row in csv_records(file, NEEDED_COLUMNS, delimiter="\t"):
        identity, caption = row["id"], row["caption"]
        if not re.fullmatch("[0-9]{1,18}", identity):
            raise broken_line(file, line, f"id {identity[:40]!r} is not a number")
        if not caption.strip():
            raise broken_line(file, line, "the caption is empty")
        first = first_lines.setdefault(int(identity), line)
        if first != line:
            raise broken_line(file, line, f"id {int(identity)} already occurs in line {first}")
        yield int(identity), caption, row.get(IMAGE)
