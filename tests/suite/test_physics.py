"""Figures of accelerators and models that a suite gives, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.core.errors import SuiteError
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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[accelerators.X9]\nfp32 = 1e14\n", "no engine entry runs on 'X9'; they run on cpu"),
        ("[accelerators.cpu]\nfp33 = 1e14\n", "unknown 'fp33'; known: fp64, fp32, tf32"),
        ("[accelerators.cpu]\nbandwidth = 1e10\n", "give at least one dense peak, as fp16"),
        ('[accelerators.cpu]\nfp32 = "2 GB"\n', "fp32 must be a number in FLOP/s"),
        ('[workload.work]\nkind = "magic"\n', "kind must be one of decode, diffusion, encoder"),
        ('[workload.work]\nkind = "fixed"\n', "sample_flop missing; a fixed needs sample_flop"),
        (
            '[workload.work]\nkind = "fixed"\nsample_flop = 1e9\nflops = 1\n',
            "unknown 'flops'; a fixed has sample_flop",
        ),
        (
            '[workload.work]\nkind = "fixed"\nsample_flop = true\n',
            "sample_flop is True; must be a number",
        ),
        (
            '[workload.work]\nkind = "fixed"\nsample_flop = -1\n',
            "sample_flop is -1; must be positive and finite",
        ),
        (
            '[workload.work]\nkind = "parts"\npart = 3\npart_flop = 1e9\nleast_parts = 2\n',
            "part is 3; must be a word",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(SuiteError) as caught:
        read(tmp_path, more)

    assert message in str(caught.value)


def test_mlperfs_own_workloads_bring_their_count(tmp_path: Path) -> None:
    file = tmp_path / "s.mlperf.toml"
    text = with_(('name = "mine"', 'name = "resnet50"'), more=f"\n{DECODE}")
    file.write_text(text, "utf-8")

    with pytest.raises(SuiteError, match="resnet50 has MLPerf's own count; leave work out"):
        load_suite(file)


@pytest.mark.parametrize("name", sorted(known_work()))
def test_a_suite_can_say_whatever_the_table_says(name: str) -> None:
    """Every kind of work of the table is one that a suite may give for a model of its own."""
    import tomllib
    from importlib.resources import files

    raw = tomllib.loads(files("pytest_mlperf.rounds").joinpath("work.toml").read_text("utf-8"))
    about = ("parameters", "typical", "source")
    own = raw.get(raw[name].get("model"), raw[name])
    figures = {key: value for key, value in own.items() if key not in about}

    assert parse_work(figures) == known_work()[name].work
