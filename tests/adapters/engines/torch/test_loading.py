"""Test that the engine loads exactly the model of the suite, and refuses others in one sentence."""

from __future__ import annotations

import hashlib
import shutil
import socket
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import LlamaForCausalLM
from transformers.utils import is_flash_attn_2_available as has_flash_attention

from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError
from tests.adapters.engines.recording import Recorder, ask
from tests.adapters.engines.torch.models import (
    answers,
    broken_but_accepted,
    change_json,
    config_with,
    describe,
    json_with,
    open_engine,
    text_of,
    weights_with,
    without,
)
from tests.refusals import unrefused

WEIGHTS = "model.safetensors"


def start_of_sha256(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


@pytest.fixture
def copy(counting: Path, tmp_path: Path) -> Path:
    """A folder of the counting model that a test may break."""
    return Path(shutil.copytree(counting, tmp_path / "model"))


@pytest.mark.skipif(has_flash_attention(), reason="flash attention is installed")
def test_attention_that_is_not_here_is_refused(counting: Path) -> None:
    """transformers' own reason is kept."""
    with pytest.raises(EnvironmentFault, match="attention = 'flash_attention_2' cannot be used"):
        describe(counting, attention="flash_attention_2")


def cut(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1000])


def shard(folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    model.save_pretrained(folder, max_shard_size="300KB")


def lose_a_shard(folder: Path) -> None:
    shard(folder)
    next(folder.glob("model-00002-of-*")).unlink()


def break_index(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "model.safetensors.index.json").write_text("{}", "utf-8")


def to_bin(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def set_nan(tensors: dict[str, Any]) -> None:
    tensors["model.norm.weight"][0] = float("nan")


NAME = "model.layers.0.mlp.up_proj.weight"

BROKEN = [
    (without(WEIGHTS), r'no model\.safetensors; copy it here, or set weights = "dummy"'),
    (cut, r"model\.safetensors: is cut short or is not a safetensors file"),
    (
        text_of(WEIGHTS, "not weights" * 100),
        "model.safetensors: is cut short or is not a safetensors",
    ),
    (lose_a_shard, r"model-00002-of-\d+\.safetensors: is missing, but .*index\.json names it"),
    (break_index, r"index\.json: is not an index of safetensors files"),
    (to_bin, r"weights only as \.bin files, .* convert them once"),
    (weights_with(lambda tensors: tensors.pop(NAME)), f"the checkpoint lacks {NAME}"),
    (
        weights_with(lambda tensors: tensors.update({NAME: torch.zeros(3, 320)})),
        f"do not fit config.json: {NAME} is [3, 320] and should be [640, 320]",
    ),
    (weights_with(set_nan), "the model's outputs are NaN in float32"),
    (config_with(architectures=["BertModel"]), "BertModel in config.json is not a causal lang"),
    (
        config_with(architectures=None),
        ("config.json names no architecture; this engine runs models"),
    ),
    (config_with(model_type="unheard-of"), r"transformers cannot read config\.json: .*unheard-of"),
    (
        config_with(model_type="own", auto_map={"AutoConfig": "code.Own"}),
        r"transformers cannot read config\.json: .*custom code",
    ),
    (text_of("config.json", "{"), "config.json: is not a JSON object: "),
    (
        config_with(quantization_config={"quant_method": "gptq", "bits": 4}),
        "the weights are quantised in the format 'gptq'",
    ),
    (
        json_with("generation_config.json", eos_token_id=[2, 320]),
        "eos_token_id 320 is not in the model's vocabulary of 320 tokens",
    ),
    (text_of("generation_config.json", "{"), "generation_config.json: is not a JSON object"),
]


def test_a_broken_folder_is_refused_when_it_is_loaded(counting: Path, tmp_path: Path) -> None:
    """transformers would run many of these, with weights it makes up."""
    assert broken_but_accepted(counting, tmp_path, describe, BROKEN) == []


def test_end_tokens_are_those_of_generation_config_and_else_of_config(copy: Path) -> None:
    """As transformers itself has it; a model without is refused unless ends are ignored."""
    cases: list[tuple[Any, Any, str]] = [
        ([7, 2], 9, "2,7"), (5, 9, "5"), (None, 9, "9"), (None, [9, 4], "4,9"), (None, None, ""),
    ]  # fmt: skip
    for in_generation, in_config, expected in cases:
        change_json(copy / "generation_config.json", eos_token_id=in_generation)
        change_json(copy / "config.json", eos_token_id=in_config)
        if expected:
            assert describe(copy)["generation.eos"] == expected
            (row,) = answers(copy, [[20]], batching="static")
            assert row[-1] == max(map(int, expected.split(",")))
    with pytest.raises(RunError, match="names an eos_token_id"):
        describe(copy)
    assert describe(copy, ignore_eos=True)["generation.eos"] == "none"


def test_a_sample_that_is_no_prompt_is_named_before_the_run(counting: Path) -> None:
    """When samples are loaded, which LoadGen does not time."""
    table: list[tuple[Any, str]] = [
        ([], "is an empty prompt"),
        ([7, 320], "has token id 320, but the model's vocabulary has 320 tokens"),
        ([-1], "has token id -1"),
        (
            [9] * 400,
            "has 400 tokens, and max_new_tokens = 128 more do not fit the model's context of 512; "
            "set max_new_tokens to at most 112",
        ),
        ([9] * 512, "has 512 tokens and leaves no room for max_new_tokens = 128"),
        ("text", "is of type str"),
        ([5, 1.5], "is of type list; this engine takes text or lists"),
        (None, "is of type NoneType"),
        ({"ids": [5]}, "is of type dict"),
    ]

    def load(prompt: Any) -> None:
        first = "text" if prompt == [5, 1.5] else [5]
        with open_engine(counting, [first, prompt]) as engine:
            engine.load_samples([0, 1])

    rows = [(prompt, f"sample 1 of the data set {text}") for prompt, text in table]
    assert unrefused(load, RunError, rows) == []
    # An answer may fill the context.
    assert answers(counting, [[9] * 384], max_new_tokens=128) == [[8, 7, 6, 5, 4, 3, 2]]


def test_token_ids_need_no_tokenizer_and_text_does(endless: Path, copy: Path) -> None:
    describe(endless)
    (copy / "tokenizer.json").write_text("{}", "utf-8")
    for folder, problem in (
        (endless, r"has no tokenizer \(tokenizer\.json"),
        (copy, "transformers cannot read the tokenizer"),
    ):
        with pytest.raises(RunError, match=problem), open_engine(folder, ["text"]):
            pass


def test_a_prompt_is_cut_at_its_end_where_the_suite_says_so(counting: Path) -> None:
    """As MLPerf's GPT-J reference cuts articles; the model counts down from the last token."""
    outputs = answers(counting, [[7, 6, 5, 30, 40], [4]], max_prompt_tokens=3, max_new_tokens=9)

    assert outputs == answers(counting, [[7, 6, 5], [4]], max_new_tokens=9)
    key = "generation.max_prompt_tokens"
    assert describe(counting, max_prompt_tokens=3)[key] == "3"
    assert key not in describe(counting)


def test_a_cache_too_small_or_too_large_is_refused(counting: Path) -> None:
    """transformers would take 60 % of the memory, or fail inside its thread."""
    long = [[9] * 300]

    def load(blocks: int) -> None:
        with open_engine(counting, long, batching="continuous", kv_blocks=blocks) as engine:
            engine.load_samples([0])

    few = r"longest sample needs 428 .* kv_blocks to at least 2"
    many = r"100000000 blocks of 256 tokens does not fit into memory"
    assert unrefused(load, SuiteError, [(1, few)]) == []
    assert unrefused(load, RunError, [(10**8, many)]) == []
    assert answers(counting, long, batching="continuous", kv_blocks=2) == [[8, 7, 6, 5, 4, 3, 2]]


def test_continuous_batching_needs_psutil(counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, transformers would report that all memory is used."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(EnvironmentFault, match="on the CPU needs psutil"):
        describe(counting, batching="continuous")


def test_the_cache_of_continuous_batching_is_made_at_need(counting: Path) -> None:
    """Where only lists come, "auto" takes no memory for it: this one would never fit."""
    sink = Recorder(expected=2)
    with open_engine(counting, [[5], [9]], kv_blocks=10**8) as engine:
        ask(engine, sink, 2)
        with pytest.raises(RunError, match="does not fit into memory"):
            ask(engine, Recorder(expected=1), 1)

    assert sink.n_tokens == {100: 3, 101: 7}


def test_the_description_names_everything_that_decides_speed_and_answers(counting: Path) -> None:
    with open_engine(counting, ["text"], batch_size=4, min_new_tokens=3) as engine:
        described = engine.describe()

    tokenizer = [counting / name for name in ("tokenizer.json", "tokenizer_config.json")]
    assert described == {
        "engine": "torch",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "architecture": "LlamaForCausalLM",
        "dtype": "float32",
        "device": "cpu",
        "attention": "sdpa",
        "batching": "auto",
        "batch_size": "4",
        "work.batch": "4",
        "threads": "1",
        "weights_sha256": start_of_sha256(counting / WEIGHTS),
        "tokenizer_sha256": start_of_sha256(*tokenizer),
        "generation.max_new_tokens": "128",
        "generation.min_new_tokens": "3",
        "generation.num_beams": "1",
        "generation.ignore_eos": "false",
        "generation.eos": "2",
    }


def test_each_precision_computes_other_but_close_scores(random: Path) -> None:
    quantised = {"dtype": "float32", "torchao": version("torchao")}
    exact = None
    for precision, most, expected in (
        ("fp32", 0.0, {"dtype": "float32"}),
        ("bf16", 0.1, {"dtype": "bfloat16"}),
        ("fp16", 0.02, {"dtype": "float16"}),
        ("int8", 0.1, quantised),
        ("int4", 0.5, quantised),
    ):
        with open_engine(random, [[5]], precision=precision, batching="static") as engine:
            model = engine._work.__self__._text.model  # type: ignore[attr-defined]
            with torch.inference_mode():
                scores = model(input_ids=torch.arange(40)[None]).logits
            facts = engine.describe()
        names = {"dtype", "torchao", "tokenizer_sha256"} & set(facts)
        assert {name: facts[name] for name in names} == expected
        exact = scores if exact is None else exact
        assert torch.equal(exact, scores) is (precision == "fp32")
        assert float((exact - scores).abs().mean()) <= most * float(exact.std()), precision


def test_a_sharded_checkpoint_gives_the_same_answers(copy: Path) -> None:
    whole = answers(copy, [[12]])
    shard(copy)

    assert answers(copy, [[12]]) == whole
    files = sorted(copy.glob("model-*.safetensors"))
    assert len(files) > 1
    assert describe(copy)["weights_sha256"] == start_of_sha256(*files)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_dummy_weights_are_always_the_same(random: Path, tmp_path: Path, precision: str) -> None:
    shutil.copy(random / "config.json", tmp_path)
    state = torch.random.get_rng_state()
    options: dict[str, Any] = {"weights": "dummy", "precision": precision, "batching": "static"}
    first, second = (answers(tmp_path, [[5], [9, 6]], max_new_tokens=12, **options) for _ in "12")

    assert first == second
    assert len({*map(tuple, first)}) == 2
    assert torch.equal(torch.random.get_rng_state(), state)
    facts = describe(tmp_path, **options)
    assert facts["weights"] == "dummy"
    assert "weights_sha256" not in facts


def test_nothing_is_taken_from_the_network(counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    connections: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        connections.append(arguments)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for options in ({}, {"weights": "dummy"}, {"precision": "int8"}):
        with open_engine(counting, ["text"], **options):
            pass

    assert connections == []


@pytest.mark.parametrize("fails", [False, True])
def test_an_engine_leaves_torch_as_it_was(counting: Path, fails: bool) -> None:
    """Threads, types and switches are the process's own; so also when loading fails."""
    torch_state = (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
    bars = transformers.utils.logging.is_progress_bar_enabled()
    running = set(threading.enumerate())
    torch.set_num_threads(torch_state[0] + 1)
    try:
        if fails:
            with pytest.raises(EnvironmentFault):
                describe(counting, device="cuda:99")
        else:
            describe(counting, precision="bf16", batching="continuous")
        assert torch.get_num_threads() == torch_state[0] + 1
    finally:
        torch.set_num_threads(torch_state[0])

    assert (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    ) == torch_state
    assert transformers.utils.logging.is_progress_bar_enabled() is bars
    assert set(threading.enumerate()) <= running
