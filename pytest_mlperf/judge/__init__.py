"""Export the statistics for gates of other harnesses, lazily; they need the standard library only.

`judge` compares runs with a baseline, `judge_drop` and `judge_ratio` test interleaved pairs of
runs, `judge_pairs` paired scores; each returns a `Decision`. `rule_among` adjusts for many metrics.
"""

from typing import TYPE_CHECKING

from pytest_mlperf import importer

if TYPE_CHECKING:
    from pytest_mlperf.judge.decision import Answer as Answer
    from pytest_mlperf.judge.decision import Decision as Decision
    from pytest_mlperf.judge.inputs import Direction as Direction
    from pytest_mlperf.judge.inputs import SessionNoise as SessionNoise
    from pytest_mlperf.judge.multiplicity import rule_among as rule_among
    from pytest_mlperf.judge.ratio import judge_drop as judge_drop
    from pytest_mlperf.judge.ratio import judge_ratio as judge_ratio
    from pytest_mlperf.judge.rule_a import RuleA as RuleA
    from pytest_mlperf.judge.rule_a import ScorePairs as ScorePairs
    from pytest_mlperf.judge.rule_a import judge_pairs as judge_pairs
    from pytest_mlperf.judge.rule_r import RuleR as RuleR
    from pytest_mlperf.judge.rule_r import Value as Value
    from pytest_mlperf.judge.rule_r import judge as judge

_ORIGINS = {
    "judge.decision": ("Answer", "Decision"),
    "judge.inputs": ("Direction", "SessionNoise"),
    "judge.multiplicity": ("rule_among",),
    "judge.ratio": ("judge_drop", "judge_ratio"),
    "judge.rule_a": ("RuleA", "ScorePairs", "judge_pairs"),
    "judge.rule_r": ("RuleR", "Value", "judge"),
}

if not TYPE_CHECKING:  # else a type checker would accept any name
    __all__, __getattr__ = importer(__name__, _ORIGINS)
