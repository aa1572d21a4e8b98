"""Read the real sources of an engine's library into the table that our contract tests use.

    python tools/refresh_contracts.py --tensorrt-llm ~/TensorRT-LLM --vllm vllm-0.33.0-….whl

Each is a folder, a wheel or a zip file with the sources, of which nothing is run. The entry of the
same series is replaced, and all others stay: so a name that vanished is told with the version.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def refresh_tensorrt_llm(path: str, table: Path) -> list[str]:
    """Rewrite a table from a tree.

    Args:
        path: The tree.
        table: The file to rewrite.

    Returns:
        What is new in the tree, what is gone, and what our engine needs that it has not got.

    Raises:
        Missing: The tree lacks a file or class that it should have.
    """
    from tests.contracts import trees
    from tests.contracts.signatures import Source

    with Source.open(path) as source:
        version, names = trees.tree_version(source), trees.read_tree(source)
    history = trees.read_table(table)
    series = trees.series(version)
    entry = {
        "version": series,
        "source": f"Read from a tree of TensorRT-LLM {version} by tools/refresh_contracts.py.",
        "names": names,
    }
    kept = json.loads(table.read_text("utf-8"))["versions"]
    kept = [each for each in kept if each["version"] != series]
    table.write_text(trees.written(sorted([*kept, entry], key=_order)), "utf-8")
    before = [offered for known, offered in history if _order({"version": known}) <= _order(entry)]
    lines = _changes(before[-1], names) if before else []
    lacking = trees.problems(trees.used(), version, names, history)
    return [f"TensorRT-LLM {version}: {len(names)} classes read", *lines, *lacking]


def refresh_vllm(path: str) -> list[str]:
    """Read a wheel or tree of vLLM into its table; see `tests.contracts.vllm_table`."""
    from tests.contracts import vllm_table

    vllm_table.main([path])
    return []


def _changes(old: Mapping[str, Set[str]], new: Mapping[str, Set[str]]) -> list[str]:
    lines = []
    for cls in sorted({*old, *new}):
        mine, theirs = old.get(cls, set()), new.get(cls, set())
        for said, names in (("new", theirs - mine), ("gone", mine - theirs)):
            if names:
                lines.append(f"{cls}: {said}: {', '.join(sorted(names))}")
    return lines


def _order(entry: Mapping[str, object]) -> tuple[int, ...]:
    return tuple(int(part) for part in str(entry["version"]).split("."))


def main(arguments: Sequence[str] | None = None) -> None:
    """Refresh the tables that are asked for."""
    sys.path.insert(0, str(ROOT))
    from tests.contracts import trees
    from tests.contracts.signatures import Missing

    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensorrt-llm", metavar="TREE", help="sources of TensorRT-LLM")
    parser.add_argument("--vllm", metavar="WHEEL", help="wheel or sources of vLLM")
    parser.add_argument(
        "--table", type=Path, default=trees.TABLE, help="TensorRT-LLM's table (%(default)s)"
    )
    given = parser.parse_args(arguments)
    try:
        if given.tensorrt_llm:
            print("\n".join(refresh_tensorrt_llm(given.tensorrt_llm, given.table)))
        if given.vllm:
            print("\n".join(refresh_vllm(given.vllm)))
    except Missing as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
