"""`make demo`: the main job on this machine's CPU, with a real engine under the real LoadGen.

1. Record a baseline of 5 runs of the tiny ResNet's Offline case.
2. Compare unchanged code with it: ok.
3. Slow the engine to half its speed and compare again: the failure message.

Everything is written under .mlperf/demo, which git ignores.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(".mlperf") / "demo"
BASE = [
    "pytest",
    "suites/tiny/resnet50.mlperf.toml",
    "-m",
    "mlperf(scenario='Offline')",
    f"--mlperf-runs-dir={FOLDER}",
    f"--mlperf-baselines={FOLDER / 'baselines'}",
]
RECORD = ["--mlperf-update=missing", "--mlperf-baseline-runs=5"]
HANDICAP = ["--mlperf-handicap=50%"]

UNCHANGED = {
    "ok": "no drop of the limit, proven",
    "improved": "faster than the baseline, which a busy machine slowed when it was recorded",
    "INCONCLUSIVE": "undecided after five runs, because this machine is too noisy just now",
}
"""What unchanged code may end in: a busy machine proves nothing, but must not fail it."""


def main() -> int:
    """Run the three steps and say what was shown; return 0 when each ended as it should."""
    shutil.rmtree(ROOT / FOLDER, ignore_errors=True)
    started = time.monotonic()
    steps = [
        ("1 of 3: record a baseline of 5 runs", RECORD, 0, {"recorded"}),
        ("2 of 3: compare unchanged code with it", [], 0, set(UNCHANGED)),
        ("3 of 3: the same with the engine slowed by half", HANDICAP, 1, {"PERF DROP"}),
    ]
    words = []
    for title, more, expected_code, expected_words in steps:
        code, word = run(title, [*BASE, *more])
        words.append(word)
        if code != expected_code or word not in expected_words:
            print(
                f"\ndemo: step {title} should have ended in {' or '.join(expected_words)}, not in "
                f"{word!r} (exit code {code}). The text above and the logs in {FOLDER}/runs say "
                "why; on a machine that others use too, try again when it is quieter."
            )
            return 1
    minutes = (time.monotonic() - started) / 60
    print(
        f"""
What you saw, in {minutes:.1f} minutes:
  1. five runs of a real ONNX model under MLCommons LoadGen became a baseline;
  2. the same code was measured again and judged: {UNCHANGED[words[1]]};
  3. an engine at half speed failed its test (this step is meant to be red).
Where it is:
  {FOLDER}/baselines   the baseline, one JSON file, as it would be reviewed in git
  {FOLDER}/runs        results.json of each step; LoadGen's logs of each run
  suites/tiny/resnet50.mlperf.toml   the suite file that made the tests
These are figures of a tiny model on this CPU. Not verified by MLCommons Association."""
    )
    return 0


def run(title: str, command: list[str]) -> tuple[int, str]:
    """Show a command, run it, and return its exit code and the performance test's outcome."""
    shown = " ".join(f'"{part}"' if " " in part or "(" in part else part for part in command)
    print(f"\n=== {title}\n$ {shown}", flush=True)
    lines = []
    arguments = [sys.executable, "-m", *command]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            print(line, end="", flush=True)
    files = [line.removeprefix("results: ").strip() for line in lines if line.startswith("results")]
    if not files:
        return process.returncode, "no results"
    cases = json.loads((ROOT / files[0]).read_text("utf-8"))["cases"]
    found = [c["verdict"]["outcome"] for c in cases if c["verdict"]["kind"] == "performance"]
    return process.returncode, str(found[0])


if __name__ == "__main__":
    sys.exit(main())
