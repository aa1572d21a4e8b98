"""A correct suite, and ways to spoil it."""

from __future__ import annotations

SUITE = """\
schema = 1
round = "v4.1"
profile = "quick"

[workload]
name = "mine"
dataset = { use = "synthetic", samples = 8 }

[[engines]]
use = "null"
accelerators = ["cpu"]
options = { latency_s = 0.001 }

[[scenarios]]
name = "Offline"
target_qps = 100

[limits]
throughput = { max_drop = "3%" }
"""

FAILURE = '\n[[expected_failures]]\nreason = "issue 812"\nuntil = 2027-01-31\n'


def with_(*changes: tuple[str, str], more: str = "") -> str:
    """Return the suite with texts replaced; each must be there once."""
    text = SUITE
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text + more
