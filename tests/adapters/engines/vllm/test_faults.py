"""What can go wrong in vLLM ends in one clear error, and leaves no process behind."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.serving import descendants
from pytest_mlperf.adapters.engines.vllm import _library as processes
from pytest_mlperf.adapters.engines.vllm._library import VLLM_ENVIRONMENT
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError
from tests.adapters.engines.recording import Recorder, ask
from tests.adapters.engines.vllm.conftest import forget
from tests.adapters.engines.vllm.running import describe, open_engine
from tests.refusals import unrefused

pytestmark = pytest.mark.usefixtures("standin")

PROMPTS = [[9], [8], [7], [6]]


def version() -> str:
    return str(importlib.import_module("vllm").__version__)


def faulty(fault: str) -> dict[str, Any]:
    return {"engine_args": {"additional_config": {"fault": fault}}}


@pytest.mark.process
def test_a_fault_ends_the_run(counting: Path) -> None:
    """Never a fast result: whatever was promised and did not come is an error."""
    processes_at_start = set(descendants())
    for fault, message in {
        "dies": "vLLM failed sample 2 of the data set: EngineDeadError: EngineCore encountered",
        "aborts": "was stopped by vLLM after 1 tokens: finish_reason is 'abort'",
        "early": "ms before vLLM's own time stamp: one of the two clocks",
        "miscounts": "tokens in the answer, but 4 came",
        "foreign_end": "ended with token 0, which is not an end token of the model (2)",
    }.items():
        with (
            pytest.raises(RunError, match=re.escape(message)),
            open_engine(counting, PROMPTS, **faulty(fault)) as engine,
        ):
            ask(engine, Recorder(expected=len(PROMPTS)), len(PROMPTS))
        assert set(descendants()) <= processes_at_start


@pytest.mark.process
def test_the_offline_api_says_which_batch_it_was(counting: Path) -> None:
    with (
        open_engine(counting, PROMPTS, api="offline", **faulty("dies")) as engine,
        pytest.raises(RunError, match="vLLM failed a batch of 4 samples: RuntimeError"),
    ):
        ask(engine, Recorder(expected=4, times_tokens=False), 4)


@pytest.mark.process
def test_missing_stamps_compare_nothing(counting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_engine(counting, PROMPTS, **faulty("silent")) as engine:
        ask(engine, Recorder(expected=4), 4)
        engine.unload_samples(range(4))

    assert "stamps" not in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.parametrize("api", ["async", "offline"])
def test_a_deaf_process_is_ended(counting: Path, monkeypatch: pytest.MonkeyPatch, api: str) -> None:
    monkeypatch.setattr(processes.ChildTracker.end, "__defaults__", (0.1,))
    processes_at_start = set(descendants())
    with open_engine(counting, PROMPTS, api=api, **faulty("deaf")):
        assert len(set(descendants()) - processes_at_start) == 1

    assert set(descendants()) <= processes_at_start


def test_a_failed_load_says_why(counting: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError) as error:
        describe(counting, **faulty("load"))

    assert str(error.value) == (
        f"vLLM {version()} cannot load the model: RuntimeError: Engine core initialization failed. "
        "See root cause above.; its process said: ValueError: No available memory for the cache "
        "blocks."
    )
    assert "(EngineCore pid=1) ERROR" in capfd.readouterr().err


def test_an_engine_argument_that_vllm_does_not_have_is_refused_by_name(counting: Path) -> None:
    """Those that older versions had, too: swap_space went between 0.17 and 0.20."""
    rows = [
        (name, f"engine vllm: vLLM {version()} has no engine argument {name}{more}")
        for name, more in (("swap_space", ""), ("max_num_sequence", "; did you mean max_num_seqs?"))
    ]
    assert unrefused(lambda name: describe(counting, engine_args={name: 4}), SuiteError, rows) == []


def test_a_vllm_that_is_too_old_or_cannot_be_imported_is_named(
    counting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_VLLM_VERSION", "0.17.0")
    with pytest.raises(EnvironmentFault, match=r"needs vLLM 0.20 or newer, but this is 0.17.0"):
        describe(counting)
    forget()
    (tmp_path / "vllm").mkdir()
    broken = 'raise RuntimeError("operator torchvision::nms does not exist")'
    (tmp_path / "vllm" / "__init__.py").write_text(broken, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(EnvironmentFault, match="vLLM cannot be imported here: RuntimeError: op"):
        describe(counting)


@pytest.mark.process
def test_vllm_stays_off_the_network(counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*VLLM_ENVIRONMENT, *(name for name in os.environ if name.startswith("VLLM_"))]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/home/me")

    with open_engine(counting, PROMPTS) as engine:
        facts = engine.describe()
        inside = {name: os.environ.get(name) for name in VLLM_ENVIRONMENT}

    assert inside == dict(VLLM_ENVIRONMENT)
    assert not set(VLLM_ENVIRONMENT) & set(os.environ)
    environment_facts = {
        name: value for name, value in facts.items() if name.startswith("environment.")
    }
    assert environment_facts == {"environment.VLLM_LOGGING_LEVEL": "DEBUG"}


def test_an_unfit_model_is_refused_before_loading(counting: Path, tmp_path: Path) -> None:
    config = json.loads((counting / "config.json").read_text("utf-8"))
    fp8 = {"quantization_config": {"quant_method": "fp8"}}
    changes: list[tuple[dict[str, Any], str]] = [
        ({"eos_token_id": None}, "names an eos_token_id, so no answer would end"),
        ({"vocab_size": None}, "names no vocab_size"),
        (fp8, r"config\.json says fp8; set precision"),
    ]
    for change, message in changes:
        (tmp_path / "config.json").write_text(json.dumps(config | change), "utf-8")
        with pytest.raises(SuiteError if change is fp8 else RunError, match=message):
            describe(tmp_path)
