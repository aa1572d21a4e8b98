"""The data set of docs/own-model.md keeps the contract of data sets."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_mlperf.testing import check_dataset
from tests.docs.console import fences
from tests.docs.pages import DOCS


def test_the_data_set_of_the_page_passes_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "own-model.md").read_text("utf-8")
    (text,) = ["\n".join(one.body) for one in fences(page) if one.file == "my_data.py"]
    (tmp_path / "my_data.py").write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_data", raising=False)
    import my_data  # type: ignore[import-not-found]

    np.savez(tmp_path / "samples.npz", images=np.ones((4, 2)), labels=np.arange(4))
    built = check_dataset(my_data.Samples, options={"path": str(tmp_path / "samples.npz")})
    assert built.reference(3) == 3
