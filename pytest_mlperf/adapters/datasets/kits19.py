"""Read KiTS19 as preprocessed by MLPerf's 3D-UNet reference: CT volumes and their labels."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pytest_mlperf import RunError, UnavailableError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.files.arrays import StoredArray, damaged, find_npy, find_npz
from pytest_mlperf.adapters.lazy import NDArray, np

OFFICIAL_MD5 = """
00000 470ec60377be417a9c271ffd81c1d610 00003 a5536433cf1c01aaa8c4293ef59a826c
00005 dbb4141573d72278c1724debe16311f5 00006 4a81aa95c7a7613138d9c148eea05a66
00012 a4f576fd327ba35242802b01f204dede 00024 f0c24290a38491c3a3901e389df345bc
00034 a40e1ef70291072b4790f2d3056972cc 00041 4ddaf586d0a7ea7f55491f9ec776ad24
00044 b7b2e115ed7fcd3e0e757ff8ac164733 00049 0b7d71d0c11458a602d71490449943d3
00052 7fd78f6dd694fe90ff6b5332c6c30f19 00056 1ff976858ecd43a9045b2c571ac18b42
00061 f631a2edb275f4fa2bc662c210dc29e2 00065 c7d63dc01cf8ca5c08075c0dee7fd9ae
00066 d3741a5f717ca978f3bb49fabd2d6651 00070 347b40ea5c3e30a8e313f6fad5504acd
00076 d572f849e8de3e352009f7156f0988ce 00078 de564386f95f97c9c276e11883acb018
00080 23cd0e88a3c1f7995082137bb7d5ab7b 00084 2a61a63abff567c4b107efeec24528ad
00086 69453d214225bcc67417c1726b1c6f31 00087 3ef7fc6c59b3a629fb4feddca92825f0
00092 4da4423b41cc606f42ad40fa769229af 00111 9f43e5824fd5459bfa7d523197346003
00112 18b9a976fd0683990a997241f1f6c588 00125 10c8971914f9d7beb66ff2d5e87f3bf4
00128 f1c1d420474ad5254ffdd6d8fbaffaa9 00138 8661d26af4271de29fb8593d1da3f195
00157 55a47901624695e3aacd9b0fb8467555 00160 0b1b2d50203070898af64ac6457c7568
00161 0e4b57e587e36042d5473de11d1792c2 00162 89f53aac7e1a421505f9b6cacdc5f09e
00169 f6c0594e20016e2b5086eae22963d051 00171 00a2700e3ff23896d7fd1ca5a30ddf6a
00176 430f5f2da6247f52b68346d549ed672e 00185 2ae858449b63e2fe4466c29087540e9c
00187 15022874121b70aa7f5f18d1a197816b 00189 966297c3adc7766655e050220b840dee
00198 cbfbd56f5c1a2570cc9d73c9fad8222a 00203 f82f9adab8d3ea22391a2e9af5572288
00206 0e59b9a2ef5bd4549938a97d136b06a8 00207 4c437995fb990736385e0dc2241255aa
00400 2ae858449b63e2fe4466c29087540e9c
"""
"""MD5 of the 43 pickles of MLPerf's inference set; case_00400 is a copy of case_00185.

Other versions of NumPy or SciPy can write other bytes.
Source: 3d-unet-kits19/meta/checksum_inference.json in mlcommons/inference on GitHub.
"""


def _read_checksums(checksums: str) -> dict[str, str]:
    if checksums == "official":
        words = OFFICIAL_MD5.split()
        cases = zip(words[::2], words[1::2], strict=True)
        return {f"case_{number}.pkl": md5 for number, md5 in cases}
    path = Path(checksums)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(content, dict) or not all(
        isinstance(md5, str) and re.fullmatch("(?i)[0-9a-f]{32}", md5) for md5 in content.values()
    ):
        raise damaged(path, "it is not a JSON object of file names and MD5 sums")
    return {name: md5.lower() for name, md5 in content.items()}


LIST = "preprocessed_files.pkl"
"""Ordered list of the cases, written by the reference's preprocess.py."""

AGAIN = "write the file again with preprocess.py of MLPerf's 3d-unet-kits19 reference"

ENDINGS = (".pkl", ".npz", ".image.npy")
"""Suffixes of a case's file, in search order; .label.npy belongs to .image.npy."""

_CASE_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class Kits19Options(files.FileOptions, dataset="kits19", noun="cases"):
    """Options of the data set kits19.

    Attributes:
        path: Folder of the cases.
        checksums: "official" compares each pickle with MLPerf's MD5, for which about 7 GB are read
            once. Or a file like MLPerf's checksum_inference.json, {"case_00000.pkl": MD5, ...}.
            None skips the check.
    """

    path: str
    checksums: str | None = None

    def find(self) -> Path:
        folder, checksums = Path(self.path), self.checksums
        advice = (
            "set the data set's path to what preprocess.py of MLPerf's 3d-unet-kits19 reference "
            "wrote"
        )
        if not folder.is_dir():
            raise UnavailableError(f"{folder}: this folder of volumes does not exist; {advice}")
        self.require(
            (
                (folder / LIST).is_file() or any(_case_names(folder)),
                f"{folder}: neither {LIST} nor a file case_*.pkl, .npz or .image.npy is there; "
                f"{advice}",
            ),
            (
                checksums in (None, "official") or Path(str(checksums)).is_file(),
                f"{checksums}: this file of checksums does not exist; set checksums to a copy of "
                'checksum_inference.json of MLPerf\'s 3d-unet-kits19 reference, or to "official"',
            ),
        )
        return folder


class _Case(NamedTuple):
    """Locate in its files one patient's volume, shape (1, depth, height, width), and labels."""

    name: str
    image: StoredArray
    label: StoredArray


class Kits19Dataset(files.FileDataset[_Case]):
    """Volumes in the order of `preprocessed_files.pkl`; without that file, sorted by case name.

    The folder is written by MLPerf's vision/medical_imaging/3d-unet-kits19/preprocess.py: one
    pickle per case with image and label, whose code is not executed. A case may instead be CASE.npz
    with the arrays `image` and `label`, or CASE.image.npy and CASE.label.npy.

    When the data set is built, the structure, shapes, types and length of each file are checked.
    Volumes, on average 165 MB a case, are read on each access, and the classes of labels are
    checked then.
    """

    options = Kits19Options

    def _read(self, options: Kits19Options, folder: Path) -> None:
        names, shapes = _list_cases(folder)
        files.require_enough(folder, options.count, len(names), options.noun)
        names = names[: options.count]
        paths = _find_files(folder, names)
        self._samples = [_open_case(name, file) for name, file in zip(names, paths, strict=True)]
        for case in self._samples:
            listed = shapes.get(case.name, case.image.shape)
            if listed != case.image.shape:
                raise files.wrong(
                    case.image.file,
                    f"its shape is {case.image.shape}, but {LIST} lists {listed}",
                    AGAIN,
                )
        if options.checksums is not None:
            self._check_files(options.checksums)

    def _check_files(self, checksums: str) -> None:
        md5_by_name = _read_checksums(checksums)
        for case in self._samples:
            if case.image.file.name not in md5_by_name:
                raise files.wrong(
                    case.image.file,
                    f"{checksums} has no checksum of a file {case.image.file.name}",
                    "use the pickles of MLPerf's inference set, or leave checksums out",
                )
        for case in self._samples:
            files.check_file(case.image.file, f"md5:{md5_by_name[case.image.file.name]}")

    def input(self, index: int) -> NDArray[np.float32]:
        """Read the normalised intensities of one case, shape (1, depth, height, width)."""
        return np.ascontiguousarray(self._sample(index).image.load())

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return "parts": the mean number of 128^3 windows per volume, which overlap by half."""
        shapes = (self._sample(index).image.shape[1:] for index in indices)
        along = ([max(math.ceil(side / 64) - 1, 1) for side in shape] for shape in shapes)
        return {"parts": fmean(map(math.prod, along))}

    def reference(self, index: int) -> dict[str, Any]:
        """Read the case's name as "case", and "label": uint8, 0 background, 1 kidney, 2 tumor."""
        case = self._sample(index)
        label = np.ascontiguousarray(case.label.load()[0])
        if (highest := int(label.max())) > 2:
            raise files.wrong(
                case.image.file,
                f"its label holds the class {highest}",
                "valid are 0 background, 1 kidney and 2 tumor, so preprocess the case again",
            )
        return {"case": case.name, "label": label}

    @cached_property
    def digest(self) -> str:
        total = hashlib.sha256(b"kits19")
        for case in self._samples:
            total.update(f"{case.name} {case.image.shape}\n".encode())
            for array in (case.image, case.label):
                total.update(np.ascontiguousarray(array.load()).reshape(-1).data)
        return total.hexdigest()


def _case_names(folder: Path) -> Iterator[str]:
    for entry in folder.glob("case_*"):
        for ending in ENDINGS:
            if entry.name.endswith(ending):
                yield entry.name.removesuffix(ending)


def _list_cases(folder: Path) -> tuple[Sequence[str], Mapping[str, tuple[int, ...]]]:
    if not (folder / LIST).is_file():
        return sorted(set(_case_names(folder))), {}
    from pytest_mlperf.adapters.datasets.files.pickled import ARRAY_NAMES
    from pytest_mlperf.adapters.datasets.files.pickles import (
        PickleError,
        UnsupportedPickleError,
        parse,
    )

    path = folder / LIST
    try:
        with path.open("rb") as file:
            tree = parse(file, ARRAY_NAMES, max_bytes=2**24)
        names, cases = tree["file_list"], tree["cases"]
        shapes = {name: tuple(cases[name]["image_shape"]) for name in names}
    except UnsupportedPickleError as error:
        raise RunError("dataset", f"{path}: {error}") from error
    except PickleError as error:
        raise files.wrong(path, str(error), AGAIN) from error
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        defect = "it must be a dict with 'file_list' and 'cases', with 'image_shape' for each case"
        raise files.wrong(path, f"{defect} ({type(error).__name__}: {error})", AGAIN) from error
    for name in names:
        if not isinstance(name, str) or not _CASE_NAME.fullmatch(name) or names.count(name) > 1:
            defect = "is not a valid name of a case"
            if names.count(name) > 1:
                defect = "is listed more than once"
            raise files.wrong(path, f"{name!r} {defect}", AGAIN)
    if not names:
        raise damaged(path, "it lists no case")
    return names, shapes


def _find_files(folder: Path, names: Sequence[str]) -> list[Path]:
    paths = {name: files.first_file(folder / f"{name}{end}" for end in ENDINGS) for name in names}
    missing = [name for name, file in paths.items() if file is None]
    if missing:
        raise UnavailableError(
            f"{folder}: {len(missing)} of the {len(names)} cases in {LIST} are missing, such as "
            f"{missing[0]} (as {', '.join(ENDINGS)} file); add the missing cases or, if you have "
            "the first N cases of that list, set count = N"
        )
    return [file for file in paths.values() if file is not None]


def _open_case(name: str, file: Path) -> _Case:
    image, label = _arrays(name, file)
    for array, dtype in ((image, "<f4"), (label, "|u1")):
        if len(array.shape) != 4 or array.shape[0] != 1 or 0 in array.shape:
            defect = f"{array.name} has the shape {array.shape}, not (1, depth, height, width)"
            raise files.wrong(file, defect, AGAIN)
        if array.dtype != dtype:
            defect = f"{array.name} has values of type {array.dtype}, not {dtype}"
            raise files.wrong(file, defect, AGAIN)
    if image.shape != label.shape:
        defect = f"the image has shape {image.shape}, but the label {label.shape}"
        raise files.wrong(file, defect, AGAIN)
    return _Case(name, image, label)


def _arrays(name: str, file: Path) -> Sequence[StoredArray]:
    if file.suffix == ".npy":
        other = file.with_name(f"{name}.label.npy")
        if not other.is_file():
            raise UnavailableError(f"{other}: the label file of {file.name} is missing; add it")
        return find_npy(file), find_npy(other)
    if file.suffix == ".npz":
        arrays = find_npz(file)
        if not {"image", "label"} <= set(arrays):
            held = ", ".join(sorted(arrays)) or "none"
            defect = f"it needs the arrays image and label, but has {held}"
            raise files.wrong(file, defect, AGAIN)
        return arrays["image"], arrays["label"]
    from pytest_mlperf.adapters.datasets.files.pickled import find_arrays

    pickled = find_arrays(file)
    if len(pickled) != 2:
        raise files.wrong(file, f"it holds {len(pickled)} arrays, not image and label", AGAIN)
    return pickled
