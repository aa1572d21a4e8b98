"""Arrays whose headers and archives claim what no array is are refused before they are unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from pytest_mlperf.adapters.datasets.files import arrays as array_files
from pytest_mlperf.adapters.datasets.files.arrays import find_npy, find_npz
from pytest_mlperf.core.errors import RunError
from tests.adapters.datasets.refusals import not_refused


def array(shape: str, values: bytes = b"", dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values


@pytest.mark.parametrize("packed", [False, True], ids=["npy", "npz"])
def test_a_header_of_no_array_is_damage(tmp_path: Path, *, packed: bool) -> None:
    rows = [
        ("(-2, -4)", r"has the shape \(-2, -4\), which is invalid for an array"),
        ("(True, 4)", r"has the shape \(True, 4\)"),
        (f"({'1,' * 4000})", "4,000 axes"),
        (f"({'1,' * 9000})", r"Header info length \(\d+\) is large and may not be safe to load s"),
        ("(1000000000000,)", "needs 4,000,000,000,000 bytes after its header"),
        ("('x',)", "is not an array in NumPy's format"),
        ("(" * 500 + ")" * 500, "is not an array in NumPy's format"),
        ("4", "is not an array in NumPy's format"),
    ]
    path = tmp_path / "x"

    def read(shape: str) -> None:
        content = array(shape, bytes(32))
        if packed:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("a.npy", content)
        else:
            path.write_bytes(content)
        _ = find_npz(path) if packed else find_npy(path)

    named = [(shape, f"(?s){part}.*damaged or incomplete") for shape, part in rows]
    assert not_refused(RunError, named, read) == []


def test_an_archive_that_unpacks_to_too_much_is_refused_by_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of very many members is not searched."""
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for number in range(1_001):
            archive.writestr(f"{number}.npy", array("(1,)", bytes(4)))
    with pytest.raises(
        RunError, match="the archive has 1,001 members; at most 1,000 are read; check that"
    ):
        find_npz(tmp_path / "x.npz")
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(2**20, np.float32))
    assert find_npz(tmp_path / "x.npz")["a"].load().shape == (2**20,)
    monkeypatch.setattr(array_files, "UNPACKED_LIMIT", 2**20)
    with pytest.raises(
        RunError, match="has 4,194,432 bytes when unpacked; at most 1,048,576 are unpacked; save"
    ):
        find_npz(tmp_path / "x.npz")
