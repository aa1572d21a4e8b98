"""What builds with torch is collected only where torch is."""

from __future__ import annotations

import importlib.util

LIBRARIES = ("torch", "transformers", "torchao")

collect_ignore = (
    []
    if all(map(importlib.util.find_spec, LIBRARIES))
    else ["test_compressed.py", "test_torchao.py", "test_torchao_unet.py"]
)
