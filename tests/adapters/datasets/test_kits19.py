"""KiTS19 as MLPerf preprocesses it: pickles that are not run, and every way to be wrong."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pytest_mlperf.adapters.datasets.kits19 import LIST, OFFICIAL_MD5, Kits19Dataset
from pytest_mlperf.core.errors import RunError, UnavailableError
from tests.adapters.datasets.hostile import Touch
from tests.adapters.datasets.refusals import not_refused

NAMES = ["case_00003", "case_00000", "case_00185"]
"""In an order of their own."""

Volumes = tuple[NDArray[Any], NDArray[Any]]


def volumes(name: str) -> Volumes:
    """Return image and label of a case; one is larger than a single read of a pickle."""
    depth = 64 if name == "case_00000" else 4
    rng = np.random.default_rng(int(name[-3:]))
    image = rng.normal(size=(1, depth, 24, 16)).astype(np.float32)
    return image, rng.integers(0, 3, image.shape, dtype=np.uint8)


def listed(names: list[str] = NAMES) -> dict[str, Any]:
    """Return the metadata that preprocess.py pickles with the cases."""
    cases = {
        name: {
            "original_affine": np.eye(4),
            "reshaped_affine": np.eye(4) * 1.6,
            "zoom_factor": np.array([1.5, 0.7, 0.7]),
            "case": name,
            "image_shape": volumes(name)[0].shape,
        }
        for name in names
    }
    return {"file_list": names, "cases": cases}


def tiny(folder: Path) -> dict[str, Any]:
    """Write three cases as the reference does."""
    for name in NAMES:
        (folder / f"{name}.pkl").write_bytes(pickle.dumps(list(volumes(name))))
    (folder / LIST).write_bytes(pickle.dumps(listed()))
    return {"path": str(folder)}


def build(folder: Path, **options: Any) -> Kits19Dataset:
    return Kits19Dataset(path=str(folder), **options)


def same(dataset: Kits19Dataset, names: list[str]) -> None:
    """Require these cases."""
    assert len(dataset) == len(names)
    for index, name in enumerate(names):
        image, label = volumes(name)
        volume, reference = dataset.input(index), dataset.reference(index)
        np.testing.assert_array_equal(volume, image)
        np.testing.assert_array_equal(reference["label"], label[0])
        assert volume.dtype == np.float32
        assert reference["label"].dtype == np.uint8
        assert volume.flags.c_contiguous
        assert reference["label"].flags.c_contiguous
        assert set(reference) == {"case", "label"}
        assert reference["case"] == name


def test_pickles_of_all_protocols_and_orders_are_read(folder: Path) -> None:
    """In the order of the list; also as NumPy 1 writes them."""
    digest = build(folder).digest
    orders: tuple[Any, ...] = ("C", "F")
    for protocol, order, kind in product((3, 4, 5), orders, (list, tuple)):
        for name in NAMES:
            arrays = kind(np.asarray(array, order=order) for array in volumes(name))
            (folder / f"{name}.pkl").write_bytes(pickle.dumps(arrays, protocol))
        (folder / LIST).write_bytes(pickle.dumps(listed(), protocol))
        same(build(folder), NAMES)
        assert build(folder).digest == digest
    for file in folder.iterdir():
        raw = pickle.dumps(pickle.loads(file.read_bytes()), 3)
        assert b"numpy._core.multiarray" in raw
        file.write_bytes(raw.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    same(build(folder), NAMES)


def to_npz(folder: Path, name: str, save: Callable[..., Any] = np.savez) -> None:
    image, label = volumes(name)
    save(folder / f"{name}.npz", image=image, label=label)


to_packed_npz = partial(to_npz, save=np.savez_compressed)


def to_npy(folder: Path, name: str) -> None:
    image, label = volumes(name)
    np.save(folder / f"{name}.image.npy", image)
    np.save(folder / f"{name}.label.npy", label)


@pytest.mark.parametrize("save", [to_npz, to_packed_npz, to_npy])
def test_files_without_pickle_are_read_alike(
    folder: Path, save: Callable[[Path, str], None]
) -> None:
    """The digest is the same, also in a folder without the list, whose cases are sorted."""
    digest = build(folder).digest
    for name in NAMES:
        (folder / f"{name}.pkl").unlink()
        save(folder, name)
    same(build(folder), NAMES)
    assert build(folder).digest == digest
    (folder / LIST).unlink()

    same(build(folder), sorted(NAMES))


def test_other_content_has_another_digest(folder: Path) -> None:
    """Volumes are read again each time."""
    dataset = build(folder)
    digests = {dataset.digest}
    image, label = volumes(NAMES[1])
    for changed in ([image + 1, label], [image, 2 - label]):
        (folder / f"{NAMES[1]}.pkl").write_bytes(pickle.dumps(changed))
        digests.add(build(folder).digest)
    first = dataset.input(0)
    shutil.copy(folder / "case_00185.pkl", folder / "case_00003.pkl")

    assert len(digests) == 3
    assert not np.array_equal(dataset.input(0), first)
    np.testing.assert_array_equal(dataset.input(0), dataset.input(2))


def test_building_reads_no_volume(folder: Path) -> None:
    """The contents of a large array are skipped: they may be garbage, but not be missing."""
    path = folder / "case_00000.pkl"
    raw = bytearray(path.read_bytes())
    raw[1000:50_000] = b"\xff" * 49_000
    path.write_bytes(raw)

    dataset = build(folder)

    assert np.isnan(dataset.input(1)).any()


def test_checksums_are_compared_where_asked_for(folder: Path, tmp_path: Path) -> None:
    sums = tmp_path / "checksum_inference.json"
    files = [folder / f"{name}.pkl" for name in NAMES]
    digits = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in files}
    for spelled in (digits, {name: md5.upper() for name, md5 in digits.items()}):
        sums.write_text(json.dumps(spelled))
        same(build(folder, checksums=str(sums)), NAMES)
    image, label = volumes(NAMES[1])
    (folder / f"{NAMES[1]}.pkl").write_bytes(pickle.dumps([image + 1, label]))
    with pytest.raises(RunError, match=r"case_00000.pkl: md5 is \w+, expected \w+: the file"):
        build(folder, checksums=str(sums))
    words = OFFICIAL_MD5.split()
    cases = dict(zip(words[::2], words[1::2], strict=True))
    assert len(cases) == 43
    assert cases["00400"] == cases["00185"]
    with pytest.raises(RunError, match=f"expected {cases['00003']}: the file is damaged"):
        build(folder, checksums="official")
    rows = [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is not a JSON object of file names and MD5 sums"),
        ('{"a.pkl": 3}', "it is not a JSON object of file names and MD5 sums"),
        ("{}", "sums.json has no checksum of a file case_00003.pkl; use the pickles of MLPerf's"),
    ]
    sums = tmp_path / "sums.json"

    def read(text: str) -> None:
        sums.write_text(text)
        build(folder, checksums=str(sums))

    assert not_refused(RunError, rows, read) == []


def test_a_pickle_is_never_run(folder: Path, tmp_path: Path) -> None:
    for name in (LIST, "case_00003.pkl"):
        proof, whole = tmp_path / f"{name} ran", (folder / name).read_bytes()
        raw = pickle.dumps([Touch(proof, shell=False), *volumes("case_00003")])
        (folder / name).write_bytes(raw)
        with pytest.raises(RunError, match=f"{name}: it tries to call .*; such a file is never ex"):
            build(folder)
        assert not proof.exists()
        pickle.loads(raw)
        assert proof.exists()
        (folder / name).write_bytes(whole)


IMAGE, LABEL = volumes("case_00003")


def test_a_pickle_of_something_else_is_refused(folder: Path) -> None:
    rows: list[Any] = [
        ([IMAGE], "it holds 1 arrays, not image and label"),
        ([IMAGE, LABEL, LABEL], "it holds 3 arrays, not image and label"),
        ({"image": IMAGE}, "it holds an object of type dict, not a list of arrays"),
        (IMAGE, "it holds an object of type _(reconstruct|frombuffer), not a list of arrays"),
        ([IMAGE, "label"], "item 1 is an object of type str, not an array of numbers"),
        ([IMAGE, np.array(["a", None])], "item 1 is an object of type _reconstruct, not an array"),
        ([IMAGE.astype(np.float64), LABEL], "its array 0 has values of type <f8, not <f4"),
        ([IMAGE, LABEL.astype(np.int64)], "its array 1 has values of type <i8, not .u1;"),
        ([IMAGE.astype(">f4"), LABEL], "values of NumPy's type >f4, which is not supported"),
        ([LABEL, IMAGE], "its array 0 has values of type .u1, not <f4;"),
        ([IMAGE[0], LABEL], r"array 0 has the shape \(4, 24, 16\), not \(1, depth, height, wid"),
        ([IMAGE, LABEL[0]], r"array 1 has the shape \(4, 24, 16\), not \(1, depth, height, wid"),
        ([IMAGE[:, :0], LABEL], r"its array 0 has the shape \(1, 0, 24, 16\), not \(1, depth"),
        ([IMAGE, LABEL[:, :3]], r"the image has shape \(1, 4, 24, 16\), but the label \(1, 3, 24"),
        ([IMAGE[:, :3], LABEL[:, :3]], rf"its shape is \(1, 3, 24, 16\), but {LIST} lists \(1, 4"),
        ([IMAGE, LABEL, "x" * 70_000], "it holds a text of 70,000 bytes; only arrays that were"),
        ([IMAGE, LABEL, list(range(1_000_000))], "it has more than 1 MiB of data besides its"),
    ]

    def read(content: Any) -> None:
        (folder / "case_00003.pkl").write_bytes(pickle.dumps(content))
        build(folder)

    named = [(content, f"case_00003.pkl: .*{part}") for content, part in rows]
    assert not_refused(RunError, named, read) == []
    (folder / "case_00003.pkl").write_bytes(pickle.dumps([IMAGE, LABEL + 1]))
    with pytest.raises(RunError, match=r"case_00003.pkl: its label holds the class 3; valid are 0"):
        build(folder).reference(0)
    (folder / "case_00000.pkl").write_bytes(pickle.dumps(list(volumes("case_00000")), 2))
    with pytest.raises(RunError, match="only arrays that were pickled with protocol 3 to 5"):
        build(folder)


def test_other_files_that_are_cut_are_refused(folder: Path) -> None:
    (folder / "case_00003.pkl").unlink()
    for save in (to_npz, to_packed_npz, to_npy):
        save(folder, "case_00003")
        file = next(iter(folder.glob("case_00003*")))
        raw = file.read_bytes()
        part = f"{file.name}: .*the file is damaged or incomplete"
        rows = [(raw[:kept], part) for kept in (0, 20, len(raw) // 2, -1)]
        calls: list[Any] = [lambda content, file=file: (file.write_bytes(content), build(folder))]
        assert not_refused(RunError, rows, *calls) == []
        for saved in folder.glob("case_00003*"):
            saved.unlink()


def test_arrays_without_pickle_are_image_and_label(folder: Path) -> None:
    """An array of objects is not unpickled."""
    (folder / "case_00003.pkl").unlink()
    npz = folder / "case_00003.npz"
    rows: list[tuple[dict[str, Any], str]] = [
        ({"image": IMAGE, "seg": LABEL}, "it needs the arrays image and label, but has image, seg"),
        (
            {"image": np.array([{}], object), "label": LABEL},
            "its member image.npy has values of type object; on",
        ),
    ]

    def read(arrays: dict[str, Any]) -> None:
        np.savez(npz, **arrays)
        build(folder)

    assert not_refused(RunError, rows, read) == []
    npz.unlink()
    np.save(folder / "case_00003.image.npy", IMAGE)
    with pytest.raises(UnavailableError, match=r"case_00003.label.npy: the label file of case"):
        build(folder)


def test_a_list_of_something_else_is_refused(folder: Path) -> None:
    rows: list[Any] = [
        (
            {"cases": {}},
            r"it must be a dict with 'file_list' and 'cases', .* \(KeyError: 'file_list'\)",
        ),
        ({"file_list": ["case_1"], "cases": {}}, r"it must be a dict .* \(KeyError: 'case_1'\)"),
        ({"file_list": ["case_1"], "cases": {"case_1": {}}}, r"\(KeyError: 'image_shape'\)"),
        (["case_1"], "it must be a dict with 'file_list'"),
        ({"file_list": [], "cases": {}}, "it lists no case"),
        (listed(["case_00003"] * 2), "'case_00003' is listed more than once"),
        (
            {"file_list": ["../003"], "cases": {"../003": {"image_shape": (1, 2, 2, 2)}}},
            r"'\.\./003' is not a valid name of a case",
        ),
    ]

    def read(content: Any) -> None:
        (folder / LIST).write_bytes(pickle.dumps(content))
        build(folder)

    named = [(content, f"{LIST}: .*{part}") for content, part in rows]
    assert not_refused(RunError, named, read) == []


def test_a_file_that_is_cut_later_is_an_error_of_the_case(folder: Path) -> None:
    for save in (None, to_npz, to_packed_npz):
        file = folder / "case_00000.pkl"
        if save:
            file.unlink(missing_ok=True)
            save(folder, "case_00000")
            file = folder / "case_00000.npz"
        dataset = build(folder)
        with file.open("rb+") as opened:
            opened.truncate(5000)
        with pytest.raises(RunError, match=f"{file.name}: .*the file is damaged or incomplete"):
            dataset.input(1)
        with pytest.raises(RunError, match=f"{file.name}: .*the file is damaged or incomplete"):
            _ = dataset.digest


def test_missing_cases_are_counted(folder: Path) -> None:
    """Those beyond count are not needed."""
    (folder / f"{NAMES[2]}.pkl").unlink()
    same(build(folder, count=2), NAMES[:2])
    (folder / f"{NAMES[0]}.pkl").unlink()

    with pytest.raises(UnavailableError) as caught:
        build(folder)

    assert str(caught.value) == (
        f"{folder}: 2 of the 3 cases in preprocessed_files.pkl are missing, such as case_00003 "
        "(as .pkl, .npz, .image.npy file); add the missing cases or, if you have the first N cases "
        "of that list, set count = N"
    )


def test_volumes_and_checksums_that_are_missing_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        Kits19Dataset.look(path=str(tmp_path), checksums="/no/sums.json")

    volumes, checksums = str(caught.value).split("; also ")
    assert volumes == (
        f"{tmp_path}: neither {LIST} nor a file case_*.pkl, .npz or .image.npy is there; set the "
        "data set's path to what preprocess.py of MLPerf's 3d-unet-kits19 reference wrote"
    )
    assert checksums == (
        "/no/sums.json: this file of checksums does not exist; set checksums to a copy of "
        'checksum_inference.json of MLPerf\'s 3d-unet-kits19 reference, or to "official"'
    )
