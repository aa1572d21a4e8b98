"""From a server to a bundle that MLCommons' own checker takes, measured by MLCommons' own client.

Only where MLPERF_ENDPOINTS_PYTHON names a Python that has the client, and MLPERF_SUBMISSION_PYTHON
one that has the checker (endpoints-submission-cli).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.adapters.engines.openai.echo import echo_server
from tests.adapters.engines.openai.test_parity import save_tokenizer
from tests.addons.official.test_export import HIGHEST, SAID, exported, fill, judged_by_their_checker
from tests.cli.text import Say

pytest.importorskip("httptools")


NEEDED = ("MLPERF_ENDPOINTS_PYTHON", "MLPERF_SUBMISSION_PYTHON")
QUESTIONS = 13_368
"""Samples of the benchmark that is named: the checker counts them."""

TOKENS, SERVICE_MS, PACE_MS = 4, 100, 20
SCORED_TOKENS = 17
"""Tokens that are asked for where answers are scored, by which the server knows to hurry."""

ANSWER = "".join(f" word{number}" for number in range(TOKENS))

SUITE = """\
schema = 1
round = "v4.1"

[workload]
name = "echo"
tokens = true
dataset = {{ use = "prompts", path = "prompts.jsonl" }}

[[engines]]
use = "endpoints"
name = "server"
python = "{python}"

[engines.options]
url = "{url}"
max_new_tokens = 16
tokenizer = "{tokenizer}"
whole_passes = true
settings = {{ client = {{ num_workers = 1, stream_all_chunks = true }} }}

[[engines.options.accuracy]]
name = "questions"
path = "questions.jsonl"
generation_config_override = {{ max_new_tokens = {scored} }}
accuracy_config = {{ eval_method = "string_match", ground_truth = "answer", \
extractor = "identity_extractor" }}

[[scenarios]]
name = "Concurrency"
max_concurrency = {highest}
seed_set = "A"
min_duration = "15s"
"""


@pytest.mark.skipif(
    not all(map(os.environ.get, NEEDED)), reason=f"{' and '.join(NEEDED)} name no Pythons"
)
@pytest.mark.process
@pytest.mark.quiet
@pytest.mark.slow
def test_a_curve_of_their_client_passes_their_checker(pytester: pytest.Pytester, say: Say) -> None:
    """Short points are a warning there; all that the checker calls an error is as it asks."""
    save_tokenizer(pytester.path / "tokenizer")
    prompts = [{"prompt": f"Count on, {number}."} for number in range(8)]
    questions = [{"prompt": f"Count {number}.", "answer": ANSWER} for number in range(QUESTIONS)]
    for name, rows in (("prompts", prompts), ("questions", questions)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows), "utf-8")
    with echo_server(TOKENS, SERVICE_MS, PACE_MS, SCORED_TOKENS) as url:
        text = SUITE.format(
            url=url,
            tokenizer=pytester.path / "tokenizer",
            python=os.environ["MLPERF_ENDPOINTS_PYTHON"],
            highest=HIGHEST,
            scored=SCORED_TOKENS,
        )
        Path("s.mlperf.toml").write_text(text, "utf-8")
        pytester.runpytest_subprocess("s.mlperf.toml", "--mlperf-json=r.json")
    assert say("export", "endpoints", "r.json", "--about", "about.toml", "--skeleton")[0] == 0
    fill(Path("about.toml"), SAID)
    code, output = exported(say, "-o", "bundle")

    assert code == 0, output
    assert "will be refused" not in output
    rules = judged_by_their_checker()
    assert "error" not in rules, rules
    print("MLCommons' checker warns of", sorted(rules.get("warning", ())))
