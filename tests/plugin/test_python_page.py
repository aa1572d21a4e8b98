"""The code of docs/python.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.plugin.project import Project

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_examples_make_a_test_that_is_measured(project: Project) -> None:
    """Engine, data set and test, copied from the page; only the length is cut."""
    engine, _, words, test = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (project.path / "my_engines.py").write_text(f"{engine}\n\n{words}")
    short = test.replace('"2s"', '"50ms", target_qps=1000')
    (project.path / "test_reverser.py").write_text(short)

    done = project.run_process("test_reverser.py")

    done.stdout.fnmatch_lines(["*1 no baseline*"])
    assert len(project.run_folders()) == 1


def test_the_example_of_a_scorer_scores() -> None:
    _, scorer, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(scorer, names)

    scores = names["Words"](model=None).score([b"noon", b"radar"], ["noon", "level"])

    assert scores.per_sample == {"same": [100.0, 0.0]}
    assert scores.aggregate == {"same": 50.0}
