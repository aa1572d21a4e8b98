"""Read KiTS19 as MLPerf's 3D-UNet reference preprocesses it: a CT volume and its labels by case."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.datasets.array_files import StoredArray, damaged, find_npy, find_npz
from pytest_mlperf.datasets.checksum import check_file
from pytest_mlperf.datasets.kits19_checksums import checksum_of
from pytest_mlperf.datasets.prompts import check_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LIST = "preprocessed_files.pkl"
"""Lists the cases in their order; the reference's preprocess.py writes it."""

ENDINGS = (".pkl", ".npz", ".image.npy")
"""Of a case's file, in the order they are looked for; beside .image.npy lies .label.npy."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """One patient.

    Attributes:
        name: E.g. "case_00000".
        file: The file, the first one where there are two.
        image: Shape (1, depth, height, width), float32.
        label: The same shape, uint8.
    """

    name: str
    file: Path
    image: StoredArray
    label: StoredArray


class Kits19Dataset:
    """Volumes by index in the order of `preprocessed_files.pkl`, else of the cases' names.

    A folder as vision/medical_imaging/3d-unet-kits19/preprocess.py of
    https://github.com/mlcommons/inference writes it: for each case a pickle of image and label. It
    is read without being run. In its place a case may have a file CASE.npz with the arrays `image`
    and `label`, or the two files CASE.image.npy and CASE.label.npy.

    When the data set is built, each file's structure, shapes, types and length are checked; volumes
    stay on disk, since they take 165 MB a case on average, and are read each time they are asked
    for. The classes in a label are checked when it is read.
    """

    libraries = ()

    def __init__(
        self, *, path: str, checksums: str | None = None, count: int | None = None
    ) -> None:
        """List the cases and check the structure of their files.

        Args:
            path: The folder.
            checksums: "official" compares each pickle with the MD5 that MLPerf publishes; or a file
                like MLPerf's checksum_inference.json, {"case_00000.pkl": MD5, ...}. All files are
                then read once, about 7 GB. None leaves it out.
            count: Use the first `count` cases only; None uses all.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: The folder or a case's file is not here.
            RunError: A file is damaged, is no volume with its label, or has another checksum.
        """
        folder = _look(path, checksums, count)
        names, shapes = _list_cases(folder)
        if count is not None and count > len(names):
            raise SuiteError(
                f"{folder}: count = {count!r}, but the folder has {len(names)} cases; lower count, "
                "or leave it out to use all"
            )
        names = names[:count]
        files = _find_files(folder, names)
        self._cases = [_open_case(name, file) for name, file in zip(names, files, strict=True)]
        for case in self._cases:
            listed = shapes.get(case.name, case.image.shape)
            if listed != case.image.shape:
                raise damaged(
                    case.file, f"its shape is {case.image.shape}, but {LIST} lists {listed}"
                )
        if checksums is not None:
            known = checksum_of(checksums, [case.file for case in self._cases])
            for case in self._cases:
                check_file(case.file, ("md5", known[case.file.name]))

    @classmethod
    def look(cls, *, path: str, checksums: str | None = None, count: int | None = None) -> None:
        """Look for the folder and its files without reading them.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: It is not here; one sentence says what to do.
        """
        _look(path, checksums, count)

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self._cases)

    def input(self, index: int) -> NDArray[np.float32]:
        """Read the volume of one case, of normalised intensities.

        Returns:
            Shape (1, depth, height, width), with lengths as they are in the file.

        Raises:
            IndexError: There is no such case.
            RunError: The file was changed or cut since.
        """
        import numpy as np

        return np.ascontiguousarray(self._case(index).image.load())

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return the mean number of windows over these cases, "parts", as the reference moves them.

        Windows of 128^3 that overlap by half, over sides that are rounded up to whole halves.
        """
        return {"parts": fmean(_windows(self._case(index).image.shape[1:]) for index in indices)}

    def reference(self, index: int) -> dict[str, Any]:
        """Read the label of one case.

        Returns:
            "case", its name, and "label": 0 background, 1 kidney, 2 tumor, shape (depth, height,
            width), uint8.

        Raises:
            IndexError: There is no such case.
            RunError: The label holds another class, or the file was changed or cut since.
        """
        import numpy as np

        case = self._case(index)
        label = np.ascontiguousarray(case.label.load()[0])
        if (highest := int(label.max())) > 2:
            raise RunError(
                "dataset",
                f"{case.file}: its label holds the class {highest}; valid are 0 background, "
                "1 kidney and 2 tumor, so preprocess the case again",
            )
        return {"case": case.name, "label": label}

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over each case's name, shape, volume and label; all files are read once.

        The same volumes in files of another kind have the same digest.
        """
        total = hashlib.sha256(b"kits19")
        for case in self._cases:
            total.update(f"{case.name} {case.image.shape}\n".encode())
            for array in (case.image, case.label):
                for piece in array.pieces():
                    total.update(piece)
        return total.hexdigest()

    def _case(self, index: int) -> _Case:
        if not 0 <= index < len(self._cases):
            raise IndexError(f"case {index!r} of {len(self._cases)}")
        return self._cases[index]


def _windows(sides: Sequence[int]) -> int:
    return math.prod(max(math.ceil(side / 64) - 1, 1) for side in sides)


def _look(path: str, checksums: str | None, count: int | None) -> Path:
    check_count("kits19", count)
    folder = Path(path)
    if not folder.is_dir():
        raise UnavailableError(
            f"{folder}: this folder of volumes does not exist; set the data set's path to what "
            "preprocess.py of MLPerf's 3d-unet-kits19 reference wrote"
        )
    missing = []
    if not (folder / LIST).is_file() and not any(_found(folder)):
        missing.append(
            f"{folder}: neither {LIST} nor a file case_*.pkl, .npz or .image.npy is there; set the "
            "data set's path to what preprocess.py of MLPerf's 3d-unet-kits19 reference wrote"
        )
    if checksums not in (None, "official") and not Path(str(checksums)).is_file():
        missing.append(
            f"{checksums}: this file of checksums does not exist; set checksums to a copy of "
            'checksum_inference.json of MLPerf\'s 3d-unet-kits19 reference, or to "official"'
        )
    if missing:
        raise UnavailableError("; also ".join(missing))
    return folder


def _found(folder: Path) -> Iterator[str]:
    """Yield the names of the cases that have files."""
    for entry in folder.glob("case_*"):
        for ending in ENDINGS:
            if entry.name.endswith(ending):
                yield entry.name.removesuffix(ending)


def _list_cases(folder: Path) -> tuple[Sequence[str], Mapping[str, tuple[int, ...]]]:
    """Return the names of the cases in order, and the shapes that are listed for them."""
    if not (folder / LIST).is_file():
        return sorted(set(_found(folder))), {}
    from pytest_mlperf.datasets.pickled_arrays import NAMES
    from pytest_mlperf.datasets.pickles import PickleError, parse

    path = folder / LIST
    try:
        with path.open("rb") as file:
            tree = parse(file, NAMES, max_bytes=2**24)
        names, cases = tree["file_list"], tree["cases"]
        shapes = {name: tuple(cases[name]["image_shape"]) for name in names}
    except PickleError as error:
        raise damaged(path, str(error)) from error
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise damaged(
            path, f"it is no list of cases: 'file_list' and 'cases' with shapes ({error})"
        ) from error
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or names.count(name) > 1:
            raise damaged(path, f"{name!r} is no name of a case, or is there twice")
    if not names:
        raise damaged(path, "it lists no case")
    return names, shapes


def _find_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the file of each case, the first that exists."""
    files = []
    for name in names:
        places = (folder / f"{name}{ending}" for ending in ENDINGS)
        files.append(next((place for place in places if place.is_file()), None))
    missing = [name for name, file in zip(names, files, strict=True) if file is None]
    if missing:
        raise UnavailableError(
            f"{folder}: {len(missing)} of {len(names)} cases are not here, the first is "
            f"{missing[0]!r} (looked for {missing[0]} with {', '.join(ENDINGS)}); complete the "
            "folder, or set count to the number of cases you have, if those come first"
        )
    return [file for file in files if file is not None]


def _open_case(name: str, file: Path) -> _Case:
    """Find image and label, and check what can be known without reading them."""
    image, label = _arrays(name, file)
    for array, dtype in ((image, "<f4"), (label, "|u1")):
        if len(array.shape) != 4 or array.shape[0] != 1 or 0 in array.shape:
            raise damaged(
                file, f"{array.what} has the shape {array.shape}, not (1, depth, height, width)"
            )
        if array.dtype != dtype:
            raise damaged(file, f"{array.what} has values of type {array.dtype}, not {dtype}")
    if image.shape != label.shape:
        raise damaged(file, f"image and label have the shapes {image.shape} and {label.shape}")
    return _Case(name=name, file=file, image=image, label=label)


def _arrays(name: str, file: Path) -> Sequence[StoredArray]:
    if file.suffix == ".npy":
        other = file.with_name(f"{name}.label.npy")
        if not other.is_file():
            raise UnavailableError(f"{other}: this label is not here, but its image is; add it")
        return find_npy(file), find_npy(other)
    if file.suffix == ".npz":
        found = find_npz(file)
        if not {"image", "label"} <= set(found):
            held = ", ".join(sorted(found)) or "none"
            raise damaged(file, f"it needs the arrays image and label, and has {held}")
        return found["image"], found["label"]
    from pytest_mlperf.datasets.pickled_arrays import find_arrays

    pickled = find_arrays(file)
    if len(pickled) != 2:
        raise damaged(file, f"it holds {len(pickled)} arrays, not image and label")
    return pickled
