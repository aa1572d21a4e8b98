"""Record tests/data/replay anew: sessions of the plugin on this CPU, and what they were judged by.

The suites there stay as they are; their names keep pytest from collecting them. Each session leaves
its results.json and, where it made an accuracy pass, pass.json with the score of every sample;
baselines/ holds what all were compared with. Runs scatter, and may give other words than SESSIONS
names: then nothing is written; run it again.

With --check nothing is written: the sessions run, and the exit code is 1 if a results.json has
other keys than the stored one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_mlperf.stores.results import as_text, read_results

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data" / "replay"
DAYS = ("speed/Offline.days.fp32.json", "answers/Offline.Answers.fp32.json")
"""Baselines that are made ones of four sessions on four days; the other stays that of one."""

RECORD = ["--mlperf-update=missing", "-k"]
MANY, FEW = "-omlperf_baseline_runs=5", "-omlperf_baseline_runs=2"

SESSIONS: dict[str, tuple[list[str], list[str]]] = {
    "unchanged": (["speed", "right"], ["ok", "PROVISIONAL", "NO BASELINE", "ok", "ok", "ok"]),
    "slowed": (["speed", "-k", "days and performance", "--mlperf-handicap=50%"], ["PERF DROP"]),
    "wrong": (["wrong"], ["ACC DROP", "INVALID"]),
}
"""By folder: what pytest is told, and the outcomes in the order of results.json."""


def main() -> int:
    """Run the sessions in an empty folder, and keep them only where all ended as they should."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    sys.path.insert(0, str(ROOT))
    from tests.sessions import spread

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for suite in DATA.glob("*.toml"):
            shutil.copy(suite, folder / f"{suite.stem}.mlperf.toml")
        (folder / "baselines").mkdir()
        session(folder, "many", ["speed", "right", *RECORD, "not pair and (days or Answers)", MANY])
        session(folder, "few", ["speed", *RECORD, "not pair and today", FEW])
        for file in DAYS:
            spread(folder / "baselines" / "cpu" / "quick" / file)
        for title, (arguments, expected) in SESSIONS.items():
            outcomes = session(folder, title, arguments)
            print(f"{title}: {', '.join(outcomes)}")
            if outcomes != expected:
                print(f"expected {', '.join(expected)}: nothing was written", file=sys.stderr)
                return 1
        if check:
            return compare(folder)
        keep(folder)
    return 0


def compare(folder: Path) -> int:
    """Return 1 if real sessions have other keys than the stored ones, and print these.

    Stored ones may have an older schema.
    """
    differing = set()
    for title in SESSIONS:
        stored, real = (
            set(keys(json.loads(as_text(read_results(place / title / "results.json")))))
            for place in (DATA, folder)
        )
        differing |= {f"{title}: only stored: {key}" for key in stored - real}
        differing |= {f"{title}: only real: {key}" for key in real - stored}
    print("\n".join(sorted(differing)) or "every key is as stored")
    return int(bool(differing))


def keys(value: Any, place: str = "") -> Iterator[str]:
    """Yield the path of every key; items of a list share one."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"{place}.{name}"
            if name != "others":  # neighbours of a run, by name
                yield from keys(item, f"{place}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from keys(item, f"{place}[]")


def session(folder: Path, title: str, arguments: list[str]) -> list[str]:
    """Run pytest and return the outcomes; its results.json and passes lie in folder/title."""
    suites = {path.name.partition(".")[0]: path.name for path in folder.glob("*.mlperf.toml")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    command += [suites.get(one, one) for one in arguments]
    command += [f"--mlperf-runs-dir={title}", f"--mlperf-json={title}/results.json"]
    command += ["--mlperf-confirm=never", "-omlperf_control=off"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=False)
    results = json.loads((folder / title / "results.json").read_text("utf-8"))
    return [case["verdict"]["outcome"] for case in results["cases"]]


def keep(folder: Path) -> None:
    """Put the sessions in the place of the stored ones, without paths of this machine."""
    for old in [DATA / "baselines", *(DATA / title for title in SESSIONS)]:
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(folder / "baselines", DATA / "baselines")
    for title in SESSIONS:
        (DATA / title).mkdir()
        shutil.copy(folder / title / "results.json", DATA / title)
        for path in (folder / title / "accuracy").glob("*.json"):
            shutil.copy(path, DATA / title / "pass.json")
    for path in DATA.rglob("*.json"):
        text = path.read_text("utf-8")
        for place in (folder, ROOT, Path(sys.prefix), Path.home()):
            text = text.replace(f"{place}/", "").replace(str(place), "")
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
