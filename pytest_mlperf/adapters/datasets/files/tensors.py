"""Read a list of whole numbers that torch.save wrote; torch is not needed, nothing is executed.

Such a file is a zip: a pickle says how a tensor lies in a string of bytes beside it. Of the names
in that pickle those of a plain int64 tensor are known, and stand for inert ones of this module.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.adapters.datasets.files.arrays import damaged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_PICKLE_BYTES = 4096
"""Bytes that say how one tensor lies; so few that nothing in them can be nested deeply."""

NUMBERS = "int64"


def _layout(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> tuple[Any, ...]:
    return storage, offset, shape, strides


PICKLE_GLOBALS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _layout,
    ("torch", "LongStorage"): NUMBERS,
    ("collections", "OrderedDict"): lambda: None,  # the hooks of a tensor: there are none
}


class TensorUnpickler(pickle.Unpickler):
    """Reads how a tensor lies; every other name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PICKLE_GLOBALS:
            raise pickle.UnpicklingError(f"it has a {module}.{name}, and no list of whole numbers")
        return PICKLE_GLOBALS[module, name]

    def persistent_load(self, pid: Any) -> Any:
        return pid


def read_tensor(file: Path) -> NDArray[np.int64]:
    """Return the int64 numbers of a tensor of one dimension; any other file is a RunError."""
    import numpy as np

    try:
        with zipfile.ZipFile(file) as archive:
            (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            folder = pickled.removesuffix("data.pkl")
            if archive.getinfo(pickled).file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"more than {MAX_PICKLE_BYTES:,} bytes say how it lies")
            storage, offset, shape, strides = TensorUnpickler(
                io.BytesIO(archive.read(pickled))
            ).load()
            member = archive.getinfo(f"{folder}data/{storage[2]}")
            if storage[1] != NUMBERS or (len(shape), tuple(strides)) != (1, (1,)):
                raise ValueError("it is no plain list of whole numbers")
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError("it is compressed")
            # A part of a tensor is saved with all of it, as MLPerf's is: 1.3 GB for 6 MB.
            if not 0 <= 8 * offset <= 8 * (offset + shape[0]) <= member.file_size:
                raise ValueError(f"it has {member.file_size:,} bytes, and asks for more")
            with archive.open(member) as opened:
                opened.seek(8 * offset)
                return np.frombuffer(opened.read(8 * shape[0]), "<i8").copy()
    # Of a file that is cut or hostile, these raise whatever its parts do.
    except Exception as error:
        raise damaged(file, f"it is no tensor of whole numbers ({error})") from error
