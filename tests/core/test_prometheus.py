"""A page of metrics is somebody else's text: its samples are read, all else is passed over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.prometheus import is_page, page_samples

PAGE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"b\\" {c}, d\\\\e\\nf"} 3.0
vllm:num_requests_running_total 5
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.2e+03 1700000000250\r
"""


def samples(page: bytes, *names: str) -> list[tuple[str, dict[str, str], float, float | None]]:
    return [(s.name, dict(s.labels), s.value, s.stamp_s) for s in page_samples(page, {*names})]


def test_samples_of_the_names_that_were_asked_for() -> None:
    """A page describes what it shows."""
    labels = {"engine": "0", "model_name": 'a "b" {c}, d\\e\nf'}
    pages = (PAGE, b"x 1\n# TYPE x counter\n", b"", b'[{"a": 1}]')

    assert samples(PAGE, "vllm:num_requests_running", "process_cpu_seconds_total") == [
        ("vllm:num_requests_running", labels, 3.0, None),
        ("process_cpu_seconds_total", {}, 1200.0, 1_700_000_000.25),
    ]
    assert [is_page(text) for text in pages] == [True, True, False, False]


def test_what_is_no_sample_is_passed_over() -> None:
    for line in (
        "a", "a ", "a x", "a NaN", "a +Inf", "a 1 2 3", "a{ 1", 'a{b="c} 1', "a{}1", "a 1e999",
        f"a {'9' * 5000}", "a 1_000", "a ٣", "ab 1", "a{b='c'} x", "\x00a 1", "a 0x10",
    ):  # fmt: skip
        assert samples(f"{line}\na 7\n".encode(), "a") == [("a", {}, 7.0, None)], line


@given(st.binary(max_size=200))
def test_no_bytes_are_an_error(noise: bytes) -> None:
    assert all(s.name == "a" for s in page_samples(b"a" + noise + b"\na{" + noise, {"a"}))
