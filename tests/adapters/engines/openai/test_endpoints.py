"""Test MLCommons' client as the load generator: its configuration, its failures, and its files.

A stand-in leaves the files that the client itself wrote. `test_parity.py` asks the client.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_mlperf.adapters.engines.openai.endpoints import KEY, EndpointsEngine
from pytest_mlperf.cli import main
from pytest_mlperf.core.errors import MlperfError, RunError, SuiteError
from pytest_mlperf.core.job import Seeds
from pytest_mlperf.core.reason import Key
from pytest_mlperf.run.curve import read_recorded
from pytest_mlperf.stores.results import read_results, sealed
from pytest_mlperf.testing import check_engine
from tests.adapters.engines.openai.echo import echo_server
from tests.adapters.engines.openai.recorder import RUN_TOKENS, write_suite
from tests.adapters.engines.openai.scripted import Manner, Scripted
from tests.adapters.engines.recording import Samples, packed
from tests.adapters.engines.under_loadgen import token_settings
from tests.refusals import unrefused
from tests.run.harness import RunningWorker, error_of, run_to_end, spec

STAND_IN = str(Path(__file__).with_name("client_stand_in.py"))


def client(manner: str) -> list[str]:
    return [sys.executable, "-I", STAND_IN, manner]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with echo_server(8, service_ms=2) as address:
        yield address


def case(folder: Path, url: str, manner: str, **options: Any) -> Any:
    settings = replace(token_settings("Concurrency", 8), points=[1, 4], min_duration_ms=200)
    return spec(
        folder,
        engine="pytest_mlperf.adapters.engines.openai.endpoints:EndpointsEngine",
        options={"url": url, "client": client(manner), "tokenizer": "char", **options},
        dataset="tests.adapters.engines.recording:Samples",
        dataset_options={"samples": [f"Count to ${number}." for number in range(8)]},
        precision="fp32",
        settings=settings,
    )


NAME = "MLCommons endpoints 0.1.0 (unknown)"


@pytest.fixture(scope="module")
def measured(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a curve of whole passes that was scored, with a key."""
    folder = tmp_path_factory.mktemp("measured")
    questions = folder / "$questions.jsonl"
    questions.write_text('{"prompt": "one?", "answer": "1"}\n', "utf-8")
    scored = {"path": str(questions), "accuracy_config": SCORED}
    options = {
        "settings": {"client": {"num_workers": 2}, "warmup": {"enabled": False}},
        "max_new_tokens": 16,
        "whole_passes": True,
        "accuracy": [scored],
    }
    measured_case = case(folder, url, "works", **options)
    seeds = Seeds(qsl=1, sample_index=2, schedule=2**63, model=9315206023656308754)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "s3cret")
        events, code = run_to_end(
            replace(measured_case, settings=replace(measured_case.settings, seeds=seeds))
        )
    assert code == 0, events
    loaded = next(event for event in events if event["event"] == "loaded")
    assert loaded["engine"]["harness.version"] == "0.1.0"
    return folder / "performance"


SCORED = {"eval_method": "string_match", "ground_truth": "answer"}


def configuration(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text("utf-8"))
    return content


@pytest.mark.process
def test_the_client_gets_the_point_and_its_key_stays_out_of_files(measured: Path) -> None:
    """The stand-in completes 38.4 requests/s at 4: 200 ms, and some to spare, are 2 passes of 8."""
    pace, point = (configuration(measured, name) for name in ("paces/c4.json", "c4.json"))
    settings, parameters = point["settings"], point["model_params"]
    assert settings["load_pattern"] == {"type": "concurrency", "target_concurrency": 4}
    assert settings["client"] == {"num_workers": 2}
    assert settings["warmup"] == {"enabled": False}
    assert settings["runtime"]["scheduler_random_seed"] == 2**63
    assert (parameters["max_new_tokens"], parameters["seed"]) == (16, 9315206023656308754)
    prompts = (measured / "prompts.jsonl").read_text("utf-8").splitlines()
    salt, _, prompt = json.loads(prompts[3])["prompt"].partition("\n\n")
    assert (len(salt.split()), prompt) == (10, "Count to $3.")
    assert point["endpoint_config"]["api_key"] == f"${{{KEY}}}"
    assert (measured / "c4/key").read_text("utf-8") == "s3cret"
    written = [path for path in measured.parent.rglob("*") if path.is_file() and path.name != "key"]
    assert not [path for path in written if b"s3cret" in path.read_bytes()]

    assert pace["settings"]["runtime"]["max_duration_ms"] == 20
    passes = {"n_samples_to_issue": 16, "max_duration_ms": 0, "min_duration_ms": 200}
    assert settings["runtime"] == {**settings["runtime"], **passes}
    assert set(configuration(measured, "curve.json")["recorded"]) == {"c1", "c4"}
    assert len(pace["datasets"]) == 1
    speed, accuracy = point["datasets"]
    path = str(measured.parent / "$questions.jsonl").replace("$", "$$")
    scored = {"name": "accuracy", "type": "accuracy", "path": path, "accuracy_config": SCORED}
    assert (speed["type"], accuracy) == ("performance", scored)
    assert read_recorded(measured / "curve.json", NAME)[0].scored


@pytest.mark.process
def test_the_clients_files_are_read_as_imports_are(measured: Path, tmp_path: Path) -> None:
    result, events = "performance/result_summary.json", "events.jsonl"
    summary = (measured / "c4" / result).read_text("utf-8")
    lines = (measured / "c4" / events).read_text("utf-8").splitlines(keepends=True)
    damages = [
        (
            "no result",
            result,
            None,
            r"c4: incomplete: it has config\.yaml and no result_summary\.json",
        ),
        ("half a result", result, summary[:1000], r"result_summary\.json"),
        ("no events", events, None, r"events\.jsonl: cannot be read: No such file"),
        (
            "half its events",
            events,
            "".join(lines[:-2]),
            r"events\.jsonl: has no event session\.stop",
        ),
    ]
    failures = []
    for folder, file, content, message in damages:
        shutil.copytree(measured, tmp_path / folder)
        damaged = tmp_path / folder / "c4" / file
        damaged.unlink() if content is None else damaged.write_text(content, "utf-8")
        with pytest.raises(RunError) as error:
            read_recorded(tmp_path / folder / "curve.json", NAME)
        if error.value.layer != "engine" or not re.search(message, str(error.value)):
            failures.append((folder, str(error.value)))
    assert failures == []
    with pytest.raises(RunError, match=rf"by {re.escape(NAME)}, not MLCommons endpoints 0\.2\.0"):
        read_recorded(measured / "curve.json", "MLCommons endpoints 0.2.0")
    shutil.copytree(measured, tmp_path / "lost")
    lost = json.loads(summary) | {"n_samples_failed": 3}
    (tmp_path / "lost/c4" / result).write_text(json.dumps(lost), "utf-8")
    _, findings = read_recorded(tmp_path / "lost/curve.json", NAME)
    assert Key.REQUESTS_FAILED in {reason.key for reason in findings.invalid}


@pytest.mark.process
def test_the_engine_keeps_the_contract_where_our_own_client_asks() -> None:
    with Scripted(Manner(tokens=4)) as server:
        options = {"url": server.url, "max_new_tokens": RUN_TOKENS, "client": client("works")}
        answers = check_engine(EndpointsEngine, ["a text"] * 9, options=options, tokens=True)

    assert answers == dict.fromkeys(range(9), packed([100, 101, 102, 103]))


@pytest.mark.process
def test_a_point_that_is_always_too_short_is_one_error(tmp_path: Path, url: str) -> None:
    short_case = case(tmp_path, url, "works", whole_passes=True)
    short_case = replace(
        short_case, settings=replace(short_case.settings, points=[4], min_duration_ms=100_000)
    )
    events, _ = run_to_end(short_case)

    assert error_of(events)["message"].startswith(
        "MLCommons' client took less than 100 s for 4,032 requests in each of 3 tries: the "
        "server's speed is"
    ), error_of(events)
    tries = {path.name for path in (tmp_path / "performance/paces").glob("c4*") if path.is_dir()}
    assert tries == {"c4", "c4.1", "c4.2", "c4.3"}


def engine(sample: Any = "x", **options: Any) -> EndpointsEngine:
    settings = {"url": "http://127.0.0.1:1", "client": ["python"], **options}
    return EndpointsEngine(dataset=Samples([sample]), model=None, precision="fp32", **settings)


def measure(folder: Path, manner: str, *, scored: bool = False, **options: Any) -> None:
    """Have the client measure a point of 200 ms, in this process."""
    settings = replace(token_settings("Concurrency", 1), min_duration_ms=200)
    measuring = engine(client=client(manner), tokenizer="char", request_timeout=3, **options)
    measuring.require()
    with measuring:
        measuring.load_samples([0])
        measuring.measure_point(4, settings, folder / "c4", lambda: None, scored=scored)


@pytest.mark.process
def test_a_client_may_be_silent_while_it_scores(tmp_path: Path, url: str) -> None:
    accuracy = [{"accuracy_config": {"eval_method": "code_bench_scorer"}}]
    measure(tmp_path, "scores in silence", scored=True, url=url, accuracy=accuracy)

    config = configuration(tmp_path, "c4.json")
    assert config["settings"]["runtime"]["max_duration_ms"] == 200


@pytest.mark.process
def test_a_client_that_fails_is_one_error(tmp_path: Path, url: str) -> None:
    log = r"MLCommons' client {}; its log .*c4\.log ends: .*{}"
    rows = [
        ("is not installed", r"has no MLCommons client \(ModuleNotFoundError: .*install it there"),
        ("refuses", log.format("ended with exit code 2", "Config error: extra_forbidden")),
        ("crashes", r"MLCommons' client was killed by SIGSEGV; its log "),
        ("hangs", "MLCommons' client made no progress for request_timeout = 3 s and was ended; "),
    ]

    def attempt(manner: str) -> None:
        (tmp_path / manner).mkdir()
        measure(tmp_path / manner, manner, url=url)

    assert unrefused(attempt, MlperfError, rows) == []


@pytest.mark.process
def test_a_killed_worker_leaves_no_client(tmp_path: Path, url: str) -> None:
    with RunningWorker(case(tmp_path, url, "works for ever")) as worker:
        worker.wait_for("running")
        while worker.wait_for("progress")["done"] == 0:
            pass
        family = psutil.Process(worker.process.pid).children(recursive=True)
        assert any("from-config" in each.cmdline() for each in family)
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.exit_code()
        _, alive = psutil.wait_procs(family, 30)
        assert not alive


ENGINE = """\
[[engines]]
use = "endpoints"
name = "server"
{entry}
options = {{ url = "{url}", max_new_tokens = 16, tokenizer = "char" }}
"""


def write(url: str, manner: str, *, entry: str = "", scenario: str = "Concurrency") -> None:
    command = entry or f"command = {json.dumps(client(manner))}"
    text = 'points = [1, 4]\nmin_duration = "0.1s"\n'
    if scenario != "Concurrency":
        text += f'[[scenarios]]\nname = "{scenario}"\n'
    prompts = [f"Count to {number}." for number in range(8)]
    write_suite(ENGINE.format(entry=command, url=url), text, prompts)


@pytest.mark.process
def test_its_curve_is_never_compared_with_that_of_our_own_loop(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    write(url, "works")
    pytester.runpytest_subprocess("s.mlperf.toml", "--mlperf-json=theirs.json")
    (result,) = read_results(Path("theirs.json")).cases
    (run,) = result.verdict.runs
    assert result.verdict.subject is not None

    assert run.metrics["tokens_per_second@4"] == pytest.approx(3276.87, rel=1e-4)
    assert result.verdict.subject.identity["harness"] == "MLCommons endpoints"
    assert result.verdict.subject.fingerprint["engine.harness.version"] == "0.1.0"
    content = json.loads(Path("theirs.json").read_text("utf-8"))
    del content["cases"][0]["verdict"]["subject"]["identity"]["harness"]
    Path("ours.json").write_text(json.dumps(sealed(content)), "utf-8")
    assert main(["compare", "theirs.json", "ours.json"]) == 2
    assert "harness MLCommons endpoints → " in " ".join(capsys.readouterr().out.split())


def test_options_that_the_client_does_not_have_are_refused() -> None:
    rouge = {"accuracy_config": {"eval_method": "rouge"}}
    refused: list[tuple[str, object]] = [
        ("ignore_eos", True),
        ("session_header", "X-Session-ID"),
        ("extra", {"top_p": 0.5}),
        ("min_new_tokens", 4),
        ("settings", {"runtime": {}}),
        ("accuracy", {"path": __file__, **rouge}),
        ("accuracy", ["questions.jsonl"]),
        ("accuracy", [{"path": __file__}]),
        ("accuracy", [{"path": __file__, "accuracy_config": {"num_repeats": 2}}]),
        ("accuracy", [{"path": "none.jsonl", **rouge}]),
        ("accuracy", [{"type": "performance", **rouge}]),
    ]
    for option, value in refused:
        with pytest.raises(SuiteError, match=option) as error:
            engine(**{option: value})
        assert error.value.options == (option,), value
    turn = {"messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(RunError, match="is a turn of a conversation, but engine endpoints"):
        engine(turn).load_samples([0])


def test_an_entry_names_its_requirements(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = 'python = "x/bin/python"\nbaseline_engine = { python = "y" }'
    for entry, scenario, message in (
        ('model = "m"', "Concurrency", "endpoints needs a Python in which the client of MLCommon"),
        ("", "Offline", "endpoints measures only Concurrency, and this suite has Offline"),
        (baseline, "Concurrency", "baseline_eng"),
    ):
        write("http://127.0.0.1:1", "works", entry=entry, scenario=scenario)
        assert main(["plan", "s.mlperf.toml"]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
