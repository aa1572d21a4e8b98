"""Pictures of noise, and what OpenCV makes of a small one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPENCV: dict[str, Any] = json.loads((Path(__file__).parent / "opencv.json").read_text("utf-8"))
"""The picture `small`, and that of other sizes by cv2.resize of OpenCV 4.10 to 5.0.

`area` by INTER_AREA and the shorter side, `linear` by INTER_LINEAR and WIDTHxHEIGHT, `linear float`
by INTER_LINEAR of float32 and the side of a square.
"""


def noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def coloured() -> NDArray[np.uint8]:
    """Return the picture `small` as red and blue, and its negative as green."""
    small = np.array(OPENCV["small"], np.uint8)
    return np.stack([small, 255 - small, small], axis=2)
