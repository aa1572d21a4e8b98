"""Lets Python find the code that suites below this folder name: it lies beside a suite's data.

pytest reads this file before it runs a suite, however it is called; what its processes import from,
the scorer's does too.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDERS = ("tiny/stable-diffusion-xl", "tiny/wan-2.2")

for folder in FOLDERS:
    place = str(Path(__file__).resolve().parent / folder)
    if place not in sys.path:
        sys.path.append(place)
