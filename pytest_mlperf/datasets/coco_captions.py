"""Read MLPerf's captions of COCO 2014, and the latents that its images are made from."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.datasets.checksum import check_file, parse_checksum
from pytest_mlperf.datasets.latents import read_latents, require_reader
from pytest_mlperf.datasets.prompts import check_count, encode, framed

OFFICIAL = (
    "captions/captions.tsv",
    "captions/captions_source.tsv",
    "captions.tsv",
    "captions_source.tsv",
)
"""Where a folder has the captions; the reference reads the first, which is made of the second."""

LATENTS = ("latents.pt", "latents.npy")
"""In the folder "latents" beside the captions; they hold the same numbers."""

NEEDED = ("id", "caption")
"""Columns that are read; the official file also has image_id, height, width and names."""

CHANNELS = 4
PIXELS_PER_LATENT = 8
"""Of Stable Diffusion XL's autoencoder."""

ADVICE = (
    "put the folder captions of coco2014 from text_to_image in MLPerf's repository inference "
    "there, or set the data set's path to its captions_source.tsv"
)
ADVICE_LATENTS = (
    "put latents.pt or latents.npy from text_to_image/tools in MLPerf's repository inference "
    "there, set the data set's latents to its path, or latents = false where the engine draws its "
    "own"
)


class CocoCaptionsDataset:
    """Captions in the order of the table, each with the latents that all images start from.

    Source: Coco in text_to_image/coco.py of https://github.com/mlcommons/inference. Everything is
    read and checked when the data set is built; the official files take less than a second.
    """

    libraries = ()

    def __init__(
        self,
        *,
        path: str,
        latents: str | bool | None = None,
        size: int | Sequence[int] = 1024,
        count: int | None = None,
        checksum: str | None = None,
    ) -> None:
        """Read captions and latents.

        Args:
            path: Folder with captions/captions.tsv or captions/captions_source.tsv, or the table
                itself: columns "id" and "caption", and any others, separated by tabs.
            latents: A file made by torch.save or numpy.save; None takes the official one from the
                folder "latents" beside the captions; false or "none" leaves latents to the engine.
            size: Pixels of an image in height and width, or [height, width], which say the shape
                of the latents: (1, 4, height / 8, width / 8).
            count: Use the first `count` captions only; None uses all.
            checksum: What the table's must be: "md5:..." or "sha256:..."; None checks nothing.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: The table or the latents are not here.
            EnvironmentFault: latents.pt needs torch, which is not installed.
            RunError: The table has another checksum, or a file is not as expected.
        """
        expected = parse_checksum("data set coco_captions", checksum)
        shape = _parse(latents=latents, size=size, count=count)
        file, latents_file = _find(Path(path), latents)
        check_file(file, expected)
        samples = _read_table(file)
        if count is not None and count > len(samples):
            raise SuiteError(
                f"{file}: count = {count!r}, but the table has {len(samples)} captions; lower "
                "count, or leave it out to use all"
            )
        self._samples = samples[:count]
        self._latents = None if latents_file is None else read_latents(latents_file, shape)

    @classmethod
    def look(
        cls,
        *,
        path: str,
        latents: str | bool | None = None,
        size: int | Sequence[int] = 1024,
        count: int | None = None,
        checksum: str | None = None,
    ) -> None:
        """Look for the table and the latents without reading them.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: One of them is not here; says what to put where.
            EnvironmentFault: Latents are a file of torch, and that is not installed.
        """
        parse_checksum("data set coco_captions", checksum)
        _parse(latents=latents, size=size, count=count)
        _, file = _find(Path(path), latents)
        if file is not None:
            require_reader(file)

    def __len__(self) -> int:
        """Return the number of captions."""
        return len(self._samples)

    def input(self, index: int) -> dict[str, Any]:
        """Return one "caption", and the "latents" of every sample.

        Latents have shape (1, 4, height / 8, width / 8), float32, and are one array for all
        samples that cannot be written to; None where the engine draws its own.

        Raises:
            IndexError: There is no such sample.
        """
        return {"caption": self._sample(index)[1], "latents": self._latents}

    def reference(self, index: int) -> dict[str, Any]:
        """Return one "caption" and its "id" in COCO.

        Raises:
            IndexError: There is no such sample.
        """
        identity, caption = self._sample(index)
        return {"caption": caption, "id": identity}

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over ids and captions in order, and the latents' shape and numbers.

        Other columns, and whether latents are a file of torch or of NumPy, do not count.
        """
        total = hashlib.sha256(b"coco_captions")
        for identity, caption in self._samples:
            for part in framed((str(identity).encode(), encode(caption))):
                total.update(part)
        if self._latents is not None:
            total.update(repr(self._latents.shape).encode())
            total.update(self._latents.astype("<f4").tobytes())
        return total.hexdigest()

    def _sample(self, index: int) -> tuple[int, str]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index!r} of {len(self)}")
        return self._samples[index]


def _read_table(file: Path) -> list[tuple[int, str]]:
    """Return id and caption of each row; blank lines do not count."""
    samples: list[tuple[int, str]] = []
    first_lines: dict[int, int] = {}
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            rows = csv.reader(opened, delimiter="\t", strict=True)
            header = next(rows, [])
            places = _columns(file, header)
            for cells in rows:
                if not cells:
                    continue
                where = f"{file}:{rows.line_num}"
                identity, caption = _parse_row(cells, header, places, where)
                first = first_lines.setdefault(identity, rows.line_num)
                if first != rows.line_num:
                    raise _wrong(where, f"id {identity} is also that of line {first}")
                samples.append((identity, caption))
    except UnicodeDecodeError as error:
        raise _wrong(str(file), f"is not UTF-8 at byte {error.start}") from error
    except csv.Error as error:
        raise _wrong(f"{file}:{rows.line_num}", f"{error}") from error
    if not samples:
        raise _wrong(str(file), "has no captions")
    return samples


def _columns(file: Path, header: Sequence[str]) -> tuple[int, int]:
    """Return where a row has its id and its caption."""
    for name in NEEDED:
        if header.count(name) != 1:
            shown = ", ".join(header)[:80] or "nothing"
            problem = "lacks" if name not in header else "repeats"
            raise _wrong(
                f"{file}:1",
                f"the header {problem} the column {name!r}; it has {shown}",
            )
    return header.index("id"), header.index("caption")


def _parse_row(
    cells: Sequence[str], header: Sequence[str], places: tuple[int, int], where: str
) -> tuple[int, str]:
    if len(cells) != len(header):
        raise _wrong(where, f"has {len(cells)} cells, not the {len(header)} of the header")
    identity, caption = (cells[place] for place in places)
    if not (identity.isascii() and identity.isdecimal()):
        raise _wrong(where, f"id {identity[:40]!r} is no number")
    if not caption.strip():
        raise _wrong(where, "the caption is empty")
    return int(identity), caption


def _find(path: Path, option: str | bool | None) -> tuple[Path, Path | None]:
    """Return the table and the file of latents; all that is missing is one error."""
    missing, latents = "", None
    table = path / OFFICIAL[-1]  # latents are looked for beside it, also where it is not here
    try:
        table = _find_table(path)
    except UnavailableError as error:
        missing = f"{error}; also "
    try:
        latents = _find_latents(table, option)
    except UnavailableError as error:
        raise UnavailableError(f"{missing}{error}") from None
    if missing:
        raise UnavailableError(missing.removesuffix("; also "))
    return table, latents


def _find_table(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise UnavailableError(f"{path}: this folder or table of captions is not here; {ADVICE}")
    for name in OFFICIAL:
        if (path / name).is_file():
            return path / name
    raise UnavailableError(f"{path}: has neither {' nor '.join(OFFICIAL[:2])}; {ADVICE}")


def _find_latents(table: Path, option: str | bool | None) -> Path | None:
    """Return the file of latents, or None where the engine draws its own."""
    if option is False or option == "none":
        return None
    if isinstance(option, str):
        if not Path(option).is_file():
            raise UnavailableError(f"{option}: these latents are not here; {ADVICE_LATENTS}")
        return Path(option)
    folder = table.absolute().parent
    if folder.name == "captions":
        folder = folder.parent
    for name in LATENTS:
        if (folder / "latents" / name).is_file():
            return folder / "latents" / name
    raise UnavailableError(
        f"{folder / 'latents'}: has neither {' nor '.join(LATENTS)}; {ADVICE_LATENTS}"
    )


def _parse(*, latents: object, size: object, count: object) -> tuple[int, ...]:
    """Check options and return the shape of the latents."""
    check_count("coco_captions", count)
    if latents is not None and latents is not False and not (isinstance(latents, str) and latents):
        raise SuiteError(
            f"data set coco_captions: latents = {latents!r} is neither the path of a file nor false"
        )
    match [size, size] if isinstance(size, int) else size:
        case [int(height), int(width)] if bool not in {type(height), type(width)}:
            whole = height % PIXELS_PER_LATENT == width % PIXELS_PER_LATENT == 0
            if whole and min(height, width) >= 1:
                return 1, CHANNELS, height // PIXELS_PER_LATENT, width // PIXELS_PER_LATENT
    raise SuiteError(
        f"data set coco_captions: size = {size!r} is neither a multiple of "
        f"{PIXELS_PER_LATENT} pixels nor [height, width] of such"
    )


def _wrong(where: str, what: str) -> RunError:
    return RunError(
        "dataset",
        f"{where}: {what}; correct the table, or get it from its source again",
    )
