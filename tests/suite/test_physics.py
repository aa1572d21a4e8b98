"""Test figures of accelerators and models in a suite, and their errors."""

from __future__ import annotations

from pathlib import Path

from pytest_mlperf.core.roofline.work import Decode
from pytest_mlperf.rounds.work import known_work, parse_work
from pytest_mlperf.suite.load import load_suite
from tests.suite.texts import with_

DECODE = (
    '[workload.work]\nkind = "decode"\nlayers = 2\nwidth = 64\nheads = 4\nkv_heads = 2\n'
    "head_dim = 16\nhidden = 128\nmatrices = 3\nvocabulary = 512\n"
)


def read(tmp_path: Path, more: str) -> object:
    file = tmp_path / "s.mlperf.toml"
    file.write_text(with_(more=f"\n{more}"), "utf-8")
    return load_suite(file)[0]


def test_figures_and_work_are_read(tmp_path: Path) -> None:
    suite = read(tmp_path, DECODE + '[accelerators.cpu]\nfp32 = "2 TFLOP/s"\nbandwidth = 4e10\n')

    assert suite.figures["cpu"].peaks == {"fp32": 2e12}  # type: ignore[attr-defined]
    assert suite.figures["cpu"].bandwidth == 4e10  # type: ignore[attr-defined]
    assert isinstance(suite.work, Decode)  # type: ignore[attr-defined]
    assert suite.work.layers == 2  # type: ignore[attr-defined]


def test_a_suite_can_state_everything_of_the_table() -> None:
    """Every kind of work of the table is one that a suite may give for a model of its own."""
    rows = sorted(known_work())
    import tomllib
    from importlib.resources import files

    raw = tomllib.loads(files("pytest_mlperf.rounds").joinpath("work.toml").read_text("utf-8"))
    about = ("parameters", "typical", "source")
    for name in rows:
        own_sizes = raw.get(raw[name].get("model"), raw[name])
        figures = {key: value for key, value in own_sizes.items() if key not in about}
        assert parse_work(figures) == known_work()[name].work, name
