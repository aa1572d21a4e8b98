"""Lets Python find the code that a suite of this folder names: it lies beside the suite's data.

pytest reads this file before it runs a suite of this folder, however it is called; what its
processes import from, the scorer's does too.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDERS = ("stable-diffusion-xl",)

for folder in FOLDERS:
    place = str(Path(__file__).parent / folder)
    if place not in sys.path:
        sys.path.append(place)
