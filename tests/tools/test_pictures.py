"""tools/pictures.py: each picture shows its page as the package makes it now."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_every_picture_shows_its_page(lib: Any) -> None:
    assert not list(lib("pictures").outdated())


def test_a_changed_result_or_picture_is_noticed(
    lib: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = lib("pictures")
    shutil.copytree(pictures.PICTURES, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    (tmp_path / "curve-dark.png").write_bytes(b"another")
    shutil.copy(
        ROOT / "tests" / "data" / "replay" / "slowed" / "results.json",
        tmp_path / "sessions" / "pull-request",
    )

    stale = [line.partition(":")[0] for line in pictures.outdated()]

    assert sorted(stale) == ["comment", "curve-dark.png", "phone", "report"]
