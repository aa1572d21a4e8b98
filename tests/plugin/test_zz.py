from __future__ import annotations
import pytest
from tests.plugin.project import *

def show(r): 
    pass
def test_ok(project: Project) -> None:
    project.suite(top1=100.0)
    project.baseline(near(RATE))
    project.pytest("suites", "-v")
def test_drop(project: Project) -> None:
    project.suite(top1=100.0)
    project.baseline(near(RATE))
    project.pytest("suites", "-v", "--mlperf-handicap", "50%")
def test_improved(project: Project) -> None:
    project.suite()
    project.baseline(near(RATE/2))
    project.pytest("suites", "-v")
def test_inc(project: Project) -> None:
    project.suite()
    project.baseline(scattered(RATE))
    project.pytest("suites", "-v", "--mlperf-max-runs=2")
def test_gate(project: Project) -> None:
    project.suite(top1=200.0)
    project.baseline(near(RATE))
    project.pytest("suites", "-v")
def test_server(project: Project) -> None:
    project.suite(scenarios=SERVER, more="[limits]\n")
    project.baseline(near(.01), of=case("Server"), metric="latency_p50", target_qps=30)
    project.pytest("suites", "-v")
def test_err(project: Project) -> None:
    project.pytester.makepyfile(mine='''
from pytest_mlperf.core.extension import Engine
class Bad(Engine):
    def __init__(self, dataset, model, precision): pass
    def submit(self, ids, indices, sink):
        raise RuntimeError("the device fell off the bus")
''')
    project.suite(engines='[[engines]]\nuse = "mine:Bad"\nname = "bad"\n')
    project.pytest("suites", "-v")
