"""Both clients on one server below saturation: MLCommons' own, and our closed loop.

Only where MLPERF_ENDPOINTS_PYTHON names a Python that has MLCommons' client, and on a machine that
does nothing else:
`MLPERF_ENDPOINTS_PYTHON=… pytest tests/adapters/engines/openai/test_parity.py -s`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_mlperf.stores.results import read_results
from tests.adapters.engines.openai.echo import echo_server
from tests.adapters.engines.openai.recorder import write_suite

TOKENS, SERVICE_MS, PACE_MS = 12, 200, 25
LATENCY_S = (SERVICE_MS + (TOKENS - 1) * PACE_MS) / 1000
WINDOW_S = 30
POINTS = (4, 16)

TIMES = ("latency_p50", "tpot_p50")

APART = 0.01
"""By so much, as a share, may the two clients differ."""

EDGE = LATENCY_S / WINDOW_S
"""Their window begins with no request under way and counts none that is not over: one turn less."""

ENGINES = """\
[[engines]]
use = "openai"
name = "ours"
options = {{ url = "{url}", api = "chat", max_new_tokens = 16, count_tokens = "reference", \
tokenizer = "{tokenizer}" }}

[[engines]]
use = "endpoints"
name = "theirs"
python = "{python}"
options = {{ url = "{url}", max_new_tokens = 16, tokenizer = "{tokenizer}", \
settings = {{ client = {{ num_workers = 1 }} }} }}
"""


def save_tokenizer(folder: Path) -> None:
    """Save one of a token for each word, as the server counts."""
    import tokenizers
    import transformers

    words = {"?": 0, **{f"word{number}": 1 + number for number in range(TOKENS)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?").save_pretrained(
        folder
    )


@pytest.mark.skipif(
    not os.environ.get("MLPERF_ENDPOINTS_PYTHON"),
    reason="MLPERF_ENDPOINTS_PYTHON names no Python that has MLCommons' client",
)
@pytest.mark.process
@pytest.mark.quiet
@pytest.mark.slow
def test_both_clients_measure_the_same_server_alike(pytester: pytest.Pytester) -> None:
    save_tokenizer(pytester.path / "tokenizer")
    with echo_server(TOKENS, SERVICE_MS, PACE_MS) as url:
        python, tokenizer = os.environ["MLPERF_ENDPOINTS_PYTHON"], pytester.path / "tokenizer"
        engines = ENGINES.format(url=url, tokenizer=tokenizer, python=python)
        scenario = f'points = {list(POINTS)}\nmin_duration = "{WINDOW_S} s"\n'
        write_suite(engines, scenario, ["Count.", "Count on."])
        pytester.runpytest_subprocess("s.mlperf.toml", "--mlperf-json=r.json")

    results = {r.verdict.case.engine: r.verdict.runs for r in read_results(Path("r.json")).cases}
    (ours,), (theirs,) = results["ours"], results["theirs"]
    shares = {
        f"{name}@{point}": ours.metrics[f"{name}@{point}"] / theirs.metrics[f"{name}@{point}"] - 1
        for point in POINTS
        for name in ("tokens_per_second", "tokens_per_sample", *TIMES)
    }
    print("ours against theirs:", {name: f"{share:+.2%}" for name, share in shares.items()})
    for point in POINTS:
        assert -APART < shares[f"tokens_per_second@{point}"] < APART + EDGE
        assert shares[f"tokens_per_sample@{point}"] == 0
        assert [name for name in TIMES if abs(shares[f"{name}@{point}"]) > APART] == []
