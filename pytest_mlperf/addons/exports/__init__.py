"""Export results for CI systems, spreadsheets, Prometheus and pytest-benchmark."""

from pytest_mlperf.extension import Format

JUNIT = Format(module=f"{__name__}.junit")
BENCHMARK = Format(
    module=f"{__name__}.benchmark", libraries={"pytest_benchmark": "'pytest-mlperf[benchmark]'"}
)
CSV = Format(module=f"{__name__}.csv_table")
PROMETHEUS = Format(module=f"{__name__}.prometheus")
BIGGER = Format(module=f"{__name__}.bigger")
SMALLER = Format(module=f"{__name__}.smaller")
