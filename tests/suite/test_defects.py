"""What a user reads who made a mistake in a suite file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.suite.load import MAX_BYTES, load_suite
from pytest_mlperf.suite.pairs import plan_pairs
from pytest_mlperf.suite.plan import plan_suite
from tests.suite.texts import DEFECTS, SUITE, with_

FILE = Path("s.mlperf.toml")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)


def defects(text: str | bytes) -> list[str]:
    """Return the lines of the error, without the name of the file they all begin with."""
    FILE.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SuiteError) as caught:
        plan_pairs(plan_suite(FILE))
    lines = str(caught.value).split("\n")
    assert all(line.startswith(f"{FILE}:") for line in lines)
    return [line.removeprefix(f"{FILE}:") for line in lines]


@pytest.mark.parametrize("rule", sorted({defect.rule for defect in DEFECTS}))
def test_a_mistake_is_told_at_its_line(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLPERF_NOWHERE", raising=False)
    of_rule = [defect for defect in DEFECTS if defect.rule == rule]

    assert [defects(defect.text) for defect in of_rule] == [each.messages for each in of_rule]


def test_a_long_value_is_told_by_its_beginning() -> None:
    text = with_(('"v4.1"', f"[{', '.join(['1'] * 1000)}]"))

    assert defects(text) == ["2: round: must be a string, not [1, 1, 1, 1, 1, 1, ...]"]


def assert_one_defect(text: str, message: str | None) -> None:
    """Hold a suite to one defect, which holds a message; None: it has none."""
    if message is None:
        FILE.write_text(text, "utf-8")
        assert plan_suite(FILE)
    else:
        (found,) = defects(text)
        assert message in found


def test_a_share_of_the_best_official_result_needs_a_workload_of_mlperfs() -> None:
    (message,) = defects(with_(more='of_best_published = "50 %"\n'))

    assert message.startswith(
        "20: limits.of_best_published: no official result is of workload 'mine'; known: 3d-unet-99,"
    )


@pytest.mark.parametrize(
    ("use", "options", "accelerators", "message"),
    [
        (
            "vllm",
            "",
            '["H200", "8xH200"]',
            "engines[0].accelerators: replicas = 1 x tensor_parallel_size = 1 x "
            'pipeline_parallel_size = 1 use 1 GPU, but "8xH200" has 8: speed and energy are those '
            "of all of them; set replicas = 8, or tensor_parallel_size so that the product is 8, "
            "or accelerators to as many as are used",
        ),
        ("vllm", "tensor_parallel_size = 2", '["H200"]', 'use 2 GPUs, but "H200" has 1: speed'),
        ("vllm", "tensor_parallel_size = 4, pipeline_parallel_size = 2", '["8xH200"]', None),
        (
            "vllm",
            "tensor_parallel_size = 4, engine_args = { data_parallel_size = 2 }",
            '["8xH200"]',
            None,
        ),
        (
            "vllm",
            "tensor_parallel_size = 4, engine_args = { prefill_context_parallel_size = 2 }",
            '["4xH200"]',
            "x engine_args.prefill_context_parallel_size = 2 use 8 GPUs, but",
        ),
        (
            "vllm",
            'tensor_parallel_size = 4, engine_args = { data_parallel_size = "2" }',
            '["8xH200"]',
            "engines[0].options.engine_args: engine_args.data_parallel_size = '2' is not a whole "
            "number from 1 on",
        ),
        ("vllm", "tensor_parallel_size = 2", '["cpu"]', None),
        ("tensorrt_llm", "", '["2xH200"]', "replicas = 1 x tensor_parallel_size = 1 x"),
        ("tensorrt_llm", "llm = { context_parallel_size = 2 }", '["2xH200"]', None),
        (
            "tensorrt_llm",
            "tensor_parallel_size = 8, llm = { enable_attention_dp = true }",
            '["8xH200"]',
            None,
        ),
        (
            "tensorrt_llm",
            "tensor_parallel_size = 4, llm = { enable_attention_dp = true }",
            '["8xH200"]',
            "tensor_parallel_size = 4 x pipeline_parallel_size = 1 use 4 GPUs, but",
        ),
        (
            "tensorrt_llm",
            "llm = { enable_attention_dp = true }",
            '["8xH200"]',
            "adds no GPUs: set tensor_parallel_size to the GPUs of one copy of the model, it is 1",
        ),
        (
            "tensorrt_llm",
            "tensor_parallel_size = 8, llm = { moe_expert_parallel_size = 8 }",
            '["8xH200"]',
            None,
        ),
        ("null", "", '["8xH200"]', None),
    ],
)
def test_parallelism_must_use_the_gpus_of_the_accelerator(
    use: str, options: str, accelerators: str, message: str | None
) -> None:
    """Others would be leased and counted for nothing, or the engine would fail late."""
    text = with_(
        ('use = "null"', f'use = "{use}"\nmodel = "m"\nprecision = "fp16"'),
        ('accelerators = ["cpu"]', f"accelerators = {accelerators}"),
        ("options = { latency_s = 0.001 }", f"options = {{ {options} }}"),
    )
    assert_one_defect(text, message)


CUDA = 'device = "cuda"'


@pytest.mark.parametrize(
    ("use", "replicas", "options", "accelerators", "message"),
    [
        ("null", "8", "", '["8xH100"]', None),
        ("null", '"all"', "", '["8xH100", "H200", "cpu"]', None),
        ("null", "3", "", '["cpu"]', None),
        (
            "null",
            "3",
            "",
            '["8xH100"]',
            'engines[0].replicas: 3 replicas do not divide the GPUs of "8xH100": write 1, 2, '
            '4, 8, or "all" for one on each GPU',
        ),
        ("null", "2", "", '["H100"]', "2 replicas do not divide"),
        (
            "null",
            "0",
            "",
            '["cpu"]',
            "engines[0].replicas: 0 is no number of replicas; write one from 1 to 256, or "
            '"all" for one on each GPU',
        ),
        ("null", '"many"', "", '["cpu"]', "engines[0].replicas: 'many' is no number of replicas"),
        (
            "openai",
            "2",
            'url = "http://127.0.0.1:1"',
            '["cpu"]',
            "engine 'openai' is a client of a server, which has replicas of its own: leave "
            "replicas out",
        ),
        (
            "openai",
            '"all"',
            'url = "http://127.0.0.1:1"',
            '["cpu"]',
            "engines[0].replicas: engine 'openai' is a client of a server, which has replicas",
        ),
        ("vllm", "4", "tensor_parallel_size = 2", '["8xH200"]', None),
        (
            "vllm",
            "2",
            "tensor_parallel_size = 2",
            '["8xH200"]',
            "replicas = 2 x tensor_parallel_size = 2 x pipeline_parallel_size = 1 use 4 GPUs, but "
            '"8xH200" has 8: speed and energy are those of all of them; set replicas = 4, or',
        ),
        ("torch", '"all"', CUDA, '["8xH200"]', None),
        ("torch", "1", CUDA, '["8xH200"]', 'replicas = 1 use 1 GPU, but "8xH200" has 8: speed'),
        ("torch", "4", CUDA, '["8xH200"]', "engines[0].replicas: replicas = 4 use 4 GPUs, but"),
    ],
)
def test_replicas_share_the_gpus_of_the_accelerator(
    use: str, replicas: str, options: str, accelerators: str, message: str | None
) -> None:
    text = with_(
        ('use = "null"', f'use = "{use}"\nmodel = "m"\nprecision = "fp16"\nreplicas = {replicas}'),
        ('accelerators = ["cpu"]', f"accelerators = {accelerators}"),
        ("options = { latency_s = 0.001 }", f"options = {{ {options} }}"),
    )
    if message is None:
        FILE.write_text(text, "utf-8")
        assert plan_suite(FILE)
    else:
        assert any(message in line for line in defects(text))


@pytest.mark.parametrize("accelerator", ["8xH200", "cpu"])
def test_one_query_at_a_time_is_nothing_for_several_gpus(accelerator: str) -> None:
    text = with_(
        ('accelerators = ["cpu"]', f'replicas = 8\naccelerators = ["{accelerator}"]'),
        ('name = "Offline"\ntarget_qps = 100', 'name = "SingleStream"'),
        ("throughput = { max_drop", "latency_p90 = { max_rise"),
    )
    message = "SingleStream asks one query at a time, which one of the replicas on"
    assert_one_defect(text, None if accelerator == "cpu" else message)


@pytest.mark.parametrize(
    ("use", "options", "accelerator", "message"),
    [
        ("torch", 'device = "cuda"', "8xH200", None),
        ("torch", 'device = "cuda:0"', "H200", None),
        (
            "torch",
            'device = "cuda:3"',
            "8xH200",
            "options.device: device means GPU 3, but of those that each process of "
            '"8xH200" sees there is GPU 0 alone, whatever their numbers outside',
        ),
        ("torch", "", "H200", 'device means the CPU, and the GPUs of "H200" would idle'),
        (
            "torch",
            'device = "cuda"',
            "cpu",
            'device means a GPU: name that in accelerators, not "cpu"',
        ),
        ("onnxruntime", 'providers = ["cuda", "cpu"]', "H200", None),
        ("onnxruntime", 'providers = ["openvino"]', "cpu", None),
        ("onnxruntime", 'providers = ["cuda"]', "cpu", "providers means a GPU: name"),
        ("onnxruntime", "", "H200", "providers means the CPU, and the GPUs of"),
        (
            "onnxruntime",
            'providers = ["cuda"], provider_options = { cuda = { device_id = 1 } }',
            "H200",
            "provider_options means GPU 1, but of those",
        ),
        (
            "onnxruntime",
            'providers = ["tensorrt", "cuda"], provider_options = { cuda = { device_id = 1 } }',
            "H200",
            "provider_options means GPU 1, but of those",
        ),
        ("tensorrt", "device = 1", "H200", "device means GPU 1, but of those"),
        ("tensorrt", "", "H200", None),
    ],
)
def test_an_engine_works_on_what_its_accelerator_is(
    use: str, options: str, accelerator: str, message: str | None
) -> None:
    """Else it would fail once it loads, or its figures would be those of another machine."""
    text = with_(
        ('use = "null"', f'use = "{use}"\nreplicas = "all"\nmodel = "m"\nprecision = "fp16"'),
        ('accelerators = ["cpu"]', f'accelerators = ["{accelerator}"]'),
        ("options = { latency_s = 0.001 }", f"options = {{ {options} }}"),
    )
    assert_one_defect(text, message)


ON = """
[engines.on."8xH200"]
replicas = 4
options = {{ {options} }}
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("tensor_parallel_size = 2", None),
        ("tensor_parallel_size = 4", "engines[0].accelerators: replicas = 4 x tensor_parallel"),
        ("tensor_parallel = 2", "engines[0].on.8xH200.options: engine 'vllm' has no option"),
        ("tensor_parallel_size = 2, api = 1", "engines[0].on.8xH200.options.api: api is 1; text"),
    ],
)
def test_an_accelerator_may_have_options_of_its_own(options: str, message: str | None) -> None:
    """They win over the entry's; the line that a message gets is the one they are written in."""
    text = with_(
        ('use = "null"', 'use = "vllm"\nmodel = "m"\nprecision = "fp16"'),
        ('accelerators = ["cpu"]', 'accelerators = ["H200", "8xH200"]'),
        (
            "options = { latency_s = 0.001 }\n",
            "options = { max_num_seqs = 4, tensor_parallel_size = 1 }" + ON.format(options=options),
        ),
    )
    if message is None:
        FILE.write_text(text, "utf-8")
        one, eight = plan_suite(FILE)
        assert one.options == {"max_num_seqs": 4, "tensor_parallel_size": 1}
        assert eight.options == {"max_num_seqs": 4, "tensor_parallel_size": 2}
        assert (
            one.engine.replicas_on("H200"),
            eight.engine.replicas_on("8xH200"),
        ) == (1, 4)
    else:
        (found,) = defects(text)
        assert message in found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", " the suite is empty; `pytest-mlperf init` writes one to start from"),
        pytest.param(
            b"\n# nothing\n", " the suite is empty; `pytest-mlperf init` writes one to start from"
        ),
        pytest.param(b"\x7fELF\0\0", " this is a binary file, not a suite in TOML"),
        pytest.param(
            SUITE.replace("mine", "Zoë").encode("latin-1"),
            "6: not UTF-8 (byte 0xeb); save the file as UTF-8",
        ),
        pytest.param(SUITE.encode("utf-16"), "1: not UTF-8 (byte 0xff); save the file as UTF-8"),
        pytest.param(b"profile = quick\n", "1: not TOML: Invalid value"),
        pytest.param(
            b"schema = 1\nschema = 1\n", "2: not TOML: Cannot overwrite a value", id="twice"
        ),
        pytest.param(b'schema = 1\nround = "v4.1', "2: not TOML: Unterminated string", id="cut"),
        pytest.param(b"a = " + b"[" * 9000, " nested too deeply (more than 50 levels)", id="deep"),
        pytest.param(
            b"a = " + b"[" * 60 + b"]" * 60, " nested too deeply (more than 50 levels)", id="60"
        ),
        pytest.param(
            b"x" + b".x" * 2000 + b" = 1\n", " nested too deeply (more than 50 levels)", id="dots"
        ),
        pytest.param(
            b"a = 1\nb = " + b"9" * 5000,
            " not TOML: Exceeds the limit (4300 digits) for integer string conversion: "
            "value has 5000 digits",
            id="digits",
        ),
        pytest.param(
            b"#" * (MAX_BYTES + 1),
            " 4.0 MiB is too large for a suite (at most 4 MiB); split it, one workload a file",
            id="large",
        ),
    ],
)
def test_what_is_no_suite_is_said_in_one_line(content: bytes, message: str) -> None:
    assert defects(content) == [message]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"cannot be read: Is a directory$"):
        load_suite(tmp_path)
    with pytest.raises(SuiteError, match=r"gone.mlperf.toml: cannot be read: No such file"):
        load_suite(tmp_path / "gone.mlperf.toml")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xef\xbb\xbf" + SUITE.encode(), id="byte order mark"),
        pytest.param(SUITE.replace("\n", "\r\n").encode(), id="lines end as on Windows"),
        pytest.param(SUITE.encode() + b"#" * 100_000, id="no newline at the end"),
    ],
)
def test_how_an_editor_saved_a_suite_does_not_matter(content: bytes) -> None:
    FILE.write_bytes(content)

    (planned,) = plan_suite(FILE)

    assert planned.case.id == "mine-Offline-null-fp32-cpu"
    assert planned.line == 9


CURVE = with_(('name = "Offline"\ntarget_qps = 100', 'name = "Concurrency"\npoints = [1, 8]'))
OPEN = CURVE.replace('"Concurrency"', '"OpenLoop"').replace("[1, 8]", "[0.5, 2.0]")


def test_the_throughput_of_an_open_loop_is_what_was_offered() -> None:
    (defect,) = defects(OPEN + '\n[scenarios.limits]\n"throughput@2" = { max_drop = "5%" }\n')

    refused, _, known = defect.partition("throughput@2 cannot be gated in OpenLoop; known: ")
    assert refused.endswith("limits.'throughput@2': ")
    assert "itl_p50, itl_p50@0.5, itl_p50@2, itl_p90" in known
    assert "throughput" not in known


def test_an_open_loop_is_judged_by_its_times() -> None:
    more = '[scenarios.limits]\n"latency_p90@0.5" = { max_rise = "9%" }\n'
    FILE.write_text(OPEN.replace("\n[limits]", f"{more}\n[limits]"))

    (planned,) = plan_suite(FILE)

    assert planned.limits == {
        "latency_p50": 0.05,
        "latency_p50@0.5": 0.05,
        "latency_p50@2": 0.05,
        "latency_p90@0.5": 0.09,
    }


def test_a_curve_is_judged_by_its_mean_and_by_every_point() -> None:
    more = '[scenarios.limits]\n"throughput@8" = { max_drop = "9%" }\n'
    FILE.write_text(CURVE.replace("\n[limits]", f"{more}\n[limits]"))

    (planned,) = plan_suite(FILE)

    assert planned.limits == {"throughput": 0.03, "throughput@1": 0.05, "throughput@8": 0.09}
    assert planned.seconds_per_run == 120
