"""What is stored names no folder of the machine that it was made on."""

from __future__ import annotations

from pytest_mlperf.core.paths import placeless

ADMIN = "root"
"""Whose home is no folder below /home."""

ROOTS = ("/srv/code/proj", "/w/p")


def test_a_path_is_shortened() -> None:
    stored = {
        "/srv/code/proj/suites/a.toml": "suites/a.toml",
        "/srv/code/proj": ".",
        "/w/p/.mlperf/runs/x: is gone": ".mlperf/runs/x: is gone",
        "/srv/code/project/b": "…/project/b",
        "see /home/ann/m/x.onnx: gone": "see ~/m/x.onnx: gone",
        "/home/ann": "~",
        "/Users/ann/m.pt": "~/m.pt",
        f"/{ADMIN}/.cache": "~/.cache",
        "/rooted/x/y": "…/x/y",
        "/people/ann/m/x.onnx": "~/m/x.onnx",
        'File "/usr/lib/python3.11/json/d.py", line 3': 'File "…/json/d.py", line 3',
        "--mlperf-runs-dir=/tmp/q/r/s": "--mlperf-runs-dir=…/r/s",
        "A=/a/b/c:/c/d/e": "A=…/b/c:…/d/e",
        "cc -L/usr/lib/foo": "cc -L…/lib/foo",
        "python /opt/envs/vllm/bin/python (3.11)": "python …/vllm/bin/python (3.11)",
        "/usr/bin/git": "…/usr/bin/git",
        "/bin/sh": "…/bin/sh",
        "file:///home/ann/x": "file://~/x",
        '{"lib": "/opt/v1/lib/x.so"}': '{"lib": "…/lib/x.so"}',
    }

    assert {text: placeless(text, ROOTS, "/people/ann") for text in stored} == stored
    again = [placeless(text, ROOTS, "/people/ann") for text in stored.values()]
    assert again == [*stored.values()]


def test_what_is_no_path_of_this_machine_stays_and_all_text_of_a_value_is_looked_through() -> None:
    texts = [
        "tokens/s and J/sample",
        "2/3 of them; 1 / 2",
        "http://host:8000/v1/chat/completions",
        "POST /v1/chat/completions",
        "../a/b and ./c/d and ~/x/y",
        "suites/a.mlperf.toml::test_performance[x]",
        "/sys/class/powercap/intel-rapl:0 cannot be read",
    ]
    value = {"/w/p/a": ("/w/p/b", ["/home/ann/c"])}

    assert [placeless(text, ROOTS, "/people/ann") for text in texts] == texts
    assert placeless(value, ROOTS) == {"a": ("b", ["~/c"])}
