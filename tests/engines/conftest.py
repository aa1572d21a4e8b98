"""The torch engine's tests need its libraries already to be collected."""

from __future__ import annotations

import importlib.util

LIBRARIES = ("torch", "transformers", "torchao")

collect_ignore = [] if all(map(importlib.util.find_spec, LIBRARIES)) else ["torch"]
