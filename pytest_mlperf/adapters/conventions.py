"""Define conventions between adapters: labels, prompts, options, JSON, output formats."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf import EnvironmentFault
from pytest_mlperf.adapters.lazy import np

NEGATIVE_PROMPT = "normal quality, low quality, worst quality, low res, blurry, nsfw, nude"
"""Negative prompt of MLPerf's Stable Diffusion XL."""


MATRIX_CONVOLUTIONS = "matrix_convolutions"
"""Key of a UNet's configuration: names of convolutions whose weights are stored as matrices,
(outputs, height x width x inputs), for matrix product kernels."""


SPEECH_LABELS = " abcdefghijklmnopqrstuvwxyz'0123456789$%+-"
"""Alphabet of MLPerf's Whisper transcripts, whose int64 values are indices in it."""


LOGPROB_RECORD = (("token", "<i4"), ("logprob", "<f4"))
"""Record that is logged for each token of an evaluated prompt, as fields of numpy: its id, and the
natural logarithm of its probability given all previous tokens."""


def pack_logprobs(tokens: Sequence[int], logprobs: Sequence[float]) -> bytes:
    """Serialise a prompt's tokens and log-probabilities, the first NaN, for LoadGen's log.

    >>> len(pack_logprobs([1, 5], [float("nan"), -0.5]))
    16
    """
    records = np.empty(len(tokens), np.dtype(list(LOGPROB_RECORD)))
    records["token"], records["logprob"] = tokens, logprobs
    return records.tobytes()


def not_installed(
    component: str, library: str, extra: str, *, option: str = ""
) -> EnvironmentFault:
    """Return the error that `component` needs a library, which the pip extra `extra` installs."""
    return EnvironmentFault(
        f"{component} needs {library}, which is not installed; "
        f"try: pip install 'pytest-mlperf[{extra}]'",
        option=option or (),
    )


def sides_of(size: object) -> tuple[int, int] | None:
    """Return (height, width) of option `size`, a number or [height, width]; None if invalid."""
    match [size, size] if isinstance(size, int) else size:
        case [int(height), int(width)] if bool not in {type(height), type(width)}:
            return (height, width) if min(height, width) >= 1 else None
    return None


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
"""Beginning of a pointer file of Git LFS, which replaces the actual file."""


def lfs_pointer(path: Path) -> str:
    """Return an error text if a file, or a folder's first text file, is an LFS pointer, else ""."""
    for file in sorted(path.glob("*.[jtm][sixo]*")) or [path]:
        with contextlib.suppress(OSError), file.open("rb") as opened:
            if opened.read(len(LFS_POINTER)) == LFS_POINTER:
                return f"{file} is a Git LFS pointer, not the file itself; run: git lfs pull"
    return ""


def json_in(text: str, default: Any) -> Any:
    """Parse a text as JSON; return the default if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return default
