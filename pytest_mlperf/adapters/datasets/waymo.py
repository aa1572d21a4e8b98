"""Read Waymo's open data set in the form of KITTI, as MLPerf distributes it for PointPainting."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf import RunError
from pytest_mlperf.adapters.datasets.files import FileDataset, FileOptions, check_file, wrong
from pytest_mlperf.adapters.datasets.files.images import decode
from pytest_mlperf.adapters.datasets.files.pickle_files import read_records
from pytest_mlperf.adapters.datasets.prompts import framed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FRAMES = "waymo_infos_val.pkl"
CAMERAS = range(5)
STORED_POINT_VALUES, MODEL_POINT_VALUES = 6, 5
"""Numbers of a point in its file, and those that the model takes."""

RANGE = (-74.88, -74.88, -2.0), (74.88, 74.88, 4.0)
"""Points beyond are left out: x, y, z in metres."""

UNLABELLED = "DontCare"
MATRICES = ("R0_rect", *(f"{name}{n}" for name in ("P", "Tr_velo_to_cam_") for n in CAMERAS))
ADVICE = (
    "MLCommons gives it to members that agreed to Waymo's licence, as README.md in "
    "automotive/3d-object-detection of its inference repository says"
)


@dataclass(frozen=True, kw_only=True)
class WaymoOptions(FileOptions):
    """Where the frames are.

    Attributes:
        path: Folder kitti_format with waymo_infos_val.pkl, which is never executed, and training/.
        checksum: Of waymo_infos_val.pkl: "md5:" or "sha256:" and the hex digits.
    """

    path: str
    checksum: str | None = None

    def __post_init__(self) -> None:
        self.check("waymo", count="frames")

    def find(self) -> Path:
        folder = Path(self.path)
        if not (folder / FRAMES).is_file() and (folder / "kitti_format").is_dir():
            folder /= "kitti_format"
        needed = [(folder / name).exists() for name in (FRAMES, "training")]
        self.require(
            (all(needed), f"{folder}: {FRAMES} and training/ are not both here; {ADVICE}"),
        )
        return folder


@dataclass(frozen=True, slots=True)
class DrivenFrame:
    """What the list says of one moment.

    Attributes:
        name: How its pictures are called, without their ending.
        image: The same as a number.
        points: File of the points.
        calibration: Matrices by name, float32.
        truth: As `reference` gives it.
    """

    name: str
    image: int
    points: Path
    calibration: Mapping[str, NDArray[np.float32]]
    truth: Mapping[str, Any]


class WaymoDataset(FileDataset[DrivenFrame]):
    """Frames by index in the order of the list: points, five pictures, and annotated boxes.

    Source: automotive/3d-object-detection/waymo.py of https://github.com/mlcommons/inference. Of
    the whole set 39,987 frames; the list is read in minutes, since nothing in it is executed.
    """

    options = WaymoOptions
    unit = "frame"

    def _read(self, asked: WaymoOptions, folder: Path) -> None:
        self._folder = folder
        file = folder / FRAMES
        check_file(file, asked.checksum)
        listed = read_records(file)
        if not listed:
            raise wrong(file, "lists no frames", ADVICE)
        frames = [
            _frame(folder, place, record) for place, record in enumerate(listed[: asked.count])
        ]
        self._keep(frames, asked.count, file, f"the list has {len(listed)} frames")

    def input(self, index: int) -> dict[str, Any]:
        """Return arrays by name.

        `points`: those in range, float32, (points, 5): x, y, z, intensity, elongation. `images`:
        one for each camera, RGB, uint8, (height, width, 3). `calibration`: its matrices by name,
        float32. `image_id`: the number that each row of an answer ends with.
        """
        frame, folder = self._sample(index), self._folder / "training"
        return {
            "points": _points(frame.points),
            "images": [decode(folder / f"image_{n}" / f"{frame.name}.jpg") for n in CAMERAS],
            "calibration": frame.calibration,
            "image_id": frame.image,
        }

    def reference(self, index: int) -> Mapping[str, Any]:
        """Return "image_id", and of each annotated box "names", "difficulty" and "boxes".

        Boxes are x, y, z, three dimensions and the rotation, in the camera's frame, float32.
        """
        return self._sample(index).truth

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over images' numbers, matrices, annotations, and sizes of points' files."""
        total = hashlib.sha256(b"waymo")
        for frame in self._samples:
            truth, matrices = frame.truth, frame.calibration
            parts = [
                f"{frame.name} {frame.points.stat().st_size} {truth['names']}".encode(),
                f"{truth['difficulty']}".encode(),
                truth["boxes"].astype("<f4").tobytes(),
                *(matrices[name].astype("<f4").tobytes() for name in MATRICES),
            ]
            for part in framed(parts):
                total.update(part)
        return total.hexdigest()


def _frame(folder: Path, place: int, record: Any) -> DrivenFrame:
    import numpy as np

    try:
        noted, annotated = record["calib"], record["annos"]
        name = str(record["image"]["image_idx"])
        points = folder / record["point_cloud"]["velodyne_path"]
        matrices = {each: np.asarray(noted[each], np.float32) for each in MATRICES}
        names = [str(each) for each in annotated["name"]]
        kept = [row for row, each in enumerate(names) if each != UNLABELLED]
        boxes = np.column_stack(
            [np.asarray(annotated[each]) for each in ("location", "dimensions", "rotation_y")]
        ).astype(np.float32)
        difficulty = [int(each) for each in annotated["difficulty"]]
        truth = {
            "image_id": int(name),
            "names": [names[row] for row in kept],
            "difficulty": [difficulty[row] for row in kept],
            "boxes": boxes.reshape(len(names), 7)[kept],
        }
        frame = DrivenFrame(name, int(name), points, matrices, truth)
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        reason = f"is not as MLPerf's ({type(error).__name__}: {error})"
        raise _wrong(folder, place, reason) from error
    if not name.isdecimal() or not points.resolve().is_relative_to(folder.resolve()):
        raise _wrong(folder, place, "names a file outside of the data set's folder")
    return frame


def _wrong(folder: Path, place: int, defect: str) -> RunError:
    return wrong(f"{folder / FRAMES}: frame {place}", defect, ADVICE)


def _points(file: Path) -> NDArray[np.float32]:
    import numpy as np

    try:
        raw = np.fromfile(file, "<f4")
    except OSError as error:
        raise wrong(file, f"cannot be read ({error.strerror})", ADVICE) from error
    if len(raw) % STORED_POINT_VALUES or file.stat().st_size != raw.nbytes:
        raise wrong(file, f"has no whole points of {STORED_POINT_VALUES} float32", ADVICE)
    points = raw.reshape(-1, STORED_POINT_VALUES)[:, :MODEL_POINT_VALUES]
    low, high = (np.array(side, np.float32) for side in RANGE)
    inside = ((points[:, :3] > low) & (points[:, :3] < high)).all(axis=1)
    return np.ascontiguousarray(points[inside])
