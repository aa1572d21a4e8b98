"""Export results in Prometheus' text format."""

from collections.abc import Iterator

from pytest_mlperf.addons.exports.csv_table import CASE, reported_metrics
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.extension import CaseResult, Kind, ReportedSession, visible

GAUGES = {
    "mlperf_failed": "1 if the test failed, else 0.",
    "mlperf_gate_kept": "1 if the accuracy gate was met, else 0.",
    "mlperf_gate_samples": "Samples on which the accuracy gate was checked.",
    "mlperf_gate_total_samples": "Samples that the accuracy gate needs in all.",
    "mlperf_value": f"Last measured value, SI units. {UNVERIFIED_LABEL}",
    "mlperf_change_ratio": "Change since the baseline, as a ratio (0.01 = 1 %).",
}


def report(session: ReportedSession) -> str:
    """Return gauges in Prometheus' text format, without time stamps.

    The textfile collector of the node exporter does not accept time stamps.
    Source: https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    families: dict[str, dict[str, None]] = {}
    for result in session.results.cases:
        for name, labels, value in _samples(result):
            label_text = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
            families.setdefault(name, {})[f"{name}{{{label_text}}} {value:.9g}"] = None
    lines = []
    for name, samples in families.items():
        lines += [f"# HELP {name} {GAUGES[name]}", f"# TYPE {name} gauge", *samples]
    return "".join(f"{line}\n" for line in lines)


def _samples(result: CaseResult) -> Iterator[tuple[str, dict[str, str], float]]:
    verdict = result.verdict
    labels = {
        "case": verdict.case.id,
        **{name: str(getattr(verdict.case, name)) for name in CASE},
        "kind": verdict.kind,
        "profile": result.profile,
    }
    yield "mlperf_failed", labels, result.failed
    if verdict.kind == Kind.ACCURACY and (gate := verdict.gate):
        if gate.evaluated:
            yield "mlperf_gate_kept", labels, gate.kept
        yield "mlperf_gate_samples", labels, gate.samples
        yield "mlperf_gate_total_samples", labels, gate.total
    for metric in reported_metrics(result):
        named = {**labels, "metric": metric.metric}
        if metric.now is not None:
            yield "mlperf_value", named, metric.now
        if metric.change is not None:
            yield "mlperf_change_ratio", named, metric.change


def _label(text: str) -> str:
    return visible(text, keep="\n").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
