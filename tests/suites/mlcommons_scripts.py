"""Run MLCommons' accuracy and compliance scripts on the logs of tiny twins, beside our own figures.

`python -m tests.suites.mlcommons_scripts [TWIN ...]` measures twins and prints a table; `--write`
puts it into docs/scoring.md. MLPERF_INFERENCE names a checkout of mlcommons/inference. Scripts
run at their defaults. What they would download is replaced, see `run_script`: the model's
tokenizer, the metric ROUGE of a hub, and NLTK's sentences. Of deepseek-r1 programs and mathematics
are graded by us, as LiveCodeBench's data and PRM800K are no part of the checkout.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "suites" / "tiny"
DOCS = ROOT / "docs" / "scoring.md"
TABLE_MARKS = "<!-- mlcommons-scripts -->", "<!-- /mlcommons-scripts -->"
LOG = "mlperf_log_accuracy.json"

DIGITS = 4
"""Decimals that are compared: most scripts print no more."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """MLCommons' accuracy script of a twin's workload.

    Attributes:
        path: Relative to the checkout.
        arguments: With {log} for the log, {folder} for its folder and {twin} for the twin's.
        metrics: Our scores that it prints too.
        tests: Compliance tests of which both sides judge the same log.
        dtype: Option -d of TEST06; its default is int32.
    """

    path: str
    arguments: str
    metrics: tuple[str, ...]
    tests: tuple[str, ...] = ()
    dtype: str = "int64"


ROUGES = ("rouge1", "rouge2", "rougeL")
LLAMA = "--checkpoint-path {twin}/model --mlperf-accuracy-file {log} --dataset-file {twin}/data/"
CNN = "--mlperf-accuracy-file {log} --dataset-file {twin}/data/cnn-daily-mail/cnn_eval.json"

SCRIPTS: Mapping[str, Script] = {
    "llama2-70b": Script(
        path="language/llama2-70b/evaluate-accuracy.py",
        arguments=f"{LLAMA}open_orca/open_orca_tiny.pkl.gz",
        metrics=(*ROUGES, "tokens_per_sample"),
        tests=("TEST06",),
    ),
    "mixtral-8x7b": Script(
        path="language/mixtral-8x7b/evaluate-accuracy.py",
        arguments=f"{LLAMA}mixtral/mixtral_tiny.pkl",
        metrics=(*ROUGES, "gsm8k", "tokens_per_sample"),
    ),
    "gptj": Script(path="language/gpt-j/evaluation.py", arguments=CNN, metrics=ROUGES),
    "llama3.1-8b": Script(
        path="language/llama3.1-8b/evaluation.py",
        arguments=f"{CNN} --model-name {{twin}}/model",
        metrics=(*ROUGES, "gen_len"),
        tests=("TEST06",),
    ),
    "llama3.1-405b": Script(
        path="language/llama3.1-405b/evaluate-accuracy.py",
        arguments=f"{LLAMA}llama3.1_405b_tiny.pkl",
        metrics=("rougeL", "exact_match", "tokens_per_sample"),
    ),
    "deepseek-r1": Script(
        path="language/deepseek-r1/eval_accuracy.py",
        arguments="--input-file {log} --dataset-file {twin}/data/deepseek_r1_tiny.pkl",
        metrics=("exact_match", "tokens_per_sample"),
        tests=("TEST06",),
        dtype="int32",
    ),
    "gpt-oss-120b": Script(
        path="language/gpt-oss-120b/eval_mlperf_accuracy.py",
        arguments="--mlperf-log {log} --tokenizer {twin}/model "
        "--reference-data {twin}/data/gpt-oss/acc_eval_tiny.parquet",
        metrics=("exact_match",),
        tests=("TEST07", "TEST09"),
    ),
    "whisper": Script(
        path="speech2text/accuracy_eval.py",
        arguments="--log_dir {folder} --dataset_dir {twin}/data/librispeech "
        "--manifest {twin}/data/librispeech/dev-all-repack.json",
        metrics=("accuracy",),
    ),
    "dlrm-v3": Script(path="", arguments="", metrics=(), tests=("TEST08",)),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A figure of both sides on the same log."""

    twin: str
    script: str
    figure: str
    theirs: float | str
    ours: float | str

    @property
    def agrees(self) -> bool:
        """Whether both are the same, numbers to the digits that are compared."""
        if isinstance(self.theirs, float) and isinstance(self.ours, float):
            return math.isclose(self.theirs, self.ours, abs_tol=10**-DIGITS)
        return self.theirs == self.ours

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        both = (f"{x:.{DIGITS}f}" if isinstance(x, float) else x for x in (self.theirs, self.ours))
        return (self.twin, f"`{self.script}`", self.figure, *both)


def compared(name: str, checkout: Path, folder: Path) -> Iterator[Row]:
    """Measure a twin in an empty folder, and yield each figure of both sides."""
    script, verdicts = SCRIPTS[name], measured(name, folder)
    session = _Session(name=name, checkout=checkout, folder=folder, verdicts=verdicts)
    if script.path:
        text = session.script(session.answers, script.arguments)
        scores = verdicts["accuracy"]["accuracy"]["scores"]
        for metric in script.metrics:
            theirs, ours = number(text, metric), float(scores[metric])
            yield Row(twin=name, script=script.path, figure=metric, theirs=theirs, ours=ours)
    for test in script.tests:
        verdict = verdicts[test]
        compliance_script, (figures, their_verdict) = (
            f"compliance/{test}",
            session.verification(test),
        )
        judged = "pass" if verdict["outcome"] == "ok" else "fail"
        file = "verify_output_len.txt" if test == "TEST09" else "verify_accuracy.txt"
        written = (folder / verdict["folder"] / file).read_text("utf-8")
        yield Row(
            twin=name, script=compliance_script, figure="verdict", theirs=their_verdict, ours=judged
        )
        for figure, pattern in figures.items():
            theirs, our_figure = (
                float(re.findall(pattern, side)[0]) for side in (session.printed, written)
            )
            yield Row(
                twin=name, script=compliance_script, figure=figure, theirs=theirs, ours=our_figure
            )


def measured(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Run a twin's tests of accuracy and compliance in Offline; return the verdicts by kind."""
    (folder / name).symlink_to(TINY / name)
    (folder / f"{name}.mlperf.toml").write_text(
        (TINY / f"{name}.mlperf.toml").read_text("utf-8"), "utf-8"
    )
    (folder / "baselines").mkdir()  # without accepted scores an accuracy run is one block
    kinds = ["accuracy", *SCRIPTS[name].tests]
    command = [sys.executable, "-m", "pytest", f"{name}.mlperf.toml", "--mlperf-compliance"]
    command += ["--mlperf-json=results.json", "-omlperf_control=off", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "-m", "mlperf(scenario='Offline')", "-k", " or ".join(kinds)]
    environment = {**os.environ, "PYTEST_MLPERF_LEASES": str(folder / "leases")}
    environment.pop("CI", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    results = folder / "results.json"
    if not results.exists():
        raise SystemExit(f"{name} was not measured: {done.stdout[-4000:]}{done.stderr[-2000:]}")
    verdicts = [case["verdict"] for case in json.loads(results.read_text("utf-8"))["cases"]]
    return {verdict["kind"]: verdict for verdict in verdicts}


def number(text: str, metric: str) -> float:
    """Return the last number that a script printed for a metric."""
    pattern = rf"\b{metric}'?(?:: |=)'?(?:np\.\w+\()?([-\d.]+)"
    if not (matches := re.findall(pattern, text)):
        raise SystemExit(f"the script printed no {metric}: {text[-4000:]}")
    return float(matches[-1])


@dataclass(kw_only=True)
class _Session:
    """The verdicts of a twin, and MLCommons' scripts on their logs."""

    name: str
    checkout: Path
    folder: Path
    verdicts: Mapping[str, Mapping[str, Any]]
    printed: str = field(default="", init=False)

    @property
    def answers(self) -> Path:
        accuracy_folder = str(self.verdicts["accuracy"]["accuracy"]["folder"])
        return self.folder / accuracy_folder / "accuracy" / "block-0" / LOG

    def script(self, log: Path, arguments: str) -> str:
        return self._run(self.command(log, arguments))

    def command(self, log: Path | str, arguments: str) -> list[str]:
        words = shlex.split(arguments.replace("{twin}", str(TINY / self.name)))
        places = {"{log}": str(log), "{folder}": str(Path(log).parent)}
        words = [places.get(word, word) for word in words]
        module = [sys.executable, "-m", "tests.suites.mlcommons_scripts", "run"]
        script = self.checkout / SCRIPTS[self.name].path
        return [*module, str(script), str(TINY / self.name / "model"), *words]

    def verification(self, test: str) -> tuple[dict[str, str], str]:
        """Return the patterns of figures that both sides print, and the script's verdict."""
        log_folder, script = self.verdicts[test]["folder"], SCRIPTS[self.name]
        log = self.folder / log_folder / "performance" / LOG
        path = str(self.checkout / "compliance" / test / "run_verification.py")
        command = [sys.executable, path, "-c", str(log.parent), "-o", str(self.folder / "theirs")]
        figures: dict[str, str] = {}
        if test == "TEST06":
            dtype = [] if script.dtype == "int32" else ["-d", script.dtype]
            text = self._run([*command, "-s", "Offline", *dtype])
            return figures, "pass" if "verification complete" in text else "fail"
        if test == "TEST07":
            data = "data/gpt-oss/perf_eval_tiny.parquet"
            arguments = script.arguments.replace("data/gpt-oss/acc_eval_tiny.parquet", data)
            evaluation = shlex.join(self.command("{accuracy_log}", arguments))
            command += ["--accuracy-threshold", "0", "--accuracy-script", evaluation]
            figures["exact_match"] = r"'exact_match': ([\d.]+)"
        if test == "TEST09":
            written = (log.parents[1] / "verify_output_len.txt").read_text("utf-8")
            low, high = (re.findall(rf"{e} threshold: (\S+)", written)[0] for e in ("Min", "Max"))
            command += ["--min-output-tokens", low, "--max-output-tokens", high]
            figures["mean tokens"] = r"Mean output tokens: ([\d.]+)"
        if test == "TEST08":
            command = [sys.executable, path, "-r", str(self.answers), "-t", str(log)]
            figures = {name: rf"{name} = (\d+)" for name in ("num_matched", "num_ne_mismatch")}
        text = self._run(command)
        return figures, "pass" if "TEST PASS" in text else "fail"

    def _run(self, command: Sequence[str]) -> str:
        (self.folder / "theirs").mkdir(exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            command,
            cwd=self.folder / "theirs",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.printed = done.stdout + done.stderr
        for file in sorted((self.folder / "theirs").glob("verify_*.txt")):
            self.printed += file.read_text("utf-8")
        return self.printed


# --- inside the script's process -------------------------------------------------------------


def run_script(path: Path, tokenizer: str, arguments: Sequence[str]) -> None:
    """Run a script of MLCommons' as its main module, with local copies of its downloads."""
    import nltk
    import transformers

    nltk.download, nltk.sent_tokenize = lambda _: True, lambda text: [text]
    load = transformers.AutoTokenizer.from_pretrained
    transformers.AutoTokenizer.from_pretrained = lambda name, *args, **options: load(
        name if Path(str(name)).is_dir() else tokenizer,
        *args,
        **{key: value for key, value in options.items() if key not in {"revision", "use_fast"}},
    )
    replaced: dict[str, dict[str, Any]] = {
        "evaluate": {"load": lambda _: types.SimpleNamespace(compute=rouge)},
        "evaluate_mbxp": {"evaluate_mbxp": lambda *_: 0.0},
        "whisper": {},
    }
    for name, members in replaced.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module
    if "speech2text" in path.parts:
        normalizers = importlib.import_module("whisper_normalizer.english")
        sys.modules["whisper.normalizers"] = normalizers
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *arguments]
    if path.parent.name == "deepseek-r1":
        script = importlib.import_module(path.stem)
        _grade_ourselves(script, Path(arguments[arguments.index("--input-file") + 1]))
        script.main()
        return
    import runpy

    runpy.run_path(str(path), run_name="__main__")


def rouge(
    predictions: Sequence[str], references: Sequence[str], **options: bool
) -> dict[str, list[float]]:
    """Return the result of the hub's metric ROUGE without aggregation."""
    from rouge_score.rouge_scorer import RougeScorer

    kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    scorer = RougeScorer(kinds, use_stemmer=options["use_stemmer"])
    scores = [scorer.score(*pair) for pair in zip(references, predictions, strict=True)]
    return {kind: [score[kind].fmeasure for score in scores] for kind in kinds}


def _grade_ourselves(script: Any, log: Path) -> None:
    """Grade programs and mathematics with our scores of the same answers."""
    scored = json.loads((log.parents[2] / "scores.json").read_text("utf-8"))
    ours = dict(zip(scored["indices"], scored["per_sample"]["exact_match"], strict=True))
    answers = json.loads(log.read_text("utf-8"))
    order = list(dict.fromkeys(answer["qsl_idx"] for answer in answers))
    process = script.process_dataframe
    script.process_livecodebench_parallel = lambda *_: (0, 0)
    script.DATASET_EVALUATORS["math500"]["evaluate"] = lambda *_: False

    def processed(table: Any) -> Any:
        result = process(table)
        for row, index in enumerate(order):
            if any(part in result.at[row, "dataset"] for part in ("livecodebench", "math500")):
                result.at[row, "prompt_accuracy"] = ours[index]
        return result

    script.process_dataframe = processed


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    head = ("twin", "MLCommons' script", "figure", "theirs", "ours")
    lines = [head, ("---",) * 3 + ("---:",) * 2, *(row.cells for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    """Print the table; return 1 if a figure differs."""
    if sys.argv[1:2] == ["run"]:
        run_script(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("twins", nargs="*", choices=[*SCRIPTS, []], help="default: all")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    arguments = parser.parse_args()
    checkout = os.environ.get("MLPERF_INFERENCE")
    if not checkout:
        parser.error("set MLPERF_INFERENCE to a checkout of mlcommons/inference")
    rows: list[Row] = []
    for name in arguments.twins or SCRIPTS:
        with tempfile.TemporaryDirectory() as folder:
            rows += compared(name, Path(checkout).resolve(), Path(folder))
    print(table(rows))
    if arguments.write:
        text = DOCS.read_text("utf-8")
        (head, rest), mark = text.split(TABLE_MARKS[0]), TABLE_MARKS[1]
        after = rest.partition(mark)[2]
        content = f"{head}{TABLE_MARKS[0]}\n\n{table(rows)}\n\n{mark}{after}"
        DOCS.write_text(content, "utf-8")
    return int(not all(row.agrees for row in rows))


if __name__ == "__main__":
    sys.exit(main())
