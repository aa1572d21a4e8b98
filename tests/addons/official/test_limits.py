"""`pytest-mlperf limits`: official results against physics, and one limit with its numbers."""

from __future__ import annotations

import re

import pytest

from tests.cli.lab import ROOT
from tests.cli.text import Say, differing, one_line, page


def test_the_table_has_a_row_for_each_official_result_of_a_known_gpu(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide terminal shows submitters and units as well."""
    text = say.ends(0, "limits")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[3] == (
        "workload              run  GPUs            value      limit  certain  estimated"
    )
    assert lines[4] == (
        "resnet50              Srv  2xL40S       91,209.1    179,253     50.9       50.9"
    )
    assert len([line for line in lines if re.search(r"  (Off|Srv|SS|MS) +\d+x", line)]) == 782
    assert "781 of 781 results lie below the certain limit, 0 above 90 %" in one_line(text)
    monkeypatch.setenv("COLUMNS", "120")
    text = say("limits", "--workload", "resnet50")[1]
    assert re.search(r"^workload +run +GPUs +submitter +value +unit +limit", text, re.MULTILINE)
    assert re.search(r"2xL40S +Cisco +91,209.1 +queries/s +179,253", text)


def test_one_limit_with_its_numbers_and_those_of_a_run_or_a_technique(say: Say) -> None:
    """`--set` gives the figures of a run; one sequence at a time is bound by memory."""
    options = ["--gpu", "H200", "--precision", "fp8", "--count", "8"]
    assert say("limits", *options, "--workload", "llama2-70b-99") == (
        0,
        page("limits_llama2-70b.txt"),
    )
    text = say.ends(
        0,
        "limits",
        *("--gpu", "H100-SXM", "--workload", "llama2-70b", "--precision", "fp16"),
        *("--set", "batch=1", "--set", "kv=fp8"),
    )
    assert "certain   24.38 tokens/s = 3.35 TB/s / 137.43 GB for each token" in text
    assert "bound by  memory: the weights are read all the time" in text
    assert "kv fp8, batch 1.0" in one_line(text)
    assert "decoding 24.36 tokens/s with 1 sequence of 437.2 tokens in each" in one_line(text)
    options = ["--gpu", "H200", "--workload", "stable-diffusion-xl", "--technique", "deepcache"]
    assert "certain   13.56 samples/s" in say("limits", *options, "--set", "network_share=0.5")[1]
    assert "estimated deepcache: set network_share" in say("limits", *options)[1]


def test_missing_options_are_asked_for_and_wrong_ones_refused(say: Say) -> None:
    bert = "--gpu H200 --workload bert"
    lines: list[tuple[str, int, str]] = [
        ("", 0, "85 on CPUs"),
        ("", 0, "2 on NVIDIA GeForce RTX 4090"),
        (
            "--workload llama2-70b",
            0,
            (
                "no limit for H200-SXM-141GBx1_TRT_DepthPruned, llama2-70b-99: pruning: set "
                "work_share, the share of the work that is left"
            ),
        ),
        (
            "--workload bert --gpu RTX_4090",
            0,
            (
                "bert on 1xRTX_4090: no limit known for RTX_4090: set its dense peaks (FLOP/s), "
                "memory bandwidth (B/s) and memory (B), e.g. fp16 = 989e12"
            ),
        ),
        (
            f"{bert} --precision fp6",
            0,
            "bert on 1xH200-SXM: no limit known for the precision 'fp6'; known: fp64, fp32,",
        ),
        ("--workload llama2-70", 2, "no operation counts for workload 'llama2-70'; did you mean"),
        ("--gpu H200", 2, "--gpu needs --workload, which names the limit"),
        ("--precision fp8", 2, "--precision, --count, --technique and --set need --gpu"),
        (f"{bert} --count 0", 2, "gpus is 0; must be at least 1"),
        (
            f"{bert} --technique deepcash",
            2,
            "--technique deepcash: unknown technique; did you mean",
        ),
        (f"{bert} --set token=3", 2, "--set token=3: must be NAME=NUMBER"),
        (f"{bert} --set tokens=many", 2, "--set tokens=many: 'many' is not a number"),
    ]
    rows = [(("limits", *line.split()), code, (text,)) for line, code, text in lines]
    assert differing(say, rows) == []
    for name in ("vgg16", "x"):
        code, text = say("limits", "--gpu", "H200", "--workload", name)
        assert (code, text.count("known: resnet50, retinanet,")) == (2, 1)
    code, text = say("limits", "--workload", "retinanet")
    assert (code, "resnet50  " in text, "retinanet  " in text) == (0, False, True)


def test_the_pages_show_what_is_printed(say: Say) -> None:
    """Every line of their examples, but for what "..." leaves out."""
    for name in ("limits.md", "cli.md"):
        text = (ROOT / "docs" / name).read_text("utf-8")
        blocks = re.findall(r"```console\n\$ pytest-mlperf limits(.*?)\n(.*?)```", text, re.DOTALL)
        assert blocks
        for options, lines_of_page in blocks:
            printed = {*say("limits", *options.split())[1].splitlines(), "..."}
            assert [line for line in lines_of_page.splitlines() if line not in printed] == []
