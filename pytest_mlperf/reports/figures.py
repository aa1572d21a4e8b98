"""What stands beside a verdict's figures: how it runs, its physical limit, its cost."""

from __future__ import annotations

from statistics import geometric_mean

from pytest_mlperf.core.causes import shortened
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import quantity
from pytest_mlperf.core.reason import measured_again
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.roofline.limit import share_in_words
from pytest_mlperf.core.verdict import Outcome, Verdict

MACHINE = "machine."
"""How what is of the machine begins, in "what changed"."""

MOST = 4
"""Changes that a line names."""


def declared(result: CaseResult) -> dict[str, str]:
    """Return what the suite says of how a case runs, by what it is about."""
    found = {}
    if result.division == "open":
        found["division"] = ": ".join(filter(None, ("open division", ", ".join(result.techniques))))
    if result.elsewhere:
        subject = result.verdict.subject
        version = subject.fingerprint.get("python") if subject else None
        found["engine"] = f"runs in {result.elsewhere}" + (f" ({version})" if version else "")
    return found


def gate(verdict: Verdict) -> str | None:
    """Return whether the gate of an accuracy test was evaluated, and on how many samples."""
    return verdict.gate.in_words if verdict.kind == "accuracy" and verdict.gate else None


def with_gate(verdict: Verdict) -> str:
    """Return word and first line, with what is said of the gate where they do not tell it."""
    said, found = f"{verdict.outcome} {verdict.headline}", gate(verdict)
    told = found is None or found in said or verdict.outcome is Outcome.GATE_FAIL
    return said if told else f"{said}; {found}"


def light(verdict: Verdict) -> str | None:
    """Return how near the runs came to the physical limit, or why nobody knows."""
    found = [run.light[0] for run in verdict.runs if run.light]
    if verdict.ratio or not found:
        return None
    last = found[-1]
    most = last.estimated if last.estimated is not None else last.certain
    shares = [each.share for each in found if each.share]
    if most is None or not shares:
        return last.says
    share = geometric_mean(shares)  # as the value beside it is that of all runs
    said = share_in_words(share, last.binds, estimated=last.estimated is not None)
    least = METRICS[last.metric].unit == "s"
    bound = f"{'at least' if least else 'at most'} {quantity(last.metric, most)}"
    title = METRICS[last.metric].title
    return f"{title}: {said}; {bound}"


def cost(verdict: Verdict) -> str | None:
    """Return what a dollar buys: "19.88 M samples/USD (8 GPUs at 3.29 USD an hour, 2026-11-01)"."""
    found = verdict.cost
    if found is None:
        return None
    gpus = "1 GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
    paid = "the machine" if verdict.case.accelerator == "cpu" else gpus
    millions = found.value >= 1e6
    value = f"{found.value / 1e6:.4g} M" if millions else quantity("", found.value)
    price = f"{paid} at {found.price.usd_per_gpu_hour:g} USD an hour, {found.price.as_of}"
    return f"{value} {found.of}/USD ({price})"


def invalid_runs(verdict: Verdict) -> str | None:
    """Return which runs were INVALID and measured again, and why; None: none was."""
    again = [run.invalid for run in verdict.measured_again]
    return measured_again(again) if again else None


def changed(verdict: Verdict) -> str | None:
    """Return what is other than with the baseline, that of the machine first; None: nothing."""
    texts = sorted(map(shortened, verdict.changed), key=lambda text: not text.startswith(MACHINE))
    more = f" and {len(texts) - MOST} more" if len(texts) > MOST else ""
    return f"{', '.join(texts[:MOST])}{more} since the baseline" if texts else None


def searched(verdict: Verdict) -> list[str]:
    """Return what each search of a rate found, and how sure it is."""
    return [run.search.in_words for run in verdict.runs if run.search]


def beside(verdict: Verdict) -> list[str]:
    """Return all that is known, of several searches the last."""
    found = (*searched(verdict)[-1:], light(verdict), cost(verdict), invalid_runs(verdict))
    return [text for text in found if text]
