"""What is physically possible: limits of a result from its GPUs, its model and what was run."""

from __future__ import annotations

from pytest_mlperf.core.roofline.gpu import GpuSpec, parse_gpu
from pytest_mlperf.core.roofline.limit import Limit, in_words, share_of_limit
from pytest_mlperf.core.roofline.seen import Seen
from pytest_mlperf.core.roofline.work import AnyWork

__all__ = ["AnyWork", "GpuSpec", "Limit", "Seen", "in_words", "parse_gpu", "share_of_limit"]
