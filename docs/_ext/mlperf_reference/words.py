"""Texts of the reference that the code lacks; a test fails if one is missing or in both."""

from __future__ import annotations

from collections.abc import Mapping

TABLES: Mapping[str, tuple[str, str]] = {
    "": ("The top of the file", "Keys before the first table, and the tables."),
    "workload": ("`[workload]`", "The model and the samples."),
    "workload.dataset": (
        "`[workload.dataset]`",
        "Further keys are options of the adapter: [data sets](reference-extensions.md#data-sets). "
        "For your own code they are its keyword arguments.",
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
    "engines.server": (
        "`[engines.server]`",
        "What is behind the `url` of the entry, and who reports it. See "
        "[the hardware of a server](openai.md#the-hardware-of-a-server).",
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
        "Each metric has a table with one key: `max_drop` if higher is better, else `max_rise`, as "
        'a share such as `"3%"`. `accuracy` has the keys further below.',
    ),
    "limits.accuracy": ("`[limits.accuracy]`", "See [accuracy](accuracy.md)."),
    "prices": (
        "`[prices.NAME]`",
        "A table for each accelerator, by class (`H200`) or with its count (`8xH100`).",
    ),
    "accelerators": (
        "`[accelerators.NAME]`",
        "Figures of an accelerator that this package does not know. See "
        "[physical limits](limits.md).",
    ),
    "expected_failures": (
        "`[[expected_failures]]`",
        "A failure is expected if it matches every field.",
    ),
    "pairs": ("`[[pairs]]`", "See [claims](open-division.md#claims-pairs)."),
}
"""Title and introduction of each table of a suite."""

_FIELD = "Only failures of this {} (default: any)."

KEYS: Mapping[str, str] = {
    "workload": "The model and its data.",
    "engines": "The engines; every entry is combined with every scenario.",
    "scenarios": "How samples arrive.",
    "prices": "Price of a GPU for an hour: gives tokens or samples for a dollar.",
    "expected_failures": "Known failures, which do not fail the session.",
    "workload.dataset": "The samples; default: the data set `synthetic`.",
    "engines.precision": "The numbers of the weights: part of test ids and of baselines' names.",
    "engines.accelerators": 'The hardware: `"cpu"`, a class of GPU, or a count and a class, '
    '`"8xH100"`.',
    "engines.options": "Options of the engine; for your own code its keyword arguments.",
    "scenarios.name": "MLPerf's scenario.",
    "prices.usd_per_gpu_hour": "Price of one GPU, or of a whole machine for `cpu`.",
    "prices.as_of": "The day of the price.",
    "expected_failures.scenario": _FIELD.format("scenario"),
    "expected_failures.engine": _FIELD.format("engine entry"),
    "expected_failures.precision": _FIELD.format("precision"),
    "expected_failures.accelerator": _FIELD.format("accelerator"),
    "expected_failures.metric": _FIELD.format("metric or score"),
    "expected_failures.reason": "The reason; shown in every report.",
}
"""Texts of suite keys whose description is not in the schema."""

METRICS: Mapping[str, str] = {
    "throughput": "Samples completed a second. Gated in Offline, and if `find` searches it; "
    "otherwise it is the offered rate.",
    "tokens_per_second": "Output tokens a second, of all users together.",
    "concurrency": "The most requests in flight at which a search (`find`) held its limits; judged "
    "together with their throughput.",
    "latency_p50": "Time of a query, from its issue to its last sample; half are faster.",
    "latency_p90": "Time of a query; 90 % are faster.",
    "latency_p99": "Time of a query; 99 % are faster.",
    "ttft_p50": "Time to the first token.",
    "ttft_p90": "Time to the first token; 90 % are faster.",
    "ttft_p99": "Time to the first token; 99 % are faster.",
    "first_read_p50": "Time to the first read, if the messages of answers came together, as by "
    "a buffering proxy; gated if a suite names it.",
    "first_read_p90": "Time to the first read; 90 % are faster.",
    "first_read_p99": "Time to the first read; 99 % are faster.",
    "tpot_p50": "Time per output token after the first, mean of an answer.",
    "tpot_p90": "Time per output token; 90 % are faster.",
    "tpot_p99": "Time per output token; 99 % are faster.",
    "itl_p50": "Time between two tokens.",
    "itl_p90": "Time between two tokens; 90 % are faster.",
    "itl_p99": "Time between two tokens; 99 % are faster.",
    "slowest_replica": "Speed of the slowest replica as a share of the median one's; gated if a "
    "suite names it.",
    "draft_acceptance": "Share of drafted tokens that were accepted, by the server's own counters; "
    "gated if a suite names it, as are the next two.",
    "draft_length": "Acceptance length: tokens per step of speculative decoding, 1 + accepted "
    "tokens / drafts.",
    "prefix_hit_share": "Share of prompt tokens in the server's prefix cache.",
    "peak_device_memory": "Memory in use on all GPUs of the case at most, from loading to the end "
    "of the run, by NVML's samples; gated if a suite names it, as are the next three.",
    "peak_host_memory": "Upper bound of the memory of worker, replicas and servers: the sum of the "
    "peaks of all processes.",
    "load_time": "Time until the data set and the engine have loaded.",
    "build_time": "Time to build the checkpoint of an entry.",
    "time_median": "Time of a round of a benchmark of pytest-benchmark; half are faster.",
    "time_min": "Time of the fastest round.",
    "time_mean": "Mean time of all rounds.",
    "goodput": "Requests a second that met every latency limit of Server or Interactive; 0 is the "
    "worst result, not a missing one.",
    "tokens_per_second_per_user": "Tokens a second that the median user sees while an answer "
    "comes.",
    "tps_per_user": "Interactivity as MLPerf Endpoints defines it: 1 / p90 of the time per output "
    "token. Only at points of a curve.",
    "e2e_tps_per_user": "Output tokens of turns of conversations by the time in which they were "
    "answered: MLPerf Endpoints' `e2e_avg_interactivity`. Only at points of a curve.",
    "tokens_per_second_per_gpu": "`tokens_per_second` by the GPUs of the accelerator.",
    "tokens_per_sample": "Output tokens of an answer.",
    "samples_per_joule": "By the energy counters of the GPU boards.",
    "tokens_per_joule": "By the energy counters of the GPU boards.",
    "net_joules_per_sample": "Energy of a sample above the idle energy of the GPU boards, measured "
    "next to the run. Reported, never gated.",
    "samples_per_joule_wall": "By a wall meter of the whole machine (`--mlperf-meter`).",
    "tokens_per_joule_wall": "By a wall meter of the whole machine (`--mlperf-meter`).",
    "samples_per_joule_dcgm": "By a DCGM exporter of a server's GPUs (`--mlperf-dcgm`).",
    "tokens_per_joule_dcgm": "By a DCGM exporter of a server's GPUs (`--mlperf-dcgm`).",
}

SCORES: Mapping[str, tuple[str, str, str]] = {
    "top1": ("0–100", "higher", "Share of samples whose class is right."),
    "accuracy": (
        "0–100",
        "higher",
        "Right words (whisper), right calls (qwen3.6-27b); for dlrm-v3 from 0 to 1.",
    ),
    "map": ("0–100", "higher", "Mean average precision over classes and overlaps (COCO)."),
    "f1": (
        "0–100",
        "higher",
        "Words in both answer and reference (SQuAD). For qwen3-vl 0–1: category levels.",
    ),
    "exact_match": (
        "0–100",
        "higher",
        "Share of answers equal to a reference, by the rule of each workload's script.",
    ),
    "aime": ("0–100", "higher", "Share of whole numbers that are right (AIME)."),
    "gpqa": ("0–100", "higher", "Share of right choices of four (GPQA)."),
    "mmlu_pro": ("0–100", "higher", "Share of right choices of ten (MMLU-Pro)."),
    "livecodebench": ("0–100", "higher", "Share of programs that pass their tests."),
    "judged": ("0–100", "higher", "Share of answers that your judging model accepts."),
    "unjudged": (
        "answers",
        "lower",
        "Requests for a judgement that failed; their answers count as wrong.",
    ),
    "store": ("0–100", "higher", "100 if the filled store equals the reference's, byte by byte."),
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
    "appearance_style": ("0–100", "higher", "VBench's: the requested style."),
    "scene": ("0–100", "higher", "VBench's: the requested scene."),
    "normalized": (
        "0–100",
        "higher",
        "Right calls, with equal weight of each kind of question (BFCL).",
    ),
    "normalized_entropy": ("0 and up", "lower", "Cross entropy by that of the mean label."),
    "perplexity": ("1 and up", "lower", "e to the mean negative log-probability of a token."),
    "gauc": ("0–1", "higher", "Mean of the area under each request's ROC curve."),
    "clip": ("0–100", "higher", "100 times the cosine of caption and image."),
    "fid": ("0 and up", "lower", "Fréchet distance to the statistics of real images."),
    "tokens_per_sample": ("tokens", "", "Length of answers: compared with a window, not gated."),
    "gen_len": ("characters", "", "Length of answers as text: compared with a window, not gated."),
}
"""Scale, direction and meaning of each score that is missing in the scorers' docstrings."""

OUTCOMES: Mapping[str, str] = {
    "ERROR": "The engine or the infrastructure broke. The message names the layer and the log.",
    "INVALID": "The measurement cannot be judged. The message says why; measure again.",
    "GATE FAIL": "Below the accuracy gate, a latency limit missed without a baseline, or a smaller "
    "share of the best official result than the suite asks for.",
    "ACC DROP": "Proven to be less accurate, and possibly by more than the margin.",
    "PERF DROP": "Proven to be slower, and possibly by more than the limit.",
    "PAIR FAIL": "A claim of `[[pairs]]` is refuted.",
    "POWER DROP": "Samples or tokens per joule are proven to be lower, and possibly by more than "
    "the limit.",
    "SUSPECT": "One of many metrics dropped, which chance could explain. The next session measures "
    "it first and judges it alone.",
    "PROVISIONAL": "Ok or a drop, but a difference between two days could reverse it. The baseline "
    "has too few days, or is too old. The message names the next step.",
    "INCONCLUSIVE": "Too little evidence after the last run. The message names the missing part.",
    "NO BASELINE": "Nothing to compare with: record one.",
    "not evaluated": "Dummy weights have no accuracy; energy of a short window cannot be judged.",
    "expected failure": "Listed in the suite's `expected_failures`, and its last day is not over.",
    "UNEXPECTED PASS": "An expected failure did not happen: remove its entry.",
    "ok": "A regression as large as the limit is ruled out.",
    "improved": "Proven to be better: accept it as the new baseline.",
    "recorded": "`--mlperf-update` wrote a baseline.",
}

ENVIRONMENT: Mapping[str, str] = {
    "APPTAINER_CONTAINER": "Its last part is recorded as the machine's container.",
    "CI": "If set, a missing model or data set fails instead of being skipped, and so does a "
    "missing baseline on a named accelerator.",
    "CUDA_DEVICE_ORDER": "Set it to `PCI_BUS_ID` if `CUDA_VISIBLE_DEVICES` holds numbers and the "
    "machine has GPUs of several products.",
    "CUDA_VISIBLE_DEVICES": "GPUs that may be used. Workers get their case's GPUs, by number in "
    "PCI order, or by UUID if the machine has MIG.",
    "GITHUB_EVENT_NAME": "If it begins with pull_request or merge_group, the session leaves no "
    "suspects for the next one, as in other CI systems (docs/outcomes.md).",
    "KUBERNETES_SERVICE_HOST": "If set, the machine is recorded as a Kubernetes container.",
    "MKL_NUM_THREADS": "Threads of the control's matrix product on a CPU; controls with others "
    "are not compared.",
    "MLPERF_FLEET_WORKER": "Set for pytest on a node: the session's settings.",
    "NODE_PATH": "Modules of MBXP's JavaScript programs.",
    "OMP_NUM_THREADS": "As `MKL_NUM_THREADS`.",
    "OPENBLAS_CORETYPE": "As `MKL_NUM_THREADS`.",
    "OPENAI_API_KEY": "Key of the server of engine `openai`; its option `api_key_env` names "
    "another variable.",
    "OPENBLAS_NUM_THREADS": "As `MKL_NUM_THREADS`.",
    "PATH": "Programs of `command`, `serve` and `python`, and the compilers that MBXP needs.",
    "PYTEST_MLPERF_BUILDS": "Folder of quantised checkpoints that several projects share; "
    "default: `builds` in the runs folder.",
    "PYTEST_MLPERF_FLEET": "On a Ray node, the folder for unpacked projects and their runs; "
    "default: `pytest-mlperf/fleet` in the user's cache.",
    "PYTEST_MLPERF_LEASES": "Folder of the locks on accelerators; all users of the machine must "
    "use the same one. Default: `/tmp`, independent of `TMPDIR`.",
    "PYTEST_MLPERF_REPLICA": "Number of the process of `replicas` or `clients`; set for each.",
    "PYTEST_MLPERF_TREE": "Checkout of the build of another commit; servers start in this folder. "
    "Set for the engine.",
    "PYTEST_CURRENT_TEST": "Set by pytest: a waiting worker of pytest-xdist names its test.",
    "PYTEST_XDIST_WORKER": "Set by pytest-xdist in its workers, which then do not count as other "
    "processes.",
    "SINGULARITY_CONTAINER": "As `APPTAINER_CONTAINER`.",
    "XDG_CACHE_HOME": "Folder of the user's caches (default: `~/.cache`): digests of large weights "
    "are remembered in it, and the HTML report's plotting library.",
    "container": "Recorded as the machine's container, if nothing else names one.",
}
