from __future__ import annotations

from tests.plugin.project import *

def test_a(project: Project) -> None:
    project.suite(top1=100.0)
    project.baseline(near(RATE))
    r = project.pytest("suites", "-v")
    print(project.cases())
    assert last_line(r) == "2 passed"
    assert section(r) == []
