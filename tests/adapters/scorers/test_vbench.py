"""Test videos judged by the user's command: its inputs, and which of its results count."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.scorers.vbench import DIMENSIONS, VBenchScorer
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences

PROMPTS = ["a cat", "two dogs, running", "rain"]
SIZE: dict[str, Any] = {"height": 16, "width": 32, "fps": 8}

JUDGE = """\
import json, sys
from pathlib import Path
videos, output, planned = sys.argv[1:]
planned = json.loads(Path(planned).read_text())
names = sorted(path.name for path in Path(videos).iterdir())
sizes = {name: Path(videos, name).stat().st_size for name in names}
Path(planned["seen"]).write_text(json.dumps(sizes))
results = {
    name: [mean, [{"video_path": f"{videos}/{video}", "video_results": v} for video, v in row]]
    for name, (mean, row) in planned["results"].items()
}
for number in range(planned["files"]):
    text = planned["text"] or json.dumps(results)
    Path(output, f"results_{number}_eval_results.json").write_text(text)
print("no network", file=sys.stderr)
sys.exit(planned["ends"])
"""
"""Stands in for VBench's evaluate.py: it writes what the test planned in its files' form."""

ROWS: dict[str, tuple[float, list[tuple[str, Any]]]] = {
    name: (0.5, [("a cat-0.mp4", 0.25), ("rain-0.mp4", 0.75)]) for name in DIMENSIONS
} | {
    "dynamic_degree": (2 / 3, [(f"{p}-0.mp4", p != "rain") for p in PROMPTS]),
    # Frame by frame, and no video at all: no number of a video.
    "appearance_style": (0.2, [("a cat-0.mp4", [0.1, 0.3])]),
    "scene": (0.0, []),
}


def frames(seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, (3, 16, 32, 3), np.uint8).tobytes()


@pytest.fixture
def judge(tmp_path: Path) -> Any:
    """Return what plans the judge, and gives the command."""
    pytest.importorskip("imageio_ffmpeg")
    (tmp_path / "judge.py").write_text(JUDGE, "utf-8")

    def plan(results: Any = ROWS, *, files: int = 1, ends: int = 0, text: str = "") -> list[str]:
        planned = {"results": results, "files": files, "ends": ends, "text": text}
        planned["seen"] = str(tmp_path / "seen.json")
        (tmp_path / "planned.json").write_text(json.dumps(planned), "utf-8")
        program = [sys.executable, str(tmp_path / "judge.py")]
        return [*program, "{videos}", "{output}", str(tmp_path / "planned.json")]

    return plan


OUTPUTS = [frames(seed) for seed in range(3)]


@pytest.mark.process
def test_the_command_gets_a_video_of_each_prompt_and_its_means_are_the_score(
    judge: Any, tmp_path: Path
) -> None:
    scores = VBenchScorer(command=judge(), **SIZE).score(OUTPUTS, PROMPTS)

    seen = json.loads((tmp_path / "seen.json").read_text("utf-8"))
    assert sorted(seen) == sorted(f"{prompt}-0.mp4" for prompt in PROMPTS)
    assert min(seen.values()) > 500
    assert scores.aggregate["dynamic_degree"] == pytest.approx(200 / 3)
    assert scores.aggregate["vbench"] == pytest.approx((3 * 50 + 200 / 3 + 20 + 0) / 6)
    assert scores.per_sample["subject_consistency"] == [25.0, None, 75.0]
    assert scores.per_sample["dynamic_degree"] == [100.0, 100.0, 0.0]
    assert scores.per_sample["appearance_style"] == [None] * 3
    pseudo = [one or 0.0 for one in scores.per_sample["vbench"]]
    assert sum(pseudo) / 3 == pytest.approx(scores.aggregate["vbench"])
    assert "vbench" in scores.whole
    options = {"command": judge(), **SIZE}
    assert check_scorer(VBenchScorer, OUTPUTS, PROMPTS, options=options) == scores


@pytest.mark.process
def test_a_judge_that_gives_no_score_is_an_error(judge: Any) -> None:
    planned: list[tuple[dict[str, Any], str]] = [
        ({"ends": 3}, "the command ended with 3: 'no network'"),
        ({"files": 0}, "wrote 0 files"),
        ({"files": 2}, "wrote 2 files"),
        ({"text": "{"}, "wrote results that are not JSON"),
        ({"text": "[" * 100_000}, "wrote results that are not JSON"),
        ({"text": "[]"}, "wrote no mean of subject_consistency"),
        ({"text": '{"subject_consistency": [NaN]}'}, "wrote no mean of subject_consistency"),
        ({"text": '{"subject_consistency": [true]}'}, "wrote no mean of subject_consistency"),
    ]

    def score(plan: dict[str, Any]) -> None:
        VBenchScorer(command=judge(**plan), **SIZE).score(OUTPUTS[:1], PROMPTS[:1])

    assert differences(score, RunError, planned) == []
    missing = VBenchScorer(command=["/none/python", "{videos}", "{output}"], **SIZE)
    with pytest.raises(UnavailableError, match=r"/none/python cannot be started"):
        missing.score(OUTPUTS[:1], PROMPTS[:1])


def test_what_is_no_video_of_a_prompt_and_wrong_options_are_refused() -> None:
    pytest.importorskip("imageio_ffmpeg")
    rows: list[tuple[list[bytes], list[Any], str]] = [
        (OUTPUTS[:2], ["a/b", "c"], "the prompt of sample 0 cannot be a file name"),
        (OUTPUTS[:2], ["", "c"], "the prompt of sample 0 cannot be a file name"),
        (OUTPUTS[:1], ["c" * 241], "the prompt of sample 0 cannot be a file name"),
        (OUTPUTS[:2], ["c", "c"], "sample 1 has the prompt of sample 0"),
        ([b"\0" * 100], ["c"], "has 100 bytes, which is not a whole number of RGB frames"),
        ([b""], ["c"], "has 0 bytes"),
        (OUTPUTS[:1], [{"prompt": "c"}], "must be a text"),
    ]
    options: list[tuple[dict[str, Any], str]] = [
        ({"command": "vbench {videos} {output}"}, "command = 'vbench"),
        ({"command": ["vbench", "{videos}"]}, "which must hold {videos} and {output}"),
        ({"command": ["{videos}{output}"]}, "which must hold {videos} and {output}"),
        ({"command": ["v", "{videos}", "{output}"], "fps": 0}, "fps = 0"),
    ]
    scorer = VBenchScorer(command=["true", "{videos}", "{output}"], **SIZE)

    assert differences(scorer.score, RunError, rows) == []
    assert differences(lambda options: VBenchScorer(**options), SuiteError, options) == []
