"""What the code does not say of itself; a test fails where a text is missing, or stands in both."""

from __future__ import annotations

from collections.abc import Mapping

TABLES: Mapping[str, tuple[str, str]] = {
    "": ("The top of the file", "Keys that stand before the first table, and the tables."),
    "workload": ("`[workload]`", "The model and the samples."),
    "workload.dataset": (
        "`[workload.dataset]`",
        "Further keys are options of the adapter: [data sets](reference-extensions.md#data-sets). "
        "Of your own code they are the keyword arguments.",
    ),
    "workload.accuracy_dataset": ("`[workload.accuracy_dataset]`", "As `[workload.dataset]`."),
    "workload.compliance_dataset": (
        "`[workload.compliance_dataset]`",
        "As `[workload.dataset]`.",
    ),
    "scenarios.dataset": ("`[scenarios.dataset]`", "As `[workload.dataset]`."),
    "scenarios.accuracy_dataset": ("`[scenarios.accuracy_dataset]`", "As `[workload.dataset]`."),
    "workload.scorer": (
        "`[workload.scorer]`",
        "Further keys are options of the scorer: [scorers](reference-extensions.md#scorers).",
    ),
    "engines": ("`[[engines]]`", "A table for each engine, precision or set of options."),
    "engines.build": (
        "`[engines.build]`",
        "Further keys are options of the builder: [builders](reference-extensions.md#builders). "
        "See [quantised checkpoints](quantised-builds.md).",
    ),
    "engines.build.calibration": (
        "`[engines.build.calibration]`",
        "Further keys are options of the data set.",
    ),
    "engines.baseline_engine": (
        "`[engines.baseline_engine]`",
        "One of these keys. See [judging an upgrade](upgrade.md).",
    ),
    "engines.on": (
        '`[engines.on."8xH100"]`',
        "A table for an accelerator of the entry. See [several GPUs](suites.md#several-gpus).",
    ),
    "scenarios": ("`[[scenarios]]`", "A table for each scenario; one of each name."),
    "scenarios.find": (
        "`[scenarios.find]`",
        "See [throughput under a latency limit](find.md).",
    ),
    "limits": (
        "`[limits]`",
        "Each metric has a table with one key: `max_drop` where higher is better, `max_rise` where "
        'lower is, a share such as `"3%"`. `accuracy` has the keys further below.',
    ),
    "limits.accuracy": ("`[limits.accuracy]`", "See [accuracy](accuracy.md)."),
    "prices": (
        "`[prices.NAME]`",
        "A table for each accelerator, by class (`H200`) or with its count (`8xH100`).",
    ),
    "accelerators": (
        "`[accelerators.NAME]`",
        "Figures of one accelerator that is in no table of this package. See "
        "[physical limits](limits.md).",
    ),
    "expected_failures": (
        "`[[expected_failures]]`",
        "A failure is expected where every field that is given fits.",
    ),
    "pairs": ("`[[pairs]]`", "See [claims](open-division.md#claims-pairs)."),
}
"""Title and introduction of each table of a suite."""

_FIELD = "Only failures of this {}; left out: of any."

KEYS: Mapping[str, str] = {
    "workload": "What is run and on which data.",
    "engines": "What runs it; every entry is combined with every scenario.",
    "scenarios": "How samples arrive.",
    "prices": "What a GPU costs an hour: gives tokens or samples for a dollar.",
    "expected_failures": "Failures that are known and do not fail the session.",
    "workload.dataset": "The samples; default: the data set `synthetic`.",
    "engines.precision": "The numbers of the weights: part of test ids and of baselines' names.",
    "engines.accelerators": 'What it runs on: `"cpu"`, a class of GPU, or a count and a class, '
    '`"8xH100"`.',
    "engines.options": "Options of the engine; of your own code its keyword arguments.",
    "scenarios.name": "MLPerf's scenario.",
    "prices.usd_per_gpu_hour": "Price of one GPU, or of a whole machine for `cpu`.",
    "prices.as_of": "The day of the price.",
    "expected_failures.scenario": _FIELD.format("scenario"),
    "expected_failures.engine": _FIELD.format("engine entry"),
    "expected_failures.precision": _FIELD.format("precision"),
    "expected_failures.accelerator": _FIELD.format("accelerator"),
    "expected_failures.metric": _FIELD.format("metric or score"),
    "expected_failures.reason": "Why; shown in every report.",
}
"""Texts of suite keys whose description is not in the schema."""

METRICS: Mapping[str, str] = {
    "throughput": "Samples completed a second. Gated in Offline, and where `find` searches it; "
    "elsewhere it is the offered rate.",
    "tokens_per_second": "Output tokens a second, of all users together.",
    "concurrency": "The most requests in flight at which a search (`find`) held its limits; judged "
    "beside their throughput.",
    "latency_p50": "Time of a query, from its issue to its last sample; half are faster.",
    "latency_p90": "Likewise; 90 % are faster.",
    "latency_p99": "Likewise; 99 % are faster.",
    "ttft_p50": "Time to the first token.",
    "ttft_p90": "Likewise; 90 % are faster.",
    "ttft_p99": "Likewise; 99 % are faster.",
    "first_read_p50": "In place of the time to the first token where the messages of answers came "
    "together, as through a proxy that buffers; gated where a suite names it.",
    "first_read_p90": "Likewise; 90 % are faster.",
    "first_read_p99": "Likewise; 99 % are faster.",
    "tpot_p50": "Time per output token after the first, mean of an answer.",
    "tpot_p90": "Likewise; 90 % are faster.",
    "tpot_p99": "Likewise; 99 % are faster.",
    "itl_p50": "Time between two tokens.",
    "itl_p90": "Likewise; 90 % are faster.",
    "itl_p99": "Likewise; 99 % are faster.",
    "slowest_replica": "Speed of the slowest replica as a share of the median one's; gated where a "
    "suite names it.",
    "draft_acceptance": "Share of drafted tokens that were accepted, by the server's own counters; "
    "gated where a suite names it, as are the next two.",
    "draft_length": "Acceptance length: tokens per step of speculative decoding, 1 + accepted "
    "tokens / drafts.",
    "prefix_hit_share": "Share of prompt tokens found in the server's cache of prefixes.",
    "peak_device_memory": "Memory in use on all GPUs of the case at most, from loading to the end "
    "of the run, by NVML's samples; gated where a suite names it, as are the next three.",
    "peak_host_memory": "Memory of worker, replicas and servers at most, each process at its own "
    "peak. An upper bound.",
    "load_time": "Until the data set and the engine have loaded.",
    "build_time": "What building the checkpoint of an entry took, when it was built.",
    "time_median": "Time of a round of a benchmark of pytest-benchmark; half are faster.",
    "time_min": "Likewise; the fastest round.",
    "time_mean": "Likewise; the mean of all rounds.",
    "goodput": "Requests a second that met every latency limit of Server or Interactive; 0 is the "
    "worst result, not a missing one.",
    "tokens_per_second_per_user": "Tokens a second that the median user sees while an answer "
    "comes.",
    "tps_per_user": "Interactivity as MLPerf Endpoints defines it: 1 / p90 of the time per output "
    "token. Of points of a curve.",
    "e2e_tps_per_user": "Output tokens of turns of conversations by the time in which they were "
    "answered: MLPerf Endpoints' `e2e_avg_interactivity`. Of points of a curve.",
    "tokens_per_second_per_gpu": "`tokens_per_second` by the GPUs of the accelerator.",
    "tokens_per_sample": "Output tokens of an answer.",
    "samples_per_joule": "By the energy counters of the GPU boards.",
    "tokens_per_joule": "By the energy counters of the GPU boards.",
    "net_joules_per_sample": "Energy of the GPU boards above that of idle ones, of a sample. Idle "
    "is the power beside the run. Reported, never gated.",
    "samples_per_joule_wall": "By a wall meter of the whole machine (`--mlperf-meter`).",
    "tokens_per_joule_wall": "By a wall meter of the whole machine (`--mlperf-meter`).",
    "samples_per_joule_dcgm": "By a DCGM exporter beside a server's GPUs (`--mlperf-dcgm`).",
    "tokens_per_joule_dcgm": "By a DCGM exporter beside a server's GPUs (`--mlperf-dcgm`).",
}

SCORES: Mapping[str, tuple[str, str, str]] = {
    "top1": ("0–100", "higher", "Share of samples whose class is right."),
    "accuracy": (
        "0–100",
        "higher",
        "Words heard rightly (whisper), right calls (qwen3.6-27b); of dlrm-v3 as 0–1.",
    ),
    "map": ("0–100", "higher", "Mean average precision over classes and overlaps (COCO)."),
    "f1": (
        "0–100",
        "higher",
        "Words that answer and reference share (SQuAD). Of qwen3-vl 0–1: levels of the category.",
    ),
    "exact_match": (
        "0–100",
        "higher",
        "Share of answers equal to a reference; each workload's script has its own idea of equal.",
    ),
    "aime": ("0–100", "higher", "Share of whole numbers that are right (AIME)."),
    "gpqa": ("0–100", "higher", "Share of right choices of four (GPQA)."),
    "mmlu_pro": ("0–100", "higher", "Share of right choices of ten (MMLU-Pro)."),
    "livecodebench": ("0–100", "higher", "Share of programs that pass their tests."),
    "judged": ("0–100", "higher", "Share of answers that a model of the user's calls right."),
    "unjudged": (
        "answers",
        "lower",
        "Requests for a judgement that failed; their answers count as wrong.",
    ),
    "store": ("0–100", "higher", "100 where a filled store is the reference's, byte by byte."),
    "math500": ("0–100", "higher", "Share of formulas of the right value (MATH-500)."),
    "rouge1": ("0–100", "higher", "Words shared with the reference."),
    "rouge2": ("0–100", "higher", "Pairs of words shared with the reference."),
    "rougeL": ("0–100", "higher", "Longest common sequence of words."),
    "rougeLsum": ("0–100", "higher", "The same, sentence by sentence."),
    "gsm8k": ("0–100", "higher", "Share of sums whose result is right."),
    "mbxp": ("0–100", "higher", "Share of generated programs that pass their tests."),
    "dice": ("0–1", "higher", "Mean of the two below."),
    "dice_kidney": ("0–1", "higher", "Overlap of kidney, tumour included."),
    "dice_tumor": ("0–1", "higher", "Overlap of tumours."),
    "auc": ("0–100", "higher", "Area under the ROC curve of clicks."),
    "vbench": ("0–100", "higher", "Mean of the six dimensions of VBench that MLPerf takes."),
    "subject_consistency": ("0–100", "higher", "VBench's: the subject stays the same."),
    "background_consistency": ("0–100", "higher", "VBench's: the background stays the same."),
    "dynamic_degree": ("0–100", "higher", "VBench's: something moves."),
    "motion_smoothness": ("0–100", "higher", "VBench's: it moves smoothly."),
    "appearance_style": ("0–100", "higher", "VBench's: the style that was asked for."),
    "scene": ("0–100", "higher", "VBench's: the scene that was asked for."),
    "normalized": ("0–100", "higher", "Right calls, kinds of questions alike (BFCL)."),
    "normalized_entropy": ("0 and up", "lower", "Cross entropy by that of the mean label."),
    "perplexity": ("1 and up", "lower", "e to the mean negative log-probability of a token."),
    "gauc": ("0–1", "higher", "Mean of the area under each request's ROC curve."),
    "clip": ("0–100", "higher", "100 times the cosine of caption and image."),
    "fid": ("0 and up", "lower", "Fréchet distance to the statistics of real images."),
    "tokens_per_sample": ("tokens", "", "Length of answers: held against a window, not gated."),
    "gen_len": ("characters", "", "Length of answers as text: held against a window, not gated."),
}
"""Scale, direction and meaning of each score that no scorer's docstring describes."""

OUTCOMES: Mapping[str, str] = {
    "ERROR": "Engine or infrastructure broke. The message names the layer and the log.",
    "INVALID": "It was measured and may not be judged. The message says why; measure again.",
    "GATE FAIL": "Below the accuracy gate, a latency limit missed without a baseline, or a smaller "
    "share of the best official result than the suite asks for.",
    "ACC DROP": "A drop of accuracy is proven, and one of the margin is not excluded.",
    "PERF DROP": "A drop of speed is proven, and one of the limit is not excluded.",
    "PAIR FAIL": "A claim of `[[pairs]]` is refuted.",
    "POWER DROP": "A drop of samples or tokens per joule is proven, and one of the limit is not "
    "excluded.",
    "SUSPECT": "Of many metrics judged together it would have failed alone; in the next "
    "session it is measured first and judged alone.",
    "PROVISIONAL": "Ok, or a drop, only if sessions on this machine differ no more than expected: "
    "the baseline has too few sessions, or is too old, to show it. The message says what would "
    "settle it.",
    "INCONCLUSIVE": "Not enough evidence after the last run. The message says what would decide.",
    "NO BASELINE": "Nothing to compare with: record one.",
    "not evaluated": "Dummy weights have no accuracy to judge; energy of a short window may not be "
    "judged.",
    "expected failure": "Listed in the suite's `expected_failures`, and not past its day.",
    "UNEXPECTED PASS": "An expected failure stayed away: remove its entry.",
    "ok": "A drop of the limit is excluded.",
    "improved": "Better, proven: accept it as the new baseline.",
    "recorded": "`--mlperf-update` wrote a baseline.",
}

ENVIRONMENT: Mapping[str, str] = {
    "APPTAINER_CONTAINER": "Its last part is recorded as the machine's container.",
    "CI": "Set to anything: a missing model or data set fails in place of being skipped, and so "
    "does a missing baseline of an official case on a named accelerator.",
    "CUDA_DEVICE_ORDER": "`PCI_BUS_ID` is needed where `CUDA_VISIBLE_DEVICES` holds numbers and "
    "GPUs of several products are in the machine.",
    "CUDA_VISIBLE_DEVICES": "GPUs that may be used; others are left alone. Workers get their "
    "case's GPUs in it, by number in PCI order, or by UUID beside MIG.",
    "GITHUB_EVENT_NAME": "Beginning with pull_request or merge_group: the session leaves nothing "
    "for the next one to know, as in pull requests of other CI systems (docs/outcomes.md).",
    "KUBERNETES_SERVICE_HOST": "Set: the machine is recorded as a Kubernetes container.",
    "MKL_NUM_THREADS": "Of the control's matrix product on a CPU; another value is another "
    "control.",
    "MLPERF_FLEET_WORKER": "Set for pytest on a node: what the session tells it.",
    "NODE_PATH": "Where MBXP's JavaScript programs find their modules.",
    "OMP_NUM_THREADS": "As `MKL_NUM_THREADS`.",
    "OPENBLAS_CORETYPE": "As `MKL_NUM_THREADS`.",
    "OPENBLAS_NUM_THREADS": "As `MKL_NUM_THREADS`.",
    "PATH": "Where the programs of `command`, `serve` and `python` are found, and the compilers "
    "that MBXP needs.",
    "PYTEST_MLPERF_BUILDS": "Folder of quantised checkpoints that several projects share; "
    "default: `builds` in the runs folder.",
    "PYTEST_MLPERF_FLEET": "Of a node of a Ray cluster: folder in which projects are unpacked, and "
    "what their runs leave behind; default: `pytest-mlperf/fleet` in the user's cache.",
    "PYTEST_MLPERF_LEASES": "Folder in which accelerators are leased; all who measure on the "
    "machine must agree on it. Default: `/tmp`, whatever `TMPDIR` says.",
    "PYTEST_MLPERF_REPLICA": "Which process of `replicas` or `clients` it is, set for each.",
    "PYTEST_CURRENT_TEST": "Set by pytest: a worker of pytest-xdist that waits names "
    "its test by it.",
    "PYTEST_XDIST_WORKER": "Set by pytest-xdist in its workers: their parent is pytest, and its "
    "other workers are no neighbours.",
    "SINGULARITY_CONTAINER": "As `APPTAINER_CONTAINER`.",
    "XDG_CACHE_HOME": "Folder of the user's caches (default: `~/.cache`): digests of large weights "
    "are remembered in it, and the HTML report's plotting library.",
    "container": "Recorded as the machine's container, where nothing else names one.",
}
