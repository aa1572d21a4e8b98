"""Files that others wrote go through one reader, which bounds and reads them once."""

from __future__ import annotations

import ast
import copy
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_mlperf.cli.across import read_prices
from pytest_mlperf.cli.stored_results import verified_results
from pytest_mlperf.core.errors import MlperfError, RunError, SuiteError
from pytest_mlperf.run.curve import read_curve
from pytest_mlperf.run.logs import parse_detail
from pytest_mlperf.stores import baselines, foreign, journal
from pytest_mlperf.stores.endpoints import events_of, read_configuration
from pytest_mlperf.stores.foreign import (
    MAX_FILE_BYTES,
    MAX_PART_BYTES,
    NumpyArchive,
    UnfitError,
    lines_of,
    read_regular,
)
from pytest_mlperf.stores.results import read_manifest, read_results, sealed
from pytest_mlperf.suite.load import load_suite
from tests.sources import ROOT, modules, parsed

RAW = {
    "json": {"load", "loads"},
    "tomllib": {"load", "loads"},
    "zlib": {"decompress", "decompressobj"},
    "gzip": {"open", "decompress", "GzipFile"},
    "bz2": {"open", "decompress", "BZ2File"},
    "lzma": {"open", "decompress", "LZMAFile"},
    "zipfile": {"ZipFile"},
    "tarfile": {"open", "TarFile"},
    "pickle": {"load", "loads", "Unpickler", "_Unpickler"},
    "yaml": {"load", "safe_load"},
    "csv": {"reader", "DictReader"},
    "np": {"load"},
}
"""What parses or unpacks without limits."""

READER = {"core.untrusted", "stores.foreign"}

SHIPPED = "a file of this package"
OURS = "written by this package in the same session"
CHILD = "a line of a child process that this package started, bounded by its reader"
RECORD = "a text in a record that was read and checked already"
DATA = "a data set, model or tool that the suite names: as large as the machine allows"
ANSWER = "an answer of a model or server, bounded by its engine"
BOUNDED = "bounded by the module itself, in another format"

EXCEPTIONS = {
    **dict.fromkeys(
        (
            "addons.official.commands.submission",
            "hardware.specs",
            "reports.sentences",
            "rounds",
            "rounds.compliance",
            "rounds.endpoints",
        ),
        SHIPPED,
    ),
    **dict.fromkeys(("rounds.published", "rounds.work"), SHIPPED),
    "reports.sentences": "a file of the package",
    **dict.fromkeys(("core.baseline", "reports.causes", "bench.accuracy", "bench.earlier"), RECORD),
    **dict.fromkeys(
        (
            *("run.checkpoints._store", "run.checkpoints.child", "run.child.environments"),
            *("run.power.sampling", "run.score", "stores.artefacts"),
            *("run.worker._pipe", "plugin.benchmark_process", "addons.fleet.child"),
            *("addons.fleet.running", "addons.fleet.shipping", "plugin.deferred"),
            *(
                "addons.official.about",
                "adapters.engines.openai._count",
                "adapters.engines.openai.endpoints",
            ),
            *("adapters.scorers.code.livecodebench_inside", "adapters.scorers.code.sandbox_child"),
            "adapters.scorers.code.sandbox_inside",
        ),
        OURS,
    ),
    **dict.fromkeys(
        (
            *("cli.doctor.requirements", "hardware.machine", "hardware.memory"),
            *("addons.fleet.bridge", "addons.fleet.link", "addons.fleet.node", "run.child.events"),
            *("run.child.protocol", "run.conditions", "run.power_limit", "run.worker.worker"),
            *(
                "adapters.engines.serving",
                "adapters.scorers.code.sandbox",
                "adapters.scorers.reasoning._mathematics",
            ),
        ),
        CHILD,
    ),
    **dict.fromkeys(
        (
            *(
                "adapters.datasets.bfcl",
                "adapters.datasets.files.annotated",
                "adapters.datasets.files.columns",
            ),
            *(
                "adapters.datasets.files.arrays",
                "adapters.datasets.files.json_lines",
                "adapters.datasets.files.latents",
            ),
            *(
                "adapters.datasets.files.pickle_files",
                "adapters.datasets.files.pickles",
                "adapters.datasets.igbh",
            ),
            *(
                "adapters.datasets.kits19",
                "adapters.datasets.squad._features",
            ),
            *(
                "adapters.datasets.streaming",
                "adapters.engines",
            ),
            *(
                "adapters.engines.llm.model_folder",
                "adapters.scorers.images._clip",
                "adapters.scorers.text",
                "adapters.scorers.vbench",
            ),
        ),
        DATA,
    ),
    **dict.fromkeys(
        (
            *(
                "adapters.conventions",
                "adapters.engines.openai._events",
                "adapters.scorers.function_calls",
            ),
            *("adapters.scorers.function_calls._extract", "adapters.scorers.judged"),
        ),
        ANSWER,
    ),
    "cli.suites": "pytest's configuration, which pytest itself has read before",
    "addons.judge.files": BOUNDED,
    "core.energy.meter": BOUNDED,
    "hardware.power_limit": BOUNDED,
    "run.builds": "pyproject.toml of a commit whose code pip then installs and runs",
    "stores.endpoints": "YAML of 64 KiB at most, without aliases",
}
"""Modules that may use such a parser directly, and the reason."""


def raw_parsers(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in RAW.get(module, ()):
                yield f"{module}.{name}"
            case ast.ImportFrom(module=str(module), names=names):
                yield from (alias.name for alias in names if alias.name in RAW.get(module, ()))


def test_every_reader_of_foreign_files_uses_the_bounded_one() -> None:
    """A new module that parses by itself fails here: use the reader, or add it with a reason."""
    users = {name for name, path in modules().items() if any(raw_parsers(path))}
    assert users - READER == set(EXCEPTIONS)


def folder_of(file: Path, name: str) -> Path:
    (file.parent / name).symlink_to(file)
    return file.parent


READERS: dict[str, Callable[[Path], object]] = {
    "suite": load_suite,
    "baseline": baselines.load,
    "results": read_results,
    "manifest": read_manifest,
    "prices": read_prices,
    "loadgen log": parse_detail,
    "curve": read_curve,
    "journal": lambda file: journal.read(folder_of(file, journal.JOURNAL_FILE)),
    "endpoints events": lambda file: list(events_of(folder_of(file, "events.jsonl"), b"")),
    "endpoints configuration": lambda file: read_configuration(folder_of(file, "config.yaml")),
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_pipe_or_reads_a_device(name: str, tmp_path: Path) -> None:
    for kind in ("pipe", "device"):
        file = tmp_path / kind / "file"
        file.parent.mkdir()
        if kind == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to("/dev/zero")
        with pytest.raises((MlperfError, RunError, SuiteError), match=r"a pipe|a device|damaged"):
            READERS[name](file)


def test_a_file_that_changes_while_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "r.json"
    file.write_bytes(b"{}" * 100)
    monkeypatch.setattr(foreign, "READ_BYTES", 10)

    class ChangingFile(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            os.utime(file, ns=(0, 0))
            return super().read(size)

    monkeypatch.setattr(io, "FileIO", ChangingFile)
    with pytest.raises(MlperfError, match=r"r\.json: cannot be read: it changed while"):
        read_results(file)


def test_lines_are_bounded_each(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"abc\n" * 3 + b"x" * 10)
    assert list(lines_of(file, 10)) == [b"abc\n"] * 3 + [b"x" * 10]
    with pytest.raises(UnfitError, match="line of more than"):
        list(lines_of(file, 9))
    with pytest.raises(UnfitError, match="larger than"):
        read_regular(file, 21)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_are_bounded_and_of_known_methods(method: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(1000))
    NumpyArchive(buffer.getvalue(), max_bytes=1000)
    with pytest.raises(ValueError, match=r"a unpacks to 1,000 bytes \(at most 999\)"):
        NumpyArchive(buffer.getvalue(), max_bytes=999)
    with zipfile.ZipFile(buffer, "a", method) as archive:
        archive.writestr("b.npy", bytes(10))
    with pytest.raises(ValueError, match="compressed by an unsupported"):
        NumpyArchive(buffer.getvalue(), max_bytes=1000)


def test_verified_results_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that were signed are those that are parsed and digested."""
    file = tmp_path / "results.json"
    recorded = ROOT / "tests/data/replay/slowed/results.json"
    file.write_bytes(recorded.read_bytes())
    forged = file.read_text("utf-8").replace("PERF", "OK")
    reads: list[Path] = []

    def read_then_swap(path: Path, max_bytes: int) -> bytes:
        content = read_regular(path, max_bytes)
        if path == file:
            reads.append(path)
            file.write_text(forged, "utf-8")
        return content

    def signer_of(path: Path, content: bytes, allowed: Path) -> str:
        assert (path, content, allowed) == (file, recorded.read_bytes(), tmp_path / "allowed")
        return "lab"

    monkeypatch.setattr(foreign, "read_regular", read_then_swap)
    monkeypatch.setattr("pytest_mlperf.cli.stored_results.verified", signer_of)
    results, _ = verified_results(file, tmp_path / "allowed")
    assert (results, reads) == (read_results(recorded), [file])


LIMITED = """
import sys
from pathlib import Path
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.stores.baselines import load
from pytest_mlperf.stores.results import read_results
try:
    print("read", (load if sys.argv[1] == "baseline" else read_results)(Path(sys.argv[2])).schema)
except MlperfError as error:
    print(str(error).splitlines()[0])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def check_within_400_mb(kind: str, file: Path, *, is_read: bool) -> None:
    """Read a file in a process of its own, and require that it is read or refused in words."""
    command = [sys.executable, "-c", LIMITED, kind, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed, peak_kb = done.stdout.strip().rsplit("\n", 1)
    assert int(peak_kb) < 400_000
    assert printed.startswith("read " if is_read else f"{file}: ")


def largest_results() -> bytes:
    """Return the largest results file that is read, of as many tests as it can have."""
    recorded = json.loads((ROOT / "tests/data/replay/unchanged/results.json").read_text("utf-8"))
    size = len(json.dumps({"cases": recorded["cases"]}, indent=1))
    recorded["cases"] *= MAX_FILE_BYTES // size - 1
    content = json.dumps(sealed(recorded), indent=1).encode()
    return content + b" " * (MAX_FILE_BYTES - len(content))


HEAD = b'{"schema": 1, "cases": ['

BOMBS = {
    "zeros": (HEAD, b"0,", 15_000_000, b"0]}"),
    "objects": (HEAD, b"{},", 700_000, b"{}]}"),
    "small objects": (HEAD, b'{"a":""},', 700_000, b"{}]}"),
    "one test": (HEAD + b'{"verdict":{"runs":[', b'{"a":""},', 700_000, b"{}]}}]}"),
    "keys": (HEAD + b"{", b'"k%d":0,', 1_490_000, b'"k":0}]}'),
    "defects": (HEAD + b'{"rests_on":{', b'"k%d":0,', 99_000, b'"k":0}}]}'),
    "wide text": (b'{"schema": 1, "run": "\xf0\x9f\x98\x80', b"x", MAX_FILE_BYTES - 50, b'"}'),
    "blanks": (b"", b" ", MAX_FILE_BYTES, b""),
    "deep": (b"", b"[", 5_000_000, b""),
}
"""What begins a file, what is repeated, how often, and what ends it."""


def bomb(begin: bytes, piece: bytes, count: int, end: bytes) -> bytes:
    items = map(piece.__mod__, range(count)) if b"%" in piece else (piece * count,)
    return begin + b"".join(items) + end


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("name", ["largest", *BOMBS])
def test_results_at_the_limit_are_read_within_400_mb(name: str, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_bytes(bomb(*BOMBS[name]) if name in BOMBS else largest_results())
    check_within_400_mb("results", file, is_read=name not in BOMBS)


@pytest.mark.process
def test_baselines_at_the_limit_are_read_within_400_mb(tmp_path: Path) -> None:
    """Of 2,000 runs; of one long text, alone too; with 200,000 keys that no baseline has."""
    recorded = ROOT / "tests/data/replay/baselines/cpu/quick/speed/Offline.today.fp32.json"
    document = json.loads(recorded.read_text("utf-8"))
    many = copy.deepcopy(document)
    many["records"][0]["runs"] *= 1000
    keys = {f"key of no baseline {number:012}": 0 for number in range(200_000)}
    text = {"workload": "\U0001f600" + "x" * (MAX_PART_BYTES - 5000)}
    short = {"schema": document["schema"], **text}
    rows = ((many, True), (document | text, True), (document | keys, False), (short, False))
    for content, is_read in rows:
        file = tmp_path / "b.json"
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False), "utf-8")
        with file.open("ab") as end:
            end.write(b" " * (MAX_PART_BYTES - file.stat().st_size))
        check_within_400_mb("baseline", file, is_read=is_read)
