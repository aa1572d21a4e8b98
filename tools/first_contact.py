"""Run README's quick start as printed, and the demo, beside neighbours that compute.

    python tools/first_contact.py --neighbours 2 --tries 5

Each command of the quick start must end with exit code 0, and the last one with 1. The demo must
end with 0.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from busy import Beside, neighbours

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Try as often as is asked; return 1 if any try ended otherwise than it must."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--neighbours", type=int, default=0, metavar="N", help="default 0")
    parser.add_argument("--tries", type=int, default=1, metavar="N", help="default 1")
    parser.add_argument("--only", choices=("quick-start", "demo"), help="default both")
    parsed = parser.parse_args()
    wrong = 0
    for number in range(parsed.tries):
        for name, attempt in (("quick-start", quick_start), ("demo", demo)):
            if parsed.only in {None, name}:
                began = time.monotonic()
                with neighbours(Beside("compute", parsed.neighbours)):
                    codes, expected, output = attempt()
                right = codes == expected
                wrong += not right
                print(
                    f"{name}  try {number + 1}  {parsed.neighbours} neighbours  "
                    f"{time.monotonic() - began:.0f} s  exit codes {codes}  "
                    f"{'as expected' if right else f'expected {expected}'}",
                    flush=True,
                )
                if not right:
                    print(output)
    return 1 if wrong else 0


def commands() -> list[str]:
    """Return the commands of README's quick start that follow the installation."""
    text = (ROOT / "README.md").read_text("utf-8").split("## Quick start", 1)[1]
    block = re.search(r"```console\n(.*?)```", text, re.DOTALL)
    assert block
    lines = [line.removeprefix("$ ").partition("  #")[0].strip() for line in block[1].splitlines()]
    return [line for line in lines if line.startswith(("pytest", "pytest-mlperf"))]


def quick_start() -> tuple[list[int], list[int], str]:
    """Run the commands in an empty folder; return their exit codes and what they must be."""
    lines = commands()
    codes, output = [], []
    with tempfile.TemporaryDirectory() as folder:
        for line in lines:
            code, text = run(["sh", "-c", line], folder)
            codes.append(code)
            output.append(f"$ {line}\n{text}")
    return codes, [0] * (len(lines) - 1) + [1], "\n".join(output)


def demo() -> tuple[list[int], list[int], str]:
    """Run the demo as make does, in this environment."""
    code, text = run([sys.executable, "tools/demo.py"], ROOT)
    return [code], [0], text


def run(command: list[str], folder: Path | str) -> tuple[int, str]:
    """Run a command as a user at a terminal would, not as CI; return its exit code and output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTEST_ADDOPTS": ""}
    environment.pop("CI", None)
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main())
