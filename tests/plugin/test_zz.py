from __future__ import annotations
import pytest
from tests.plugin.project import *

def test_noterm(project: Project) -> None:
    p = project.suite()
    p = project.baseline(near(RATE)); p.write_text("{")
    r = project.pytester.inline_run("suites", "-p", "no:terminal")
    for x in r.getreports("pytest_runtest_logreport"):
        print(x.when, x.outcome, x.location, str(x.longrepr)[-500:])
def test_x(project: Project) -> None:
    p = project.suite(accelerators=["cpu", "H200"])
    p = project.baseline(near(RATE)); p.write_text("{")
    project.pytester.runpytest_subprocess("suites", "-n2", "-v", "--mlperf-json", "out.json")
    project.pytester.runpytest_subprocess("-n2", "-v")
    project.pytester.runpytest_subprocess("suites", "-n2", "-v", "--mlperf-plan")
    project.pytester.runpytest_subprocess("suites", "-n2", "-v", "--mlperf-accelerator", "H200")
    print(list((project.path).glob("*")))
def test_skip(project: Project) -> None:
    p = project.suite()
    p.write_text(p.read_text().replace("dataset =", 'model = "${MODELS}/x"\ndataset ='))
    project.pytest("suites", "-v", "-rs")
    project.pytest("suites", "-v", "-rs", "--mlperf-strict")
    print(list((project.path).glob(".mlperf/*/*/*")))
def test_door(project: Project) -> None:
    project.pytester.makepyfile(test_mine='''
import pytest
from pytest_mlperf.core.extension import Engine
class Quick(Engine):
    def __init__(self, dataset, model, precision, *, k=1): self.k = k
    def submit(self, ids, indices, sink):
        sink.done(ids, [b"x"] * len(ids))
def samples():
    return [{"a": 1}] * 32
@pytest.mark.mlperf(workload="mine", scenario="Offline")
def test_a(mlperf):
    mlperf.run(engine=Quick(None, None, None), dataset=samples).check()
@pytest.mark.mlperf(workload="mine", scenario="Offline")
def test_b(mlperf):
    mlperf.run(engine=lambda: 3, dataset=samples).check()
def test_c(mlperf):
    mlperf.run(engine=Quick, dataset=samples).check()
@pytest.mark.mlperf(workload="mine", scenario="Offlin")
def test_d(mlperf):
    mlperf.run(engine=Quick, dataset=samples).check()
@pytest.mark.mlperf(workload="mine", scenario="Offline")
def test_e(mlperf):
    mlperf.run(engine=Quick, dataset=samples, options={"k": 3}, min_duration="100ms", target_qps=1000).check()
''')
    project.pytest( "-v")
