"""Mutated files for every reader of untrusted content: the same ones for the same seed.

`python -m tests.stores.fuzzing 5000` runs this many, a fifth of them stores, and prints the counts.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import json
import os
import pickle
import random
import shutil
import sqlite3
import sys
import tarfile
import tempfile
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.scorers.code.livecodebench import Archive
from pytest_mlperf.adapters.scorers.images._frechet import read_statistics
from pytest_mlperf.cli import main
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.run.logs import parse_detail
from pytest_mlperf.stores import accuracy_baselines, baselines, journal
from pytest_mlperf.stores.results import read_manifest
from tests.sources import ROOT

DATA = ROOT / "tests/data"
REPLAY = DATA / "replay"

VALUES: list[Any] = [
    *(None, True, 0, -1, 2**31, 2**63, 10**400, 1e-320, 1e308, float("nan"), float("inf")),
    *("", "x", "a\nb", "\0", "\x1b[2J", "../../x", "\u202e", "\ud800", "9" * 6000, "x" * 10_000),
    *([], {}, [[]], {"": 1}, [1, 2, 3], "9999-12-31T23:59:59-12:00", "2026-13-45T99:99:99"),
]

CHUNKS = [
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"[" * 5000, b'{"a":' * 50_000, b'"', b"1e400", b"NaN"),
    *(b"\xed\xa0\x80", b"9" * 5000, b'"""', b"[[", b"\r", b"a." * 3000, b"&a [*a,*a]", b"\\"),
    *(b"\n" * 500, b":::MLLOG {}\n", b"\x1f\x8b\x08\0", b"!!python/object/apply:os.system [x]"),
]


def changed_bytes(rnd: random.Random, data: bytes) -> bytes:
    content = bytearray(data)
    for _ in range(rnd.choice([1, 1, 2, 5, 20])):
        at = rnd.randrange(len(content) + 1)
        match rnd.randrange(5):
            case 0:
                content[at : at + 1] = bytes([rnd.randrange(256)])
            case 1:
                del content[at : at + rnd.randint(1, 40)]
            case 2:
                content[at:at] = content[at // 2 : at // 2 + rnd.randint(1, 80)]
            case 3:
                content[at:at] = rnd.choice(CHUNKS)
            case _ if rnd.random() < 0.3:
                del content[at:]
    return bytes(content)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(min(len(value), 6)):
            yield value, key
            yield from places(value[key])


def changed_json(rnd: random.Random, data: bytes) -> bytes:
    content = copy.deepcopy(json.loads(data))
    for _ in range(rnd.choice([1, 1, 2, 3])):
        every = list(places(content))
        if not every:
            break
        parent, key = rnd.choice(every)
        match rnd.randrange(5):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[rnd.choice(["", "x", "\0", "\u202e"])] = parent.pop(key)
            case _:
                parent[key] = copy.deepcopy(rnd.choice(VALUES))
    text = json.dumps(content)
    if rnd.random() < 0.05:
        text = text.replace('"schema": 1', '"schema": 1, "schema": 1', 1)
    return text.encode(rnd.choice(["utf-8"] * 20 + ["utf-16"]), "surrogatepass")


def mutant(rnd: random.Random, data: bytes) -> bytes:
    if rnd.random() < 0.5:
        with contextlib.suppress(ValueError):
            return changed_json(rnd, data)
    lines = data.split(b"\n")
    at = rnd.randrange(len(lines))
    begin = lines[at].find(b"{")
    if begin >= 0 and rnd.random() < 0.5:
        with contextlib.suppress(ValueError):
            lines[at] = lines[at][:begin] + changed_json(rnd, lines[at][begin:])
            return b"\n".join(lines)
    return changed_bytes(rnd, data)


Work = Callable[[random.Random, Path], object]


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def command(*words: object) -> None:
    code = main([str(word) for word in words])
    assert code in {0, 1, 2, 3}, code


RESULTS = tuple(
    (REPLAY / name / "results.json").read_bytes() for name in ("slowed", "unchanged", "wrong")
)


def fuzz_results(rnd: random.Random, here: Path) -> None:
    file = put(here / "r.json", mutant(rnd, rnd.choice(RESULTS)))
    words: list[tuple[object, ...]] = [
        ("report", file),
        ("report", file, "--format", "html", "-o", here / "r.html"),
        ("merge", file, "-o", here / "all.json"),
        ("update", file, "--no-runs"),
        ("explain", "speed", "--results", file),
    ]
    command(*rnd.choice(words))


def fuzz_baseline(rnd: random.Random, here: Path) -> None:
    good = REPLAY / "baselines/cpu/quick/speed/Offline.today.fp32.json"
    baselines.load(put(here / "b.json", mutant(rnd, good.read_bytes())))


def fuzz_scores(rnd: random.Random, here: Path) -> None:
    import hashlib

    source = REPLAY / "baselines/accuracy/answers"
    about = json.loads((source / "Answers.fp32.json").read_bytes())
    scores = changed_bytes(rnd, next(source.glob("*.npz")).read_bytes())
    about["scores_sha256"] = hashlib.sha256(scores).hexdigest()
    file = put(here / "Answers.fp32.json", json.dumps(about).encode())
    put(here / f"Answers.fp32.{about['scores_sha256'][:12]}.scores.npz", scores)
    accuracy_baselines.load(file)
    accuracy_baselines.load_outputs(file)


@cache
def suites() -> list[bytes]:
    return [file.read_bytes() for file in sorted((ROOT / "suites").rglob("*.mlperf.toml"))]


def fuzz_suite(rnd: random.Random, here: Path) -> None:
    command("plan", put(here / "s.mlperf.toml", changed_bytes(rnd, rnd.choice(suites()))))


def fuzz_manifest(rnd: random.Random, here: Path) -> None:
    test = {"test": "a::b[c]", "kind": "performance", "case": "c", "accelerator": "cpu", "pairs": 1}
    good = {"schema": 1, "kind": "pytest-mlperf plan", "tests": [test, test]}
    read_manifest(put(here / "plan.json", mutant(rnd, json.dumps(good).encode())))


def fuzz_prices(rnd: random.Random, here: Path) -> None:
    from pytest_mlperf.cli.across import read_prices

    good = b"[prices]\nH200 = { usd_per_gpu_hour = 3.5, as_of = 2026-11-01 }\n"
    read_prices(put(here / "prices.toml", changed_bytes(rnd, good)))


def fuzz_endpoints(rnd: random.Random, here: Path) -> None:
    source = DATA / rnd.choice(["endpoints", "endpoints_accuracy"])
    shutil.copytree(source, here / "e")
    file = rnd.choice(sorted(path for path in (here / "e").rglob("*") if path.is_file()))
    file.write_bytes(mutant(rnd, file.read_bytes()))
    words = ("--precision", "fp8", "--accelerator", "cpu", "-o", here / "o.json", "--workload", "w")
    command("import", "endpoints", here / "e", *words)


@cache
def submissions() -> dict[str, bytes]:
    with tarfile.open(DATA / "submissions.tar.xz") as archive:
        members = [member for member in archive if member.isfile()]
        return {one.name: archive.extractfile(one).read() for one in members}  # type: ignore[union-attr]


def of_one_system(rnd: random.Random) -> dict[str, bytes]:
    files = submissions()
    roots = {
        tuple(parts[: parts.index("results") + 4])
        for parts in (name.split("/") for name in files)
        if "results" in parts
    }
    root = rnd.choice(sorted(roots))
    base = "/".join(root[: root.index("results")]) + "/systems/"
    inside = "/".join(root) + "/"
    return {name: files[name] for name in files if name.startswith((inside, base))}


def fuzz_submission(rnd: random.Random, here: Path) -> None:
    files = of_one_system(rnd)
    name = rnd.choice(sorted(files))
    files[name] = mutant(rnd, files[name])
    for path, content in files.items():
        put(here / "t" / path, content)
    command("import", "mlperf", here / "t", "-o", here / "o.json")


def fuzz_log(rnd: random.Random, here: Path) -> None:
    files = submissions()
    names = sorted(name for name in files if name.endswith("mlperf_log_detail.txt"))
    parse_detail(put(here / "mlperf_log_detail.txt", mutant(rnd, files[rnd.choice(names)])))


def fuzz_journal(rnd: random.Random, here: Path) -> None:
    begun = {"schema": 1, "kind": "pytest-mlperf journal", "run": "a", "settings": {}}
    case = json.dumps(json.loads(RESULTS[0])["cases"][0])
    put(here / journal.JOURNAL_FILE, mutant(rnd, f"{json.dumps(begun)}\n{case}\n{case}\n".encode()))
    journal.read(here)


def fuzz_statistics(rnd: random.Random, here: Path) -> None:
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, mu=np.zeros(4), sigma=np.eye(4))
    read_statistics(put(here / "s.npz", changed_bytes(rnd, buffer.getvalue())))


def fuzz_livecodebench(rnd: random.Random, here: Path) -> None:
    tests = json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])
    hidden = pickle.dumps(mutant(rnd, tests.encode()).decode("utf-8", "replace"))
    hidden = changed_bytes(rnd, hidden) if rnd.random() < 0.5 else hidden
    hidden = zlib.compress(hidden)
    hidden = changed_bytes(rnd, hidden) if rnd.random() < 0.2 else hidden
    row = {
        "question_id": "a",
        "public_test_cases": tests,
        "private_test_cases": base64.b64encode(hidden).decode(),
        "metadata": "{}",
    }
    content = json.dumps(row).encode()
    if rnd.random() < 0.5:
        content = mutant(rnd, content)
    file = put(here / "test.jsonl", content.replace(b"\n", b" ") + b"\n")
    Archive("s", str(file)).task(file, 0)


@cache
def good_store() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        store_folder = Path(folder)
        files = [put(store_folder / f"{n}.json", content) for n, content in enumerate(RESULTS)]
        command("store", "import", *files, "--store", store_folder / "s.db")
        with contextlib.closing(sqlite3.connect(store_folder / "s.db")) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
        return (store_folder / "s.db").read_bytes()


def changed_store(rnd: random.Random, file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        table = rnd.choice(sorted(name for (name,) in tables))
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        column = rnd.choice(columns)
        (old,) = connection.execute(f"SELECT {column} FROM {table}").fetchone() or (None,)
        value = rnd.choice(VALUES)
        if isinstance(old, str) and rnd.random() < 0.6:
            value = mutant(rnd, old.encode())
            value = value.decode("utf-8", "replace") if rnd.random() < 0.8 else value
        elif isinstance(old, bytes) and rnd.random() < 0.6:
            value = zlib.compress(mutant(rnd, zlib.decompress(old)))
        with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeError):
            connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
            connection.commit()


def fuzz_store(rnd: random.Random, here: Path) -> None:
    file = put(here / "s.db", good_store())
    if rnd.random() < 0.4:
        file.write_bytes(changed_bytes(rnd, good_store()))
    else:
        changed_store(rnd, file)
    words: list[tuple[object, ...]] = [
        ("store", "export", "-o", here / "out"),
        ("history", "speed"),
        ("report", "--format", "html", "-o", here / "site"),
        ("store", "import", put(here / "r.json", RESULTS[0])),
    ]
    command(*rnd.choice(words), "--store", file)


READERS: dict[str, Work] = {
    name.removeprefix("fuzz_"): work
    for name, work in sorted(globals().items())
    if name.startswith("fuzz_")
}


def defects(reader: str, seeds: range) -> tuple[Counter[str], list[str]]:
    """Return how many files were read or refused, and each other end with its seed."""
    counts: Counter[str] = Counter()
    ends = []
    working_folder = Path.cwd()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            quiet = io.StringIO()
            try:
                with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                    READERS[reader](random.Random(f"{reader}-{seed}"), Path(folder))
                counts["read or refused by a command"] += 1
            except MlperfError:
                counts["refused"] += 1
            except BaseException as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                name = Path(where.filename).name
                ends.append(f"{reader} {seed}: {type(error).__name__} {name}:{where.lineno}")
                counts["TRACEBACK"] += 1
            finally:
                os.chdir(working_folder)
    return counts, ends


def every(files: int) -> list[str]:
    """Fuzz all readers with this many files in all, a fifth of them stores."""
    count_per_reader = -(-files * 4 // 5 // (len(READERS) - 1))
    ends = []
    for reader in READERS:
        count = files // 5 if reader == "store" else count_per_reader
        counts, more = defects(reader, range(count))
        ends += more
        print(f"{reader}: {count} files, {dict(counts)}", flush=True)
    return ends


if __name__ == "__main__":
    print("\n".join(every(int(sys.argv[1]))) or "no traceback")
