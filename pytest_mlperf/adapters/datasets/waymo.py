"""Read MLPerf's copy of the Waymo Open Dataset in KITTI's format, for PointPainting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pytest_mlperf import RunError
from pytest_mlperf.adapters.datasets.files import ChecksumOptions, FileDataset, wrong
from pytest_mlperf.adapters.datasets.files.images import decode
from pytest_mlperf.adapters.datasets.files.pickle_files import read_records
from pytest_mlperf.adapters.lazy import NDArray, np

FRAMES = "waymo_infos_val.pkl"
CAMERAS = range(5)
STORED_POINT_VALUES, MODEL_POINT_VALUES = 6, 5
"""Number of values of a point in its file, and of those that the model takes."""

RANGE = (-74.88, -74.88, -2.0), (74.88, 74.88, 4.0)
"""Range of x, y, z [m]; points outside are dropped."""

UNLABELLED = "DontCare"
MATRICES = ("R0_rect", *(f"{name}{n}" for name in ("P", "Tr_velo_to_cam_") for n in CAMERAS))
ADVICE = (
    "get the data from MLCommons, which gives it to members that have agreed to Waymo's licence "
    "(README.md in automotive/3d-object-detection of the repository mlcommons/inference)"
)


@dataclass(frozen=True, kw_only=True)
class WaymoOptions(ChecksumOptions, dataset="waymo", noun="frames"):
    """Options of the data set waymo.

    Attributes:
        path: Folder kitti_format with waymo_infos_val.pkl, whose code is not executed, and
            training/.
        checksum: "md5:" or "sha256:" and the hex digits of waymo_infos_val.pkl.
    """

    def find(self) -> Path:
        """Return the path of the file that lists the frames; raise an error if it is missing."""
        folder = Path(self.path)
        if not (folder / FRAMES).is_file() and (folder / "kitti_format").is_dir():
            folder /= "kitti_format"
        missing = [name for name in (FRAMES, "training") if not (folder / name).exists()]
        lacks = f"{folder}: {' and '.join(missing)} not found; {ADVICE}"
        self.require((not missing, f"{lacks}, or set path to the folder kitti_format"))
        return folder / FRAMES


class DrivenFrame(NamedTuple):
    """Hold one frame of the data set's frame list.

    Attributes:
        name: File name of the camera images, without suffix.
        points: File of the lidar points.
        calibration: Camera matrices by name, float32.
        truth: Annotations, which `reference` returns.
    """

    name: str
    points: Path
    calibration: Mapping[str, NDArray[np.float32]]
    truth: Mapping[str, Any]


class WaymoDataset(FileDataset[DrivenFrame]):
    """Frames in the order of waymo_infos_val.pkl: points, five images, and annotated boxes.

    The whole set has 39,987 frames. Reading that pickle takes minutes, because its code is not
    executed.
    Source: automotive/3d-object-detection/waymo.py of https://github.com/mlcommons/inference.
    """

    options = WaymoOptions
    kind = b"waymo"

    def _read(self, options: WaymoOptions, file: Path) -> None:
        self._folder = file.parent
        listed = read_records(file)[: options.count]
        frames = [_frame(self._folder, number, record) for number, record in enumerate(listed)]
        self._keep(frames, options.count, file)

    def input(self, index: int) -> dict[str, Any]:
        """Return arrays by name.

        `points`: lidar points within range, float32, shape (points, 5): x, y, z, intensity,
        elongation. `images`: one per camera, RGB, uint8, shape (height, width, 3). `calibration`:
        matrices by name, float32. `image_id`: number of the frame, with which each row of an answer
        ends.
        """
        frame, folder = self._sample(index), self._folder / "training"
        return {
            "points": _points(frame.points),
            "images": [decode(folder / f"image_{n}" / f"{frame.name}.jpg") for n in CAMERAS],
            "calibration": frame.calibration,
            "image_id": frame.truth["image_id"],
        }

    def reference(self, index: int) -> Mapping[str, Any]:
        """Return "image_id", and "names", "difficulty" and "boxes" of the annotated objects.

        A box is x, y, z, three dimensions and the rotation in the camera's coordinates, float32.
        """
        return self._sample(index).truth

    def _content(self, index: int) -> list[bytes]:
        frame = self._samples[index]
        truth, matrices = frame.truth, frame.calibration
        return [
            f"{frame.name} {frame.points.stat().st_size} {truth['names']}".encode(),
            f"{truth['difficulty']}".encode(),
            truth["boxes"].astype("<f4").tobytes(),
            *(matrices[name].astype("<f4").tobytes() for name in MATRICES),
        ]


def _frame(folder: Path, number: int, record: Any) -> DrivenFrame:
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
        frame = DrivenFrame(name, points, matrices, truth)
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        reason = f"is not in MLPerf's format ({type(error).__name__}: {error})"
        raise _wrong(folder, number, reason) from error
    if not name.isdecimal():
        raise _wrong(folder, number, f"has image_idx = {name:.40}, not a number from 0")
    if not points.resolve().is_relative_to(folder.resolve()):
        raise _wrong(folder, number, "names a file outside of the data set's folder")
    return frame


def _wrong(folder: Path, number: int, defect: str) -> RunError:
    return wrong(f"{folder / FRAMES}: frame {number}", defect, ADVICE)


def _points(file: Path) -> NDArray[np.float32]:
    try:
        raw = np.fromfile(file, "<f4")
    except OSError as error:
        raise wrong(file, f"cannot be read ({error.strerror})", ADVICE) from error
    if len(raw) % STORED_POINT_VALUES or file.stat().st_size != raw.nbytes:
        raise wrong(
            file, f"cannot be split into points of {STORED_POINT_VALUES} float32 values", ADVICE
        )
    points = raw.reshape(-1, STORED_POINT_VALUES)[:, :MODEL_POINT_VALUES]
    low, high = (np.array(side, np.float32) for side in RANGE)
    inside = ((points[:, :3] > low) & (points[:, :3] < high)).all(axis=1)
    return np.ascontiguousarray(points[inside])
