"""What a user reads who made a mistake in a suite file."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.suite import rules
from pytest_mlperf.suite.load import MAX_BYTES, load_suite
from pytest_mlperf.suite.pairs import plan_pairs
from pytest_mlperf.suite.plan import plan_suite
from tests.suite.texts import DEFECTS, SUITE, Defect, with_

FILE = Path("s.mlperf.toml")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)
    new = {"uuid": "GPU-1", "gpu": "NVIDIA R900", "mig": None}
    monkeypatch.setattr(rules, "detect", lambda *, gpus: Machine(cpu={}, gpus=(new,) * gpus))


def defects(text: str | bytes) -> list[str]:
    """Return the lines of the error, without the name of the file they all begin with."""
    FILE.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SuiteError) as caught:
        plan_pairs(plan_suite(FILE))
    lines = str(caught.value).split("\n")
    assert all(line.startswith(f"{FILE}:") for line in lines)
    return [line.removeprefix(f"{FILE}:") for line in lines]


@pytest.mark.parametrize("rule", sorted({defect.rule for defect in DEFECTS}))
def test_a_mistake_is_reported_at_its_line(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLPERF_NOWHERE", raising=False)
    of_rule = [defect for defect in DEFECTS if defect.rule == rule]

    assert [messages_of(each) for each in of_rule] == [each.messages for each in of_rule]


def messages_of(defect: Defect) -> list[str]:
    """Return the messages about a suite, without the parts that the expected ones leave out."""
    if not defect.messages:
        FILE.write_text(defect.text, "utf-8")
        assert plan_suite(FILE)
        return []
    return [
        expected if expected.endswith("…") and message.startswith(expected[:-1]) else message
        for message, expected in zip_longest(defects(defect.text), defect.messages, fillvalue="")
    ]


def test_an_accelerator_that_this_machine_reports_is_known() -> None:
    FILE.write_text(with_(('["cpu"]', '["R900", "8xR900", "cpu"]')), "utf-8")
    assert [one.case.accelerator for one in plan_suite(FILE)] == ["R900", "8xR900", "cpu"]
    (message,) = defects(with_(('["cpu"]', '["R901"]')))
    assert message.startswith("11: engines[0].accelerators: unknown accelerator 'R901'; ")


ON = """\
[engines.on."8xH200"]
replicas = 4
options = { tensor_parallel_size = 2 }
"""


def test_an_accelerator_may_have_options_of_its_own() -> None:
    of_entry = "max_num_seqs = 4, tensor_parallel_size = 1"
    text = with_(
        ('use = "null"', 'use = "vllm"\nmodel = "m"\nprecision = "fp16"'),
        ('accelerators = ["cpu"]', 'accelerators = ["H200", "8xH200"]'),
        ("options = { latency_s = 0.001 }\n", f"options = {{ {of_entry} }}\n{ON}"),
    )
    FILE.write_text(text, "utf-8")

    of_one, of_eight = plan_suite(FILE)

    assert of_one.options == {"max_num_seqs": 4, "tensor_parallel_size": 1}
    assert of_eight.options == {"max_num_seqs": 4, "tensor_parallel_size": 2}
    assert of_one.engine.replicas_on("H200") == 1
    assert of_eight.engine.replicas_on("8xH200") == 4


EMPTY = " the suite is empty; write a first one: pytest-mlperf init"
DEEP = " not TOML: nested too deeply (more than 50 levels)"
DIGITS = (
    " not TOML: Exceeds the limit (4300 digits) for integer string conversion: "
    "value has 5000 digits"
)
LARGE = " this is larger than 4 MiB, the maximum; a suite is a TOML file for one workload"
PARTS = " not TOML: a dotted key has more than 16 parts"
SAVE = "save the file as UTF-8"

NO_SUITES: tuple[tuple[bytes, str], ...] = (
    (b"", EMPTY),
    (b"\n# nothing\n", EMPTY),
    (b"\x7fELF\0\0", " this is a binary file, not a suite in TOML"),
    (SUITE.replace("mine", "Zoë").encode("latin-1"), f"6: not UTF-8 (byte 0xeb); {SAVE}"),
    (SUITE.encode("utf-16"), f"1: not UTF-8 (byte 0xff); {SAVE}"),
    (b"profile = quick\n", "1: not TOML: Invalid value: 'profile = quick'"),
    (
        b"schema = 1\n<<<<<<< HEAD\nround = 1\n=======\nround = 2\n>>>>>>> speed-up\n",
        "2: a merge conflict of 'HEAD' and 'speed-up'; keep the right lines, and delete "
        "the markers (<<<<<<<, =======, >>>>>>>)",
    ),
    (b"schema = 1\nschema = 1\n", "2: not TOML: Cannot overwrite a value: 'schema = 1'"),
    (b'schema = 1\nround = "v4.1', "2: not TOML: Unterminated string: 'round = \"v4.1'"),
    (b"a = " + b"[" * 9000, DEEP),
    (b"a = " + b"[" * 60 + b"]" * 60, DEEP),
    (b"x" + b".x" * 2000 + b" = 1\n", PARTS),
    (b"a = 1\nb = " + b"9" * 5000, DIGITS),
    (b"#" * (MAX_BYTES + 1), LARGE),
)


def test_invalid_suites_are_one_line(tmp_path: Path) -> None:
    assert [defects(content) for content, _ in NO_SUITES] == [[text] for _, text in NO_SUITES]
    text = with_(('"v4.1"', f"[{', '.join(['1'] * 1000)}]"))
    assert defects(text) == ["2: round: must be a string, not [1, 1, 1, 1, 1, 1, ...]"]
    (message,) = defects(with_(more='of_best_published = "50 %"\n'))
    assert message.startswith(
        "20: limits.of_best_published: no official result for workload 'mine'; known: 3d-unet-99,"
    )
    with pytest.raises(SuiteError, match=r"a folder; a suite is"):
        load_suite(tmp_path)
    with pytest.raises(SuiteError, match=r"gone.mlperf.toml: cannot be read: No such file"):
        load_suite(tmp_path / "gone.mlperf.toml")


def test_how_an_editor_saved_a_suite_does_not_matter() -> None:
    rows = [
        b"\xef\xbb\xbf" + SUITE.encode(),  # byte order mark
        SUITE.replace("\n", "\r\n").encode(),
        SUITE.encode() + b"#" * 100_000,  # no newline at the end
    ]
    for content in rows:
        FILE.write_bytes(content)
        (planned,) = plan_suite(FILE)
        assert planned.case.id == "mine-Offline-null-fp32-cpu"
        assert planned.line == 9


CURVE = with_(('name = "Offline"\ntarget_qps = 100', 'name = "Concurrency"\npoints = [1, 8]'))
OPEN = CURVE.replace('"Concurrency"', '"OpenLoop"').replace("[1, 8]", "[0.5, 2.0]")


def test_an_open_loop_is_judged_by_its_times() -> None:
    (defect,) = defects(OPEN + '\n[scenarios.limits]\n"throughput@2" = { max_drop = "5%" }\n')

    refused, _, known_metrics = defect.partition(
        "throughput@2 cannot be gated in OpenLoop; known: "
    )
    assert refused.endswith("limits.'throughput@2': ")
    assert "itl_p50, itl_p50@0.5, itl_p50@2, itl_p90" in known_metrics
    assert "throughput" not in known_metrics
    more = '[scenarios.limits]\n"latency_p90@0.5" = { max_rise = "9%" }\n'
    FILE.write_text(OPEN.replace("\n[limits]", f"{more}\n[limits]"))

    (planned,) = plan_suite(FILE)
    assert planned.limits == {
        "latency_p50": 0.05,
        "latency_p50@0.5": 0.05,
        "latency_p50@2": 0.05,
        "latency_p90@0.5": 0.09,
    }


ACCEPTANCE = 'draft_acceptance = { max_drop = "2%" }\n'


def test_metrics_of_a_server_are_gated_where_limits_name_them() -> None:
    """In `[limits]` or in a scenario's; of a curve at its points, which have no mean."""
    at_8 = '"draft_acceptance@8" = { max_drop = "9%" }\n'
    usual, curve = (
        {"throughput": 0.03},
        {"throughput": 0.03, "throughput@1": 0.05, "throughput@8": 0.05},
    )
    both = {"draft_acceptance@1": 0.02, "draft_acceptance@8": 0.02}
    for suite, of_suite, of_scenario, limits in (
        (SUITE, "", "", usual),
        (SUITE, ACCEPTANCE, "", {**usual, "draft_acceptance": 0.02}),
        (SUITE, "", ACCEPTANCE, {**usual, "draft_acceptance": 0.02}),
        (CURVE, ACCEPTANCE, "", {**curve, **both}),
        (CURVE, "", ACCEPTANCE, {**curve, **both}),
        (CURVE, ACCEPTANCE, at_8, {**curve, **both, "draft_acceptance@8": 0.09}),
        (CURVE, at_8, "", {**curve, "draft_acceptance@8": 0.09}),
    ):
        more = f"[scenarios.limits]\n{of_scenario}\n[limits]\n{of_suite}"
        FILE.write_text(suite.replace("[limits]\n", more))
        (planned,) = plan_suite(FILE)
        assert planned.limits == limits


def test_a_limit_of_a_server_metric_that_holds_nothing_is_a_defect() -> None:
    for suite, limits, defect in (
        (
            SUITE,
            'draft_length = { max_rise = "5%" }',
            "draft_length is higher-is-better: write dra",
        ),
        (
            SUITE,
            '"draft_length@8" = { max_drop = "5%" }',
            "no scenario measures draft_length@8: co",
        ),
        (
            CURVE,
            '"draft_length@4" = { max_drop = "5%" }',
            "no scenario measures draft_length@4: co",
        ),
        (
            SUITE,
            'draft_lenght = { max_drop = "5%" }',
            "unknown metric 'draft_lenght'; did you mean",
        ),
        (SUITE, 'waiting = { max_rise = "5%" }', "unknown metric 'waiting'"),
    ):
        (text,) = defects(suite.replace("[limits]\n", f"[limits]\n{limits}\n"))
        assert defect in text


def test_a_curve_is_judged_by_its_mean_and_by_every_point() -> None:
    """A point has its own limit, else the wider of the mean's and the metric's."""
    for mean, at_1 in (("", 0.05), ("2%", 0.05), ("30%", 0.3)):
        more = '[scenarios.limits]\n"throughput@8" = { max_drop = "9%" }\n'
        more += f'throughput = {{ max_drop = "{mean}" }}\n' if mean else ""
        FILE.write_text(CURVE.replace("\n[limits]", f"{more}\n[limits]"))
        (planned,) = plan_suite(FILE)
        of_mean = float(mean.rstrip("%") or 3) / 100
        expected = {"throughput": of_mean, "throughput@1": at_1, "throughput@8": 0.09}
        assert planned.limits == expected
    assert planned.seconds_per_run == 120
