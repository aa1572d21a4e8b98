"""Tables are read without running anything that they say."""

from __future__ import annotations

import copyreg
import gzip
import io
import os
import pickle
import signal
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.datasets.files.frames import TABLE_LIMIT, read_frame
from pytest_mlperf.adapters.datasets.files.pickle_files import UNPACKED_LIMIT
from pytest_mlperf.adapters.datasets.files.pickled import PICKLE_NAMES, PickledFrame
from pytest_mlperf.adapters.datasets.files.pickles import Name, PickledObject, PickleError, parse
from pytest_mlperf.core.errors import EnvironmentFault, RunError, UnavailableError
from tests.adapters.datasets.refusals import not_refused

OLD = Path(__file__).parent / "frames"


def plain(cell: object) -> object:
    """Return a cell for comparison: arrays as lists, NaN as a word."""
    if isinstance(cell, np.ndarray):
        return cell.tolist()
    return "nan" if isinstance(cell, float) and cell != cell else cell


def cells(path: Path, name: str) -> list[object]:
    return [plain(cell) for cell in read_frame(path, columns=(name,))[name]]


def text(value: str) -> bytes:
    """Return the instruction that pushes a short text."""
    raw = value.encode()
    return pickle.SHORT_BINUNICODE + bytes([len(raw)]) + raw


def named(module: str, name: str) -> bytes:
    """Return the instructions that push a class or function, as protocols 4 and 5 write them."""
    return text(module) + text(name) + pickle.STACK_GLOBAL


def written(*instructions: bytes, protocol: int = 4) -> bytes:
    return pickle.PROTO + bytes([protocol]) + b"".join(instructions) + pickle.STOP


def parsed(data: bytes, *, max_bytes: int = 2**20) -> Any:
    return parse(io.BytesIO(data), PICKLE_NAMES, max_bytes=max_bytes)


@contextmanager
def traced_peaks() -> Iterator[list[int]]:
    """Append to a list the most memory that was allocated inside."""
    peaks: list[int] = []
    tracemalloc.start()
    try:
        yield peaks
    finally:
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


def test_tables_of_older_pandas_are_read() -> None:
    """Whatever pandas is installed, or none."""
    expected = {
        "id": ["cot.0", "cot.2", "cot.3", "cot.4"],
        "system_prompt": ["", "Be kind — always.", "Be brief.", ""],
        "tok_input": [list(range(1, 3 + 400 * number)) for number in (0, 2, 3, 4)],
        "tok_output": [[], [0, 1], [0, 1, 2], [0, 1, 2, 3]],
        "tok_input_length": [2, 802, 1202, 1602],
        "score": [0.5, 1.0, 2.0, 3.0],
        "good": [True, True, False, True],
        "maybe": [7, "x", 1.5, b"y"],
        "text": ["What is 0 + 0?", "What is 2 + 2?", None, "What is 4 + 4?"],
    }
    for version in ("1.5.3", "2.3.3"):
        path = OLD / f"pandas-{version}.pkl"
        assert {name: cells(path, name) for name in expected} == expected


@pytest.mark.process
def test_reading_a_pickle_needs_no_pandas() -> None:
    """MLPerf's tables are read where pandas and pyarrow are not installed, and import neither."""
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('pandas', 'pyarrow')))\n"
        "from pathlib import Path\n"
        "from pytest_mlperf.adapters.datasets.files.frames import read_frame\n"
        "print(read_frame(Path(sys.argv[1]), columns=('id',))['id'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(OLD / "pandas-2.3.3.pkl")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "['cot.0', 'cot.2', 'cot.3', 'cot.4']\n"


INTEGERS = st.one_of(st.integers(0, 70_000), st.integers(-(2**63), 2**63 - 1))
COLUMNS = {
    "text": st.text(max_size=300),
    "texts or nothing": st.none() | st.text(max_size=5),
    "whole": st.integers(-(2**63), 2**63 - 1),
    "real": st.floats(width=64),
    "truth": st.booleans(),
    "tokens": st.lists(INTEGERS, max_size=20),
    "many tokens": st.integers(0, 2200).map(lambda size: [7 * i for i in range(size)]),
    "array": st.sampled_from(["<i4", ">i8", "<u2", "<f8", "|b1"]).flatmap(
        lambda kind: st.lists(st.integers(0, 1), max_size=4).map(lambda v: np.array(v, kind))
    ),
    "words": st.lists(st.none() | st.text(max_size=3) | st.floats(), max_size=3),
    "anything": st.one_of(
        st.none(), st.text(max_size=3), st.binary(max_size=3), st.floats(), st.booleans()
    ),
    "beyond 64 bits": st.integers(2**64, 2**80),
}


@given(data=st.data(), rows=st.integers(0, 4), protocol=st.integers(2, 5), python=st.booleans())
def test_what_pandas_writes_is_read(
    data: st.DataObject, rows: int, protocol: int, *, python: bool
) -> None:
    """Whatever text, numbers and lists a table holds come back, in every protocol."""
    pd = pytest.importorskip("pandas")
    names = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, min_size=1))
    values = {name: [data.draw(COLUMNS[name]) for _ in range(rows)] for name in names}
    with pd.option_context("mode.string_storage", "python" if python else "auto"):
        columns = {
            name: pd.Series(column, dtype=None if name in ("text", "whole", "real") else object)
            for name, column in values.items()
        }
        file = io.BytesIO(pickle.dumps(pd.DataFrame(columns), protocol=protocol))

    frame = PickledFrame(file, max_bytes=2**20)

    columns_read = {name: frame.column(place) for place, name in enumerate(frame.labels)}
    for name in names:
        assert [listed(cell) for cell in columns_read[name]] == [
            listed(cell) for cell in values[name]
        ]


def listed(cell: object) -> object:
    """Return a cell for comparison, with lists and NaN inside."""
    cell = plain(cell)
    return [plain(item) for item in cell] if isinstance(cell, list) else cell


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(st.integers(0, 2**31), max_size=2100)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_objects_are_read_as_python_reads_them(value: object, protocol: int) -> None:
    """Text, numbers, lists, tuples and dictionaries come back, apart from the packing of lists."""
    parsed_value = parsed(pickle.dumps([value, value], protocol=protocol))

    assert unpacked(parsed_value) == [value, value]


def unpacked(value: object) -> object:
    match value:
        case PickledObject(name="encode", args=(str() as raw, "latin1")):
            return raw.encode("latin-1")
        case PickledObject(name="bytes", args=()):
            return b""
        case list():
            flat: list[object] = []
            for item in value:
                flat.extend(item.tolist() if isinstance(item, np.ndarray) else [unpacked(item)])
            return flat
        case tuple():
            return tuple(unpacked(item) for item in value)
        case dict():
            return {key: unpacked(item) for key, item in value.items()}
    return value


def test_a_compressed_table_is_known_by_its_content(tmp_path: Path) -> None:
    """The name does not count: the same table with gzip has the same cells."""
    data = (OLD / "pandas-2.3.3.pkl").read_bytes()
    packed = tmp_path / "table.pkl"
    packed.write_bytes(gzip.compress(data))

    assert cells(packed, "question") == cells(OLD / "pandas-2.3.3.pkl", "question")


def test_tokens_take_little_memory(tmp_path: Path) -> None:
    """Reading takes less than three bytes per byte of the file; Python's unpickler takes five."""
    pd = pytest.importorskip("pandas")
    path = tmp_path / "table.pkl"
    row = list(range(1000, 1300))
    pd.DataFrame({"tok_input": [row[:] for _ in range(500)]}).to_pickle(path)

    with traced_peaks() as peaks:
        read = read_frame(path, columns=("tok_input",))

    assert len(read["tok_input"]) == 500
    # The window on the file has up to 2 MiB, whatever the size of the file.
    assert peaks[0] - 2 * 2**20 < 3 * path.stat().st_size


class Evil:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.call


def touch_by_getattr(canary: Path) -> bytes:
    """getattr(__import__("os"), "system")("touch …"), from instructions."""
    module = named("builtins", "__import__") + text("os") + pickle.TUPLE1 + pickle.REDUCE
    system = named("builtins", "getattr") + module + text("system") + pickle.TUPLE2 + pickle.REDUCE
    return written(system, text(f"touch {canary}"), pickle.TUPLE1, pickle.REDUCE)


def touch_by_old_instructions(canary: Path) -> bytes:
    """INST, of protocol 0, in a pickle that calls itself protocol 2."""
    return written(f"(S'touch {canary}'\nios\nsystem\n".encode(), protocol=2)


def touch_by_state(canary: Path) -> bytes:
    """BUILD a frame whose state is a call: the call comes first."""
    call = named("os", "system") + text(f"touch {canary}") + pickle.TUPLE1 + pickle.REDUCE
    return written(named("builtins", "Exception"), pickle.EMPTY_TUPLE, pickle.NEWOBJ, call, b"b")


def in_object_array(canary: Path) -> bytes:
    """A NumPy array of objects, one of which is a call."""
    array = np.array(["harmless", Evil(os.system, f"touch {canary}")], dtype=object)
    return pickle.dumps(array)


def in_list_of_frame(canary: Path) -> bytes:
    """A DataFrame with a list in a cell, in which is a call."""
    pd = pytest.importorskip("pandas")
    cell = [1, 2, Evil(os.system, f"touch {canary}")]
    return pickle.dumps(pd.DataFrame({"id": ["a"], "tok_input": [cell]}))


HOSTILE: list[tuple[Callable[[Path], bytes], str]] = [
    (lambda canary: pickle.dumps(Evil(os.system, f"touch {canary}")), "posix.system"),
    (lambda canary: pickle.dumps(Evil(os.system, f"touch {canary}"), protocol=2), "posix.system"),
    (lambda canary: pickle.dumps(Evil(exec, f"open('{canary}', 'w').close()")), "builtins.exec"),
    (lambda canary: pickle.dumps(Evil(eval, f"open('{canary}', 'w').close()")), "builtins.eval"),
    (
        lambda canary: pickle.dumps(Evil(subprocess.Popen, ["touch", str(canary)])),
        "subprocess.Popen",
    ),
    (
        lambda canary: written(named("io", "open"), text(str(canary)), text("w"), b"\x86R"),
        "io.open",
    ),
    (
        lambda canary: pickle.dumps(Evil(np.memmap, str(canary), "uint8", "w+", 0, (1,))),
        "numpy.memmap",
    ),
    (touch_by_getattr, "builtins.getattr"),
    (touch_by_old_instructions, "the pickle opcode b'S'"),
    (touch_by_state, "builtins.Exception"),
    (in_object_array, "posix.system"),
    (in_list_of_frame, "posix.system"),
]

DETONATE = """\
import contextlib, pickle, sys
for path in sys.argv[1:]:
    with contextlib.suppress(Exception):
        loaded = pickle.load(open(path, "rb"))
        if hasattr(loaded, "wait"):
            loaded.wait()
"""


@pytest.mark.process
def test_hostile_pickles_are_named_and_never_executed(tmp_path: Path) -> None:
    """The canaries live when we read the files, and die when Python's unpickler does."""
    canaries = [tmp_path / f"canary{number}" for number in range(len(HOSTILE))]
    paths = [tmp_path / f"{number}.pkl" for number in range(len(HOSTILE))]
    rows = []
    for canary, path, (build, message) in zip(canaries, paths, HOSTILE, strict=True):
        path.write_bytes(build(canary))
        called = (
            message if " " in message else f"tries to call {message}; such a file is never executed"
        )
        rows.append((path, f"{path}: .*{called}"))
    assert not_refused(RunError, rows, lambda path: read_frame(path, columns=("id",))) == []
    assert [canary.exists() for canary in canaries] == [False] * len(HOSTILE)

    command = [sys.executable, "-W", "ignore", "-c", DETONATE, *map(str, paths)]
    subprocess.run(command, check=False, capture_output=True)
    assert [canary.exists() for canary in canaries] == [True] * len(HOSTILE)


FLAGS_OF_NUMBERS = written(
    named("numpy._core.numeric", "_frombuffer"),
    b"(" + pickle.SHORT_BINBYTES + b"\x08AAAAAAAA",
    named("numpy", "dtype") + text("O8") + b"\x89\x88\x87R",
    b"(K\x03" + text("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
    b"K\x01\x85" + text("C") + b"tR",
)
"""An array of NumPy's type of objects, whose flags its state says anew."""
DEEP_KEY = written(b"})" + pickle.TUPLE1 * 200_000 + b"K\x01s")
LOAD_ALLOWED = """\
import pickle, sys
from pytest_mlperf.adapters.datasets.files.pickled import PICKLE_NAMES
class Allowed(pickle.Unpickler):
    def find_class(self, module, name):
        assert (module, name) in PICKLE_NAMES
        return super().find_class(module, name)
loaded = Allowed(open(sys.argv[1], "rb")).load()
print(str(loaded.to_pylist() if hasattr(loaded, "to_pylist") else loaded)[:0])
"""


class Restored:
    """Pickled as Arrow pickles an array."""

    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def arrow_text() -> bytes:
    """Return an array of Arrow with a text that ends far beyond its bytes."""
    pa = pytest.importorskip("pyarrow")
    restore, (parts,) = pa.array(["x"]).__reduce__()
    ends = pa.py_buffer((0).to_bytes(4, "little") + (2**30).to_bytes(4, "little"))
    wrong = [*parts]
    wrong[4] = [parts[4][0], ends, parts[4][2]]
    return pickle.dumps(Restored(restore, (tuple(wrong),)))


@pytest.mark.nightly
@pytest.mark.process
def test_an_unpickler_of_allowed_names_ends_python(tmp_path: Path) -> None:
    """Why the unpickler in C and NumPy's own classes are not used, even behind an allow-list."""
    statuses = []
    for content in (FLAGS_OF_NUMBERS, DEEP_KEY, arrow_text()):
        (tmp_path / "table.pkl").write_bytes(content)
        command = [sys.executable, "-W", "ignore", "-c", LOAD_ALLOWED, str(tmp_path / "table.pkl")]
        statuses.append(subprocess.run(command, check=False, capture_output=True).returncode)

    assert statuses == [-signal.SIGSEGV] * 3


REFUSED_NAMES = """
    os:system nt:system builtins:getattr builtins:setattr builtins:__import__ builtins:open
    builtins:bytearray.fromhex functools:partial operator:attrgetter importlib:import_module
    numpy:load numpy:fromfile numpy.core.multiarray:fromfile numpy._core.multiarray:fromfile
    numpy.core.multiarray:dtype numpy.testing._private.utils:runstring pandas:eval
    pandas:read_pickle pandas.core.frame:DataFrame.to_csv pandas.core.computation.eval:eval
    pyarrow.lib:memory_map torch:load timeit:timeit collections:OrderedDict
"""


def test_names_that_tables_do_not_need_are_refused_in_both_notations() -> None:
    """GLOBAL and STACK_GLOBAL give way to the same list; a dotted name leads nowhere."""
    rows = [(written(named("\x1b[31mos", "sys\ntem")), r"it tries to call \x1b[31mos.sys\ntem;")]
    for entry in REFUSED_NAMES.split():
        module, name = entry.split(":")
        message = f"it tries to call {module}.{name}; such a file is"
        rows.append((written(f"c{module}\n{name}\n".encode(), protocol=2), message))
        rows.append((written(named(module, name)), message))

    assert not_refused(PickleError, rows, parsed, start="it tries to call ") == []


def test_an_admitted_name_is_only_a_label() -> None:
    """Nothing is looked up: the description of a call is what stays of the call."""
    call = named("builtins", "bytearray") + pickle.BININT + struct.pack("<i", 2**31 - 1)

    call_parsed = parsed(written(call, pickle.TUPLE1, pickle.REDUCE))

    assert (call_parsed.name, call_parsed.args) == ("bytearray", (2**31 - 1,))
    assert parsed(written(named("pandas", "NA"))) == Name("NA")


def test_an_extension_code_is_refused_even_where_it_is_registered() -> None:
    copyreg.add_extension("posix", "system", 240)
    try:
        data = pickle.dumps(os.system, protocol=2)
        assert pickle.loads(data) is os.system

        with pytest.raises(PickleError, match=r"the pickle opcode b'\\x82'"):
            parsed(data)
    finally:
        copyreg.remove_extension("posix", "system", 240)


def test_content_that_no_writer_produces_is_refused() -> None:
    rows = [
        (written(b"Pabc\n", protocol=2), "the pickle opcode b'P'"),
        (written(text("abc"), pickle.BINPERSID), "the pickle opcode b'Q'"),
        (written(pickle.NEXT_BUFFER, protocol=5), r"the pickle opcode b'\\x97'"),
        (written(b"(", named("builtins", "slice"), b"o"), "the pickle opcode b'o'"),
        (written(pickle.PROTO, b"\x02"), r"the pickle opcode b'\\x80'"),
        (b"(lp0\n.", "not a pickle of protocol 2 to 5"),
        (written(protocol=6), "not a pickle of protocol 2 to 5"),
        (written(text("os"), b")R"), "damaged"),
        (written(b"]", b")R"), "damaged"),
        (written(named("builtins", "slice"), b"K\x01R"), "damaged"),
        (written(named("builtins", "slice"), b"}b"), "damaged"),
        (written(b")K\x01a"), "damaged"),
        (written(b"]K\x01K\x02s"), "damaged"),
        (written(b"})K\x01s"), "a key that is neither text nor a number"),
        (written(b"}(K\x01u"), "damaged"),
        (written(b"h\x07"), "damaged"),
        (written(b"t"), "damaged"),
        (written(), "damaged"),
        (written(b"\x8c\x02\xff\xff"), "damaged"),
    ]
    assert not_refused(PickleError, rows, parsed) == []


def test_a_size_that_a_file_claims_is_not_believed() -> None:
    for instructions in (
        pickle.BINBYTES8 + struct.pack("<Q", 2**60),
        pickle.BINUNICODE8 + struct.pack("<Q", 2**64 - 1),
        pickle.BYTEARRAY8 + struct.pack("<Q", 2**40),
        pickle.FRAME + struct.pack("<Q", 2**62),
        b"N" + pickle.LONG_BINPUT + struct.pack("<I", 2**32 - 1) + b"0",
    ):
        with traced_peaks() as peaks, pytest.raises(PickleError):
            parsed(written(instructions))
        assert peaks[0] < 2**20


def test_a_file_that_unpacks_to_too_much_is_refused_early(tmp_path: Path) -> None:
    """A gzip bomb costs no more memory than the limit, or than its stated length if it has one.

    An item that is longer than the limit is refused by its length.
    """
    path, zeros = tmp_path / "bomb.pkl.gz", 32 * 2**20
    for length, content, limit, peak in (
        (zeros, zeros, 4_000_000, 10 * 2**20),
        (2**40, 16 * 2**20, TABLE_LIMIT, 4 * 2**20),
    ):
        head = written(pickle.BINBYTES8, struct.pack("<Q", length))
        path.write_bytes(gzip.compress(head + bytes(content), 1))
        assert path.stat().st_size < 200_000
        message = f"it has more than {limit:,} bytes when unpacked"
        with traced_peaks() as peaks, pytest.raises(RunError, match=message):
            read_frame(path, columns=("id",), max_bytes=limit)
        assert peaks[0] < peak
    assert (TABLE_LIMIT, UNPACKED_LIMIT) == (2**30, 4 * 2**30)


SMALL = (OLD / "pandas-1.5.3.pkl").read_bytes()


@given(st.integers(0, len(SMALL) - 1))
def test_a_file_that_ends_early_is_damaged(size: int) -> None:
    """Wherever a file is cut, the end that is missing is noticed."""
    with pytest.raises(PickleError):
        PickledFrame(io.BytesIO(SMALL[:size]), max_bytes=2**20)


@given(
    st.lists(
        st.tuples(st.integers(0, len(SMALL) - 1), st.binary(max_size=4), st.integers(0, 4)),
        min_size=1,
        max_size=8,
    )
)
def test_a_damaged_file_is_refused_or_read_but_nothing_else(
    changes: Sequence[tuple[int, bytes, int]],
) -> None:
    """Bytes inserted, replaced or cut out lead to no error but ours."""
    data = bytearray(SMALL)
    for start, inserted, removed in changes:
        data[start : start + removed] = inserted
    try:
        frame = PickledFrame(io.BytesIO(bytes(data)), max_bytes=2**20)
        for start in range(len(frame.labels)):
            frame.column(start)
    except PickleError:
        pass


def array_record(raw: object, shape: object, code: str, order: str = "<") -> PickledObject:
    kind = PickledObject("dtype", (code,), (3, order))
    return PickledObject("_frombuffer", (raw, kind, shape, "C"))


def test_a_table_is_checked_before_numpy_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes, types and buffers that do not fit are refused, none is believed."""
    rows: list[Any] = [
        (array_record(bytes(8), (1, 2), "i8"), "malformed"),
        (array_record(bytes(8), (2, 1), "i4"), "malformed"),
        (array_record(bytes(8), (1, 10**12), "i8"), "malformed"),
        (array_record(bytes(8), "x", "i8"), "malformed"),
        (array_record(bytes(8), (1, 1), "M8[s]"), r"type 'M8\[s\]', which is not supported"),
        (array_record(bytes(8), (1, 1), "i8", "9999999999"), "which is not supported"),
        (array_record(["a"], (1, 2), "O8"), "malformed"),
        (array_record([["a", ["b"]]], (1, 1), "O8"), "a cell holds an object of type list"),
        (array_record([{}], (1, 1), "O8"), "a cell holds an object of type dict"),
        (array_record([PickledObject("slice", ())], (1, 1), "O8"), "an object of type slice"),
        (PickledObject("slice", ()), "a column is of the kind slice"),
        (PickledObject("bytearray", (2**40,)), "a column is of the kind bytearray"),
    ]
    labels = PickledObject(
        "_new_Index", (Name("Index"), {"data": array_record(["id"], (1,), "O8")})
    )

    def read(values: PickledObject) -> None:
        block = PickledObject("_unpickle_block", (values, PickledObject("slice", (0, 1, 1)), 2))
        manager = PickledObject("BlockManager", ((block,), [labels]))
        tree = PickledObject("DataFrame", (), {"_mgr": manager})
        # The records are what a pickle of the same content parses to.
        monkeypatch.setattr(
            "pytest_mlperf.adapters.datasets.files.pickled.parse", lambda *_, **__: tree
        )
        PickledFrame(io.BytesIO(), max_bytes=1).column(0)

    assert not_refused(PickleError, rows, read) == []


def test_other_and_damaged_files_are_not_read_as_tables(tmp_path: Path) -> None:
    rows: list[Any] = [
        (pickle.dumps({"id": [1]}), "it holds an object of type dict, not a pandas DataFrame"),
        (FLAGS_OF_NUMBERS, "not a pandas DataFrame"),
        (DEEP_KEY, "a key that is neither text nor a number"),
        (pickle.dumps([]), "it holds an object of type list, not a pandas DataFrame"),
        (pickle.dumps(np.zeros(3)), "an object of type _?[a-z]+, not a pandas DataFrame"),
        *((data, "get the table from its source again") for data in (b"", b"id\n1\n", b"\x1f\x8b")),
        (b"PAR", "get the table from its source again"),
        (gzip.compress(SMALL)[:-2000], "the file is damaged .*get the table from"),
    ]
    path = tmp_path / "table.pkl"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        read_frame(path, columns=("id",))

    named = [(content, f"{path}: .*{part}") for content, part in rows]
    assert not_refused(RunError, named, read) == []
    path.unlink()
    with pytest.raises(UnavailableError, match="this table does not exist"):
        read_frame(path, columns=("id",))


def test_a_table_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """One error, with the file, the reason and what to do."""
    unsupported = [
        ("pd.DataFrame([[1, 2]])", "its columns have numbers or several levels instead of names"),
        ("pd.DataFrame({('a', 'b'): [1]})", "its columns have numbers or several levels"),
        ("pd.DataFrame({'id': [{'a': 1}]})", "a cell holds an object of type dict"),
        ("pd.DataFrame({'id': [np.zeros((2, 2))]})", "array of several dimensions"),
    ]
    rows = [
        ("pd.Series(['a'])", "it holds an object of type Series"),
        (
            "pd.DataFrame({'id': pd.Categorical(['a'])})",
            r"it tries to call pandas[.\w]*\.Categorical",
        ),
        ("pd.DataFrame([[1, 2]], columns=['id', 'id'])", "more than one column 'id'"),
        (
            "pd.DataFrame({'question': ['a'], 'ids': ['b']})",
            "no column 'id', the nearest is 'ids'; it needs 'id', and has 'question', 'ids'",
        ),
        ("pd.DataFrame(columns=pd.Index([], dtype=object))", "it needs 'id', and has none"),
    ]
    pd = pytest.importorskip("pandas")
    path = tmp_path / "table.pkl"

    def read(make: str) -> None:
        path.write_bytes(pickle.dumps(eval(make, {"pd": pd, "np": np})))
        read_frame(path, columns=("id",))

    for refused, advice in ((rows, "data set's path"), (unsupported, "save the ")):
        assert not_refused(RunError, refused, read, start=f"{path}: ", advice=[advice]) == []


def test_parquet_is_read_with_the_same_cells(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    columns = {
        "id": ["a", None, "c"],
        "tok_input": [[1, 2, 3], [], None],
        "large": pa.array([[1], [2**40], []], pa.large_list(pa.int64())),
        "score": [0.5, None, 1.0],
        "words": [["x"], [], None],
    }
    parquet.write_table(pa.table(columns), path)

    read = read_frame(path, columns=tuple(columns))

    assert [plain(cell) for cell in read["tok_input"]] == [[1, 2, 3], [], None]
    assert read["tok_input"][0].dtype.kind == "i"
    assert [plain(cell) for cell in read["large"]] == [[1], [2**40], []]
    assert read["id"] == ["a", None, "c"]
    assert read["score"] == [0.5, None, 1.0]
    assert read["words"] == [["x"], [], None]
    with pytest.raises(RunError, match="no column 'question'"):
        read_frame(path, columns=("question",))


def test_damaged_parquet_and_text_of_arrow_are_named(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1 and then nothing of the kind PAR1")
    with pytest.raises(RunError, match="the Parquet file is damaged"):
        read_frame(path, columns=("id",))
    ends = pa.py_buffer((0).to_bytes(4, "little") + (2).to_bytes(4, "little"))
    text = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(b"\xff\xfe")])
    parquet.write_table(pa.table({"question": text}), path)
    with pytest.raises(RunError, match=r"table\.parquet: the Parquet file is damaged \('utf-8'"):
        read_frame(path, columns=("question",))
    (tmp_path / "table.pkl").write_bytes(arrow_text())
    with pytest.raises(RunError, match="not a pandas DataFrame"):
        read_frame(tmp_path / "table.pkl", columns=("id",))


def test_parquet_without_its_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1")

    with pytest.raises(EnvironmentFault, match="pytest-mlperf\\[parquet\\]"):
        read_frame(path, columns=("id",))
