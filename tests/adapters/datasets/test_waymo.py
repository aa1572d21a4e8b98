"""Waymo's frames in the form of KITTI: a pickle that is not run, points, pictures and boxes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pytest_mlperf.adapters.datasets.waymo import FRAMES, MATRICES, WaymoDataset
from pytest_mlperf.adapters.scorers.boxes3d import PointPaintingScorer
from pytest_mlperf.core.errors import RunError
from tests.adapters.datasets.hostile import Touch
from tests.adapters.datasets.refusals import not_refused

IMAGES = 1000000, 1000001

Change = Callable[[dict[str, Any]], Any]


def record(image: int) -> dict[str, Any]:
    """Return the entry of a frame in the distributed list."""
    rng = np.random.default_rng(image)
    annotated = {
        "name": np.array(["Car", "DontCare", "Pedestrian"]),
        "truncated": np.zeros(3),
        "occluded": np.array([0, 0, 0]),
        "alpha": np.full(3, -10.0),
        "bbox": rng.uniform(0, 900, (3, 4)),
        "dimensions": np.array([[4.0, 1.5, 1.8], [-1, -1, -1], [0.9, 1.7, 0.8]]),
        "location": np.array([[1.0, 1.7, 12.0], [0, 0, 0], [-3.0, 1.6, 8.0]]),
        "rotation_y": np.array([0.1, 0.0, -1.2]),
        "score": np.zeros(3),
        "index": np.array([0, -1, 1], np.int32),
        "difficulty": np.array([0, 0, 2], np.int32),
        "num_points_in_gt": np.array([40, 0, 7], np.int32),
    }
    return {
        "image": {
            "image_idx": image,
            "image_path": f"training/image_0/{image}.jpg",
            "image_shape": np.array([12, 16], np.int32),
        },
        "point_cloud": {
            "num_features": 6,
            "velodyne_path": f"training/velodyne_reduced/{image}.bin",
        },
        "calib": {name: rng.normal(size=(4, 4)) for name in MATRICES},
        "annos": annotated,
        "cam_sync_annos": annotated,
        "timestamp": np.int64(1550083467346370),
        "sweeps": [],
    }


POINTS = np.array(
    [
        [1, 2, 3, 0.5, 0.1, 9],
        [-74.87, 74.87, 3.99, 0.2, 0, 9],
        [80, 0, 0, 1, 1, 9],
        [0, 0, -2, 1, 1, 9],
    ],
    np.float32,
)
"""Two of them out of range: the first beyond, the second on its edge."""


def tiny(folder: Path) -> dict[str, Any]:
    training = folder / "kitti_format" / "training"
    (training / "velodyne_reduced").mkdir(parents=True)
    for camera in range(5):
        (training / f"image_{camera}").mkdir()
        for image in IMAGES:
            picture = Image.new("RGB", (16, 12), (camera * 40, image % 7, 9))
            picture.save(training / f"image_{camera}" / f"{image}.jpg", quality=100)
    for image in IMAGES:
        POINTS.tofile(training / "velodyne_reduced" / f"{image}.bin")
    write(folder, [record(image) for image in IMAGES])
    return {"path": str(folder)}


def write(folder: Path, tree: Any, protocol: int = 4) -> None:
    (folder / "kitti_format" / FRAMES).write_bytes(pickle.dumps(tree, protocol))


def test_a_frame_is_what_the_reference_reads(folder: Path) -> None:
    """Names may be objects, and a frame may be empty."""
    dataset = WaymoDataset(path=str(folder))

    sample = dataset.input(1)
    assert len(dataset) == 2
    assert sample["image_id"] == IMAGES[1]
    np.testing.assert_array_equal(sample["points"], POINTS[:2, :5])
    assert [picture.shape for picture in sample["images"]] == [(12, 16, 3)] * 5
    assert [int(picture[0, 0, 0]) for picture in sample["images"]] == pytest.approx(
        [0, 40, 80, 120, 160], abs=2
    )
    np.testing.assert_array_equal(
        sample["calibration"]["P2"], record(IMAGES[1])["calib"]["P2"].astype(np.float32)
    )
    frame = record(IMAGES[0])
    for name, column in frame["annos"].items():
        frame["annos"][name] = column[:0]
    other = record(IMAGES[1])
    other["annos"]["name"] = other["annos"]["name"].astype(object)
    write(folder, [frame, other])

    dataset = WaymoDataset(path=str(folder))
    assert dataset.reference(0)["names"] == []
    assert dataset.reference(0)["boxes"].shape == (0, 7)
    assert dataset.reference(1)["names"] == ["Car", "Pedestrian"]


def test_unlabelled_regions_are_left_out_of_the_truth(folder: Path) -> None:
    """The scorer takes the rest."""
    dataset = WaymoDataset(path=str(folder))
    references = [dataset.reference(index) for index in range(2)]

    first = references[0]
    assert (first["image_id"], first["names"]) == (IMAGES[0], ["Car", "Pedestrian"])
    assert first["difficulty"] == [0, 2]
    boxes = [[1, 1.7, 12, 4, 1.5, 1.8, 0.1], [-3, 1.6, 8, 0.9, 1.7, 0.8, -1.2]]
    np.testing.assert_array_equal(first["boxes"], np.array(boxes, np.float32))
    outputs = []
    for truth in references:
        x, y, z, *sizes, turn = truth["boxes"][0].tolist()
        row = [*sizes, x, y, z, turn, 0, 0, 50, 50, 2, 0.9, truth["image_id"]]
        outputs.append(np.array(row, "<f4").tobytes())
    assert PointPaintingScorer().score(outputs, references).aggregate["map"] > 0


def test_the_digest_knows_every_part(folder: Path) -> None:
    """But not the protocol of the pickle."""
    digests = {WaymoDataset(path=str(folder)).digest}
    for protocol in (2, 3, 4, 5):
        write(folder, [record(image) for image in IMAGES], protocol)
        digests.add(WaymoDataset(path=str(folder / "kitti_format")).digest)
    assert len(digests) == 1
    changes: list[Change] = [
        lambda frame: frame["annos"]["location"].__setitem__((0, 0), 1.5),
        lambda frame: frame["annos"]["difficulty"].__setitem__(0, 1),
        lambda frame: frame["annos"]["name"].__setitem__(0, "Van"),
        lambda frame: frame["calib"]["P0"].__setitem__((0, 0), 7.0),
    ]
    for change in changes:
        tree = [record(image) for image in IMAGES]
        change(tree[0])
        write(folder, tree)
        digests.add(WaymoDataset(path=str(folder)).digest)

    assert len(digests) == 5


def test_a_record_that_is_not_as_it_should_be_is_named(folder: Path, tmp_path: Path) -> None:
    """What it says is never executed."""
    tree = [record(image) for image in IMAGES]
    tree[1]["annos"]["name"] = Touch(tmp_path / "mark")
    write(folder, tree)
    with pytest.raises(
        RunError, match=r"it tries to call posix\.system; such a file is never exec"
    ):
        WaymoDataset(path=str(folder))
    assert not (tmp_path / "mark").exists()
    rows: list[Any] = [
        (
            lambda frame: frame.pop("calib"),
            r"frame 1: is not in MLPerf's format \(KeyError: 'calib'\)",
        ),
        (lambda frame: frame["calib"].pop("P4"), "KeyError: 'P4'"),
        (
            lambda frame: frame["annos"].update(name=np.array(["Car"])),
            "frame 1: is not in MLPerf's format",
        ),
        (
            lambda frame: frame["annos"].update(difficulty=np.array([0, 0])),
            "frame 1: is not in MLPerf's format",
        ),
        (
            lambda frame: frame["point_cloud"].update(velodyne_path="../../secret.bin"),
            "frame 1: names a file outside of the data set's folder",
        ),
        (
            lambda frame: frame["point_cloud"].update(velodyne_path="/etc/passwd"),
            "frame 1: names a file outside of the data set's folder",
        ),
        (
            lambda frame: frame["image"].update(image_idx="../1"),
            "frame 1: is not in MLPerf's format",
        ),
        (lambda frame: frame["image"].update(image_idx=-1), "frame 1: has image_idx = -1, not"),
    ]

    def read(change: Change) -> None:
        tree = [record(image) for image in IMAGES]
        tree[1] = copy.deepcopy(tree[1])
        change(tree[1])
        write(folder, tree)
        WaymoDataset(path=str(folder))

    assert not_refused(RunError, rows, read) == []
    contents = [b"", b"\x80\x04", pickle.dumps({"a": 1}), pickle.dumps([])]
    deep = b"\x80\x04" + b"]" * 20_000 + b"a" * 19_999 + b"."
    damaged = [*((content, FRAMES) for content in contents), (deep, "a record is malformed")]

    def parse(content: bytes) -> None:
        (folder / "kitti_format" / FRAMES).write_bytes(content)
        WaymoDataset(path=str(folder))

    assert not_refused(RunError, damaged, parse) == []


def test_files_of_a_frame_that_are_damaged_or_gone_are_named(folder: Path) -> None:
    training = folder / "kitti_format" / "training"
    (training / "image_3" / f"{IMAGES[0]}.jpg").unlink()
    (training / "velodyne_reduced" / f"{IMAGES[1]}.bin").write_bytes(b"\0" * 25)
    dataset = WaymoDataset(path=str(folder))

    with pytest.raises(RunError, match=rf"image_3.{IMAGES[0]}.jpg"):
        dataset.input(0)
    with pytest.raises(RunError, match=r"1000001.bin: cannot be split into points of 6 float32"):
        dataset.input(1)
