"""Read a tensor of whole numbers that torch.save wrote, without torch or executing code.

The file is a zip archive with a pickle of the tensor's layout, and a member with its bytes. The
pickle may only refer to the classes of a plain int64 tensor, which inert objects replace.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.datasets.files.arrays import damaged
from pytest_mlperf.adapters.lazy import NDArray, np

MAX_PICKLE_BYTES = 4096
"""Maximum size of the pickle, in bytes; too small for deep nesting."""

NUMBERS = "int64"


def _layout(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> tuple[Any, ...]:
    return storage, offset, shape, strides


PICKLE_GLOBALS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _layout,
    ("torch", "LongStorage"): NUMBERS,
    ("collections", "OrderedDict"): lambda: None,  # backward hooks, which are empty
}


class TensorUnpickler(pickle.Unpickler):
    """Unpickle the layout of a tensor; reject all other classes and functions."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PICKLE_GLOBALS:
            raise pickle.UnpicklingError(
                f"it has a {module}.{name} instead of a list of whole numbers"
            )
        return PICKLE_GLOBALS[module, name]

    def persistent_load(self, pid: Any) -> Any:
        return pid


def read_tensor(file: Path) -> NDArray[np.int64]:
    """Return the numbers of a one-dimensional int64 tensor; raise RunError for other files."""
    try:
        with zipfile.ZipFile(file) as archive:
            (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            folder = pickled.removesuffix("data.pkl")
            if archive.getinfo(pickled).file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"its description is larger than {MAX_PICKLE_BYTES:,} bytes")
            storage, offset, shape, strides = TensorUnpickler(
                io.BytesIO(archive.read(pickled))
            ).load()
            member = archive.getinfo(f"{folder}data/{storage[2]}")
            if storage[1] != NUMBERS or (len(shape), tuple(strides)) != (1, (1,)):
                raise ValueError("it is not a plain list of whole numbers")
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError("it is compressed")
            # torch.save writes the whole storage of a view: MLPerf's file has 1.3 GB for 6 MB.
            if not 0 <= 8 * offset <= 8 * (offset + shape[0]) <= member.file_size:
                raise ValueError(f"it declares more than its {member.file_size:,} bytes")
            with archive.open(member) as opened:
                opened.seek(8 * offset)
                return np.frombuffer(opened.read(8 * shape[0]), "<i8").copy()
    # For a truncated or hostile file, zipfile, pickle and numpy can raise anything.
    except Exception as error:
        raise damaged(file, f"it is not a tensor of whole numbers ({error})") from error
