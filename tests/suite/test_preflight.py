"""Test that defects are reported before anything is measured: in a sentence, with their line."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.core.job import CaseProblem, raise_problems
from pytest_mlperf.suite.plan import Planned, plan_suite
from pytest_mlperf.suite.resolve import Problems, resolve

HEAD = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
"""


def written(folder: Path, workload: str, engine: str) -> Path:
    """Write a suite with one engine; the lines of `workload` begin at 5."""
    file = folder / "s.mlperf.toml"
    text = f'{HEAD}{workload}\n[[engines]]\n{engine}\n[[scenarios]]\nname = "Offline"\n'
    file.write_text(text, "utf-8")
    return file


def defect(folder: Path, workload: str, engine: str) -> str:
    """Return the error message of reading a suite, without its file name."""
    file = written(folder, workload, engine)
    with pytest.raises(SuiteError) as caught:
        plan_suite(file)
    return "\n".join(line.removeprefix(f"{file}:") for line in str(caught.value).split("\n"))


def plan(folder: Path, workload: str, engine: str) -> Planned:
    (planned,) = plan_suite(written(folder, workload, engine))
    return planned


def problems(planned: Planned, *, scorer: bool) -> tuple[CaseProblem, ...]:
    """Return what keeps a case from being measured."""
    job = resolve(planned, scorer=scorer)
    return job.problems if isinstance(job, Problems) else job.scoring.problems


def refusal(planned: Planned, *, scorer: bool = True) -> str:
    """Return what keeps a case from being measured, without the name of the suite."""
    with pytest.raises((SuiteError, UnavailableError)) as caught:
        raise_problems(problems(planned, scorer=scorer))
    return str(caught.value).replace(f"{planned.path}:", "")


TWIN = 'mine"\nreference = { mbxp = 60.0 }\ntwin_of = "mixtral-8x7b'


def test_a_score_that_the_gate_must_have_is_asked_for_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    runs, file = ", run_generated_code = true", tmp_path / "s.mlperf.toml"
    options = {"mbxp": "run_generated_code = true", "rougeLsum": "punkt"}
    for round_name, name, profile, option, metric in (
        ("v4.1", "mixtral-8x7b", "official", "", "mbxp"),
        ("v4.1", "mixtral-8x7b", "official", runs, ""),
        ("v4.1", "mixtral-8x7b", "quick", "", ""),
        ("v4.1", "llama2-70b-99", "official", "", ""),
        ("v5.1", "llama3_1-8b", "official", "", "rougeLsum"),
        ("v5.1", "llama3_1-8b", "quick", "", ""),
        ("v4.1", TWIN, "quick", "", "mbxp"),
    ):
        use = "rouge" if "llama" in name else "mixtral"
        file.write_text(
            f'schema = 1\nround = "{round_name}"\nprofile = "{profile}"\n'
            f'[workload]\nname = "{name}"\nmodel = "gone"\ndataset = {{ use = "synthetic" }}\n'
            f'scorer = {{ use = "{use}"{option} }}\n'
            '[[engines]]\nuse = "null"\n[[scenarios]]\nname = "Offline"\n',
            "utf-8",
        )
        (planned,) = plan_suite(file)
        scorer_errors = [str(p.error) for p in problems(planned, scorer=True) if p.part == "scorer"]
        missing_metrics = [text for text in scorer_errors if "leaves out" in text]
        assert len(missing_metrics) == bool(metric)
        if metric:
            assert f"scorer {use} leaves out {metric}, which " in missing_metrics[0]
            assert f"set {options[metric]}" in missing_metrics[0]
            assert missing_metrics[0].startswith(f"{file}:")


def test_a_variable_in_the_place_of_a_number_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = 'use = "null"\n[engines.options]\nbatch_size = "${BATCH}"'
    monkeypatch.delenv("BATCH", raising=False)
    unset = defect(tmp_path, "", engine)
    monkeypatch.setenv("BATCH", "8")

    assert unset == "8: engines[0].options: ${BATCH} is not set; export BATCH=..."
    assert defect(tmp_path, "", engine) == (
        "9: engines[0].options.batch_size: batch_size is '${BATCH}'; a whole number is needed"
    )


def test_everything_that_is_missing_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLPERF_MODELS", "MLPERF_DATA"):
        monkeypatch.delenv(name, raising=False)
    workload = (
        'model = "${MLPERF_MODELS}/bert.onnx"\nscorer = { use = "top1" }\n'
        '[workload.dataset]\nuse = "squad"\npath = "${MLPERF_DATA}/squad"\nvocab = "${VOCAB_}/v"'
    )
    planned = plan(tmp_path, workload, 'use = "onnxruntime"')
    assert refusal(planned) == (
        "5: ${MLPERF_MODELS} is not set; set it so that ${MLPERF_MODELS}/bert.onnx is the model, "
        "e.g. export MLPERF_MODELS=/path/to/it; also 9: ${MLPERF_DATA} is not set; set it so that "
        "${MLPERF_DATA}/squad is the dataset, e.g. export MLPERF_DATA=/path/to/it; also 10: "
        "dataset: ${VOCAB_} is not set; export VOCAB_=..."
    )
    (tmp_path / "coco").mkdir()
    workload = (
        '[workload.dataset]\nuse = "coco_captions"\npath = "coco"\n[workload.scorer]\n'
        'use = "clip_fid"\nclip = "/no/clip"\ninception = "/no/i.pth"\nstatistics = "/no/s.npz"'
    )

    message = refusal(plan(tmp_path, workload, 'use = "null"'))
    assert message.startswith(f"5: {tmp_path}/coco: has neither captions/captions.tsv nor ")
    assert f"; also {tmp_path}/coco/latents: has neither latents.pt nor latents.npy; " in message
    scorer = message[message.index("8: /no/clip") :]
    assert scorer.startswith("8: /no/clip: this folder does not exist; it needs config")
    assert "; also /no/i.pth: this file (weights of the Inception network) does not " in scorer
    assert "; also /no/s.npz: this file (statistics of real images) does not exist; " in scorer


def test_a_wrong_option_of_a_scorer_is_reported_at_its_line_if_scores_are_wanted(
    tmp_path: Path,
) -> None:
    """One that only lacks the missing model is not listed with it."""
    workload = '[workload.scorer]\nuse = "top1"\ndtype = "float16"'
    planned = plan(tmp_path, workload, 'use = "null"')

    raise_problems(problems(planned, scorer=False))
    assert refusal(planned) == (
        "7: scorer top1: dtype = 'float16' is not one of float32, int32, int64, uint8"
    )
    workload = 'model = "gone"\nscorer = { use = "rouge" }'
    assert refusal(plan(tmp_path, workload, 'use = "null"')) == (
        f"5: the model gone is not here (looked at {tmp_path}/gone); correct the path, "
        "or put the file there"
    )
    for scorer in ('use = "evaluate", metric = "evaluate:x.py"', 'use = "no.such:Scorer"'):
        workload = f"scorer = {{ {scorer} }}\nreference = {{ anything = 90 }}"
        assert plan(tmp_path, workload, 'use = "null"').scorer is not None


def test_a_folder_without_a_model_is_reported_by_the_engine_that_would_load_it(
    tmp_path: Path,
) -> None:
    for library in ("diffusers", "torch", "transformers"):
        if importlib.util.find_spec(library) is None:
            pytest.skip("needs pytest-mlperf[diffusion]")
    (tmp_path / "llama").mkdir()
    planned = plan(tmp_path, 'model = "llama"', 'use = "torch-diffusion"')

    message = refusal(planned)

    assert message == (
        f"5: {tmp_path}/llama: this folder has no model_index.json, so it is not a model; "
        f"set workload.model to the folder that has it"
    )


def test_requirements_of_a_scorer_other_than_files_do_not_stop_a_run_of_performance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_mlperf.adapters.scorers.top1 import Top1Scorer
    from pytest_mlperf.core.errors import EnvironmentFault

    def sandbox(self: Top1Scorer) -> None:
        raise EnvironmentFault("no namespaces here")

    monkeypatch.setattr(Top1Scorer, "require", sandbox, raising=False)
    planned = plan(tmp_path, 'scorer = { use = "top1" }', 'use = "null"')

    problem_list = problems(planned, scorer=True)

    assert [(p.part, str(p.error)) for p in problem_list] == [("scorer", "no namespaces here")]
    raise_problems(problem_list)
    with pytest.raises(RunError, match="no namespaces here") as caught:
        raise_problems(replace(p, part="engine") for p in problem_list)
    assert caught.value.layer == "engine"


BUILD = """
import sys
from pytest_mlperf.suite.trial import ABSENT, try_engine
from pytest_mlperf.core.errors import UnavailableError
from pytest_mlperf.core.declaration import declaration_of
from pytest_mlperf.registry import is_client, registered, resolve
OPTIONS = {
    "torch-module": {"factory": "dlrm-v2"},
    "endpoints": {"url": "http://127.0.0.1:1", "tokenizer": "here"},
    "openai": {"url": "http://127.0.0.1:1"},
    "recorded": {"folder": "here"},
    "triton": {"url": "127.0.0.1:1", "served_model": "m"},
}
for use in registered("engines"):
    try:
        try_engine(use, options=OPTIONS.get(use, {}), model=ABSENT, precision="fp32")
    except UnavailableError as error:
        assert ABSENT in str(error)
        print("asked", use)
    else:
        model = declaration_of(resolve(registered("engines")[use].value)).supplied["model"]
        assert is_client(use) or model.startswith("Not "), use  # it needs no model here
print(*sys.modules, sep="\\n")
"""


@pytest.mark.process
def test_asking_engines_imports_none_of_their_libraries() -> None:
    modules = subprocess.run(
        [sys.executable, "-c", BUILD], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()

    assert {
        "asked onnxruntime",
        "asked torch",
        "asked torch-module",
        "asked torch-diffusion",
    } < set(modules)
    heavy = {"onnxruntime", "torch", "transformers", "diffusers", "safetensors"}
    assert not {*heavy, "httptools", "tritonclient", "tensorrt_llm", "vllm"} & set(modules)
