"""Builders of the tested project: the recipe names the behaviour; each start leaves a line."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Builder

NO_WEIGHTS = (2).to_bytes(8, "little") + b"{}"
"""A safetensors file without tensors."""


class Acme(Builder):
    """Copies the model and its prompts; `journal` gets a line for each build."""

    distributions = ("acme-quantiser",)

    def __init__(self, *, recipe: str, journal: str = "", size: int = 0) -> None:
        self._recipe = recipe
        self._journal = journal
        self._size = size
        self._writes = True

    def build(self, source: Path, target: Path, prompts: Any, progress: Any) -> dict[str, str]:
        if self._journal:
            with Path(self._journal).open("a", encoding="utf-8") as file:
                file.write(f"{os.getpid()}\n")
        progress(1, 2, "layers")
        (target / "config.json").write_text(json.dumps({"prompts": prompts}), "utf-8")
        getattr(self, f"_{self._recipe.replace('-', '_')}")(target)
        if self._writes:
            (target / "model.safetensors").write_bytes(NO_WEIGHTS)
        return {"quantisation": "none at all", "size": str(self._size)}

    def _int8(self, target: Path) -> None:
        pass

    _int4 = _int8

    def _breaks(self, target: Path) -> None:
        print("the quantiser said this", file=sys.stderr)
        raise ZeroDivisionError("a scale of 0")

    def _refuses(self, target: Path) -> None:
        raise RunError("build", "this model has an odd number of heads")

    def _is_killed(self, target: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _hangs(self, target: Path) -> None:
        threading.Event().wait()

    def _pickles(self, target: Path) -> None:
        (target / "pytorch_model.bin").write_bytes(b"")

    def _no_weights(self, target: Path) -> None:
        self._writes = False

    def _no_config(self, target: Path) -> None:
        (target / "config.json").unlink()
