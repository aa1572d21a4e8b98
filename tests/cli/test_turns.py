"""`pytest-mlperf turns` measures two engine entries in turns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.text import Say, differing, one_line, widest
from tests.stores.calibrated_here import WORDS, calibrate

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
dataset = { use = "synthetic", samples = 32 }
"""
OFFLINE = '[[scenarios]]\nname = "Offline"\ntarget_qps = 500\nmin_duration = "100ms"\n'
MULTI = (
    '[[scenarios]]\nname = "MultiStream"\ntarget_qps = 10\nmin_query_count = 700\n'
    'min_duration = "100ms"\n'
)
SERVER = (
    '[[scenarios]]\nname = "Server"\ntarget_qps = {}\nlatency_limit = "1s"\n'
    'min_duration = "100ms"\nmin_query_count = 700\n'
)
LIMIT = '[limits]\nthroughput = { max_drop = "30%" }\n'


def null(name: str, milliseconds: int = 2, more: str = "") -> str:
    """Return an engine entry that sleeps this long for each sample, in batches."""
    return (
        f'[[engines]]\nuse = "null"\nname = "{name}"\n{more}\n'
        f"options = {{ latency_s = {milliseconds / 1000}, batch_size = 16, threads = 1 }}\n"
    )


def write(name: str, *tables: str, text: str = SUITE) -> str:
    file = f"{name}.mlperf.toml"
    Path(file).write_text(text + "".join(tables), "utf-8")
    return file


@pytest.mark.process
def test_a_slower_entry_is_a_drop_with_its_ratio(here: Path, say: Say) -> None:
    """The second pair has the reverse order: nothing is stored, and nothing stored is asked."""
    a = write("a", null("one"), OFFLINE, LIMIT)
    b = write("b", null("two", 4), OFFLINE, LIMIT)
    output = say.ends(1, "turns", a, b)
    assert widest(output) <= 80
    match = re.search(
        r"A +a\.mlperf\.toml\nB +b\.mlperf\.toml\n\n"
        r"  verdict +metric .* ratio +interval +limit +pairs\n"
        r"mine Offline on cpu\n"
        r"  PERF DROP  samples/s .* 0\.\d\dx  0\.\d\dx to [01]\.\d\dx  −30 % +(\d)\n",
        output,
    )
    assert match, output
    assert "accuracy was not measured" in one_line(output)
    assert "default noise, 5 % per run: this machine is not calibrated" in one_line(output)
    assert output.splitlines()[-1] == "1 PERF DROP"
    (session,) = (here / ".mlperf/runs").iterdir()
    assert f"runs      .mlperf/runs/{session.name}" in output
    folders = sorted(session.glob("*/spec.json"), key=lambda file: file.stat().st_ctime_ns)
    sides = [side[1] for file in folders if (side := re.search("-(one|two)-", file.parent.name))]
    assert sides[:2] == sides[3:1:-1] != sides[2:4]
    assert len(sides) == 2 * int(match[1])
    assert (here / ".mlperf/.gitignore").read_text("utf-8") == "*\n"


@pytest.mark.process
def test_two_entries_of_one_suite_are_told_apart_by_label(here: Path, say: Say) -> None:
    """A faster side is improved, not merely no drop; the noise is as calibrated."""
    file = write("s", null("slow", 16), null("fast"), OFFLINE, LIMIT)
    calibrate(here / "baselines")
    output = say.ends(0, "turns", f"{file}::slow", f"{file}::fast-fp32-cpu")
    assert re.search(r"  improved  samples/s .* \d\.\d\dx  [1-9]\.\d\dx to ", output), output
    assert WORDS in one_line(output)


@pytest.mark.process
def test_only_the_case_that_is_named_is_measured(here: Path, say: Say) -> None:
    """Here one that has too few queries for its only metric: no case could be judged."""
    both = MULTI + OFFLINE
    a, b = (write(name, null(name, 0), both) for name in "ab")
    output = say.ends(2, "turns", a, b, "--case", "mine-MultiStream-b-fp32-cpu", "--pairs", "2")
    assert "Offline" not in output
    assert "700 queries per run are too few for latency_p99" in one_line(output)
    assert output.splitlines()[-1] == "1 INVALID"


@pytest.mark.quiet
@pytest.mark.process
def test_both_sides_are_offered_one_rate(here: Path, say: Say) -> None:
    """Where only one suite names it, the other side gets it too."""
    a = write("a", null("one", 0), SERVER.format("1000"))
    b = write("b", null("two", 0), SERVER.format("1000").replace("target_qps = 1000\n", ""))
    code, output = say("turns", a, b, "--pairs", "2")
    assert code in {0, 1}, output
    specs = list(here.glob(".mlperf/runs/*/*/spec.json"))
    assert len(specs) == 4
    assert all('"target_qps": 1000.0' in spec.read_text("utf-8") for spec in specs)


ONE, H200 = null("one"), null("one", more='accelerators = ["H200"]')
SERVED = ONE + SERVER.format(30)
REFUSED: list[tuple[str, str, tuple[str, str], str]] = [
    (ONE + OFFLINE, ONE + OFFLINE, ('"mine"', '"yours"'), "different workloads: mine and yours"),
    (ONE + OFFLINE, ONE + OFFLINE, ("32", "64"), "different data sets, or different options"),
    (
        ONE + OFFLINE,
        ONE + OFFLINE,
        ("schema = 1", 'schema = 1\ndivision = "open"'),
        "A and B cannot be compared: different divisions: closed and open",
    ),
    (
        ONE + OFFLINE,
        ONE + OFFLINE,
        ('"v4.1"', '"v5.0"\nprofile = "official"'),
        "different rounds: v4.1 and v5.0; different profiles: quick and official",
    ),
    (
        H200 + OFFLINE,
        H200 + OFFLINE,
        ("H200", "2xH200"),
        "H200 and 2xH200 are different numbers of GPUs",
    ),
    (SERVED, SERVED, ("qps = 30", "qps = 40"), "compared: different offered rates: 30/s and 40/s"),
    (SERVED, SERVED, ("1s", "2s"), "latency_limit_ns: 1000000000 and 2000000000"),
    (ONE + OFFLINE, SERVED, ("", ""), "A and B have no scenario in common"),
    (
        ONE + ONE.replace("one", "two") + OFFLINE,
        ONE + OFFLINE,
        ("", ""),
        "2 engine entries; write a.mlperf.toml::LABEL with one of: one-fp32, two-fp32",
    ),
    (
        H200.replace('"H200"]', '"H200", "H100"]') + OFFLINE,
        ONE + OFFLINE,
        ("", ""),
        "A runs on H200, H100, B on cpu; name one each: FILE::LABEL-ACCELERATOR",
    ),
]


@pytest.mark.process
def test_what_proves_nothing_is_refused_before_it_is_measured(here: Path, say: Say) -> None:
    for a, b, change, message in REFUSED:
        files = write("a", a), write("b", text=(SUITE + b).replace(*change))
        assert differing(say, [(("turns", *files), 2, (message,))]) == []
    for name in "su":
        write(name, ONE, OFFLINE)
    s, t, u = (f"{name}.mlperf.toml" for name in "stu")
    absent = [null(name, more='accelerators = ["Z9000"]') for name in ("one", "two")]
    v = write("v", *absent, OFFLINE, "[accelerators.Z9000]\n")
    rows: list[tuple[tuple[object, ...], int, tuple[str, ...]]] = [
        (("turns", s, s), 2, ("A and B are the same engine entry",)),
        (("turns", s, f"{s}::one-cpu"), 2, ("A and B are the same engine entry",)),
        (("turns", s, f"{s}::two"), 2, (f"{s}: no engine entry named 'two'; known: one, one",)),
        (("turns", t, s), 2, (f"{t} does not exist",)),
        (
            ("turns", s, u, "--case", "x"),
            2,
            ("no case 'x' on both sides; known: mine-Offline-one-fp32-cpu",),
        ),
        (("turns", f"{v}::one", f"{v}::two"), 3, ("accelerator Z9000 is not on this machine",)),
    ]
    assert differing(say, rows) == []
    assert not list(here.glob(".mlperf/runs/*/*"))
