"""A LoadGen that is installed and cannot be imported, as after an upgrade of Python."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_mlperf.core.errors import REINSTALL, EnvironmentFault
from pytest_mlperf.run.worker._loadgen import make_sink


def test_a_failing_library_is_reported_with_the_remedy_of_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlperf_loadgen.py").write_text("raise ImportError('bad ELF header')", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mlperf_loadgen", raising=False)
    with pytest.raises(EnvironmentFault, match="LoadGen cannot be imported: bad ELF") as refusal:
        make_sink(cast("Any", None), cast("Any", None), tmp_path)
    assert str(refusal.value).endswith(f"; try: {REINSTALL}")
