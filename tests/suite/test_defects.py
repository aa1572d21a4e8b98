"""What a user reads who made a mistake in a suite file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.suite.load import MAX_BYTES, load_suite
from pytest_mlperf.suite.plan import plan_suite
from tests.suite.texts import FAILURE, SUITE, with_

FILE = Path("s.mlperf.toml")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)


def defects(text: str | bytes) -> list[str]:
    """Return the lines of the error, without the name of the file they all begin with."""
    FILE.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SuiteError) as caught:
        plan_suite(FILE)
    lines = str(caught.value).split("\n")
    assert all(line.startswith(f"{FILE}:") for line in lines)
    return [line.removeprefix(f"{FILE}:") for line in lines]


OWN_CODE = '(your own code: "package.module:name")'
IS_NO_NAME = (
    "is no name: letters, digits, '.', '_', '+' and single inner '-' only, "
    "because it becomes part of test ids and file names"
)
NO_DURATION = 'is no duration; write it with its unit, e.g. "15ms" or "6s"'
NO_PERCENTAGE = 'is no percentage; write it as a string, e.g. "3%"'
SCENARIOS = (
    "'Offline', 'Server', 'Interactive', 'SingleStream', 'MultiStream', 'Concurrency' or 'OpenLoop'"
)


def cases(**table: tuple[str, str]) -> pytest.MarkDecorator:
    values = [pytest.param(*row, id=name) for name, row in table.items()]
    return pytest.mark.parametrize(("text", "message"), values)


def assert_one_defect(text: str, message: str | None) -> None:
    """Hold a suite to one defect, which holds a message; None: it has none."""
    if message is None:
        FILE.write_text(text, "utf-8")
        assert plan_suite(FILE)
    else:
        (found,) = defects(text)
        assert message in found


@cases(
    suite=(
        with_(('profile = "quick"', 'profil = "quick"')),
        "3: profil: unknown key 'profil'; did you mean 'profile'?",
    ),
    table=(
        with_(more="\n[limit]\nthroughput = 1\n"),
        "21: limit: unknown key 'limit'; did you mean 'limits'?",
    ),
    workload=(
        with_(('name = "mine"', 'name = "mine"\nmodell = "m.onnx"')),
        "7: workload.modell: unknown key 'modell'; did you mean 'model'?",
    ),
    engine=(
        with_(('use = "null"', 'use = "null"\nprecison = "fp8"')),
        "11: engines[0].precison: unknown key 'precison'; did you mean 'precision'?",
    ),
    scenario=(
        with_(("target_qps", "target_qp")),
        "16: scenarios[0].target_qp: unknown key 'target_qp'; did you mean 'target_qps'?",
    ),
    nothing_like_it=(
        with_(("target_qps", "xyz")),
        "16: scenarios[0].xyz: unknown key 'xyz'; "
        "known: name, target_qps, find, min_duration, min_query_count, latency_limit, ttft_limit, "
        "tpot_limit, dataset, accuracy_dataset, points, max_concurrency, seed_set, ramp, arrivals, "
        "burstiness, max_failed, limits",
    ),
    price=(
        with_(more="\n[prices]\ncpu = { usd_per_gpu_hour = 1, as_of = 2026-01-01, per = 1 }\n"),
        "22: prices.cpu.per: unknown key 'per'; known: usd_per_gpu_hour, as_of, source",
    ),
    limit=(
        with_(("max_drop", "max_dorp")),
        "19: limits.throughput.max_dorp: unknown key 'max_dorp'; did you mean 'max_drop'?",
    ),
    expected_failure=(
        with_(more=FAILURE + 'scenari = "Offline"\n'),
        "24: expected_failures[0].scenari: unknown key 'scenari'; did you mean 'scenario'?",
    ),
    alias=(
        with_(("schema = 1", "schema = 1\nschema_ = 1")),
        "2: schema_: unknown key 'schema_'; did you mean 'schema'?",
    ),
    strange_key=(
        with_(("schema = 1", 'schema = 1\n"a\\u001b[31m b" = 1')),
        "2: 'a\\x1b[31m b': unknown key 'a\\x1b[31m b'; known: schema, round, profile, "
        "division, workload, engines, scenarios, limits, prices, accelerators, "
        "expected_failures, pairs",
    ),
)
def test_an_unknown_key_is_named_with_the_nearest_valid_one(text: str, message: str) -> None:
    assert defects(text) == [message]


@cases(
    round=(with_(('"v4.1"', "4.1")), "2: round: must be a string, not 4.1"),
    profile=(
        with_(('"quick"', '"fast"')),
        "3: profile: must be 'quick' or 'official', not 'fast'",
    ),
    scenario=(
        with_(('"Offline"', '"offline"')),
        f"15: scenarios[0].name: must be {SCENARIOS}, not 'offline'",
    ),
    precision=(
        with_(('use = "null"', 'use = "null"\nprecision = 8')),
        "11: engines[0].precision: must be a string, not 8",
    ),
    accelerators=(
        with_(('["cpu"]', '"cpu"')),
        "11: engines[0].accelerators: must be an array, not 'cpu'",
    ),
    no_accelerator=(with_(('["cpu"]', "[]")), "11: engines[0].accelerators: must not be empty"),
    options=(
        with_(("{ latency_s = 0.001 }", '"fast"')),
        "12: engines[0].options: must be a table, not 'fast'",
    ),
    dataset=(
        with_(('{ use = "synthetic", samples = 8 }', '"synthetic"')),
        "7: workload.dataset: must be a table, not 'synthetic'",
    ),
    one_engine=(
        with_(("[[engines]]", "[engines]")),
        "9: engines: must be an array of tables: write [[engines]]",
    ),
    queries=(
        with_(("target_qps = 100", 'min_query_count = "5"')),
        "16: scenarios[0].min_query_count: must be a whole number, not '5'",
    ),
    no_query=(
        with_(("target_qps = 100", "min_query_count = 0")),
        "16: scenarios[0].min_query_count: must be greater than 0, not 0",
    ),
    rate=(
        with_(("target_qps = 100", 'target_qps = "100"')),
        "16: scenarios[0].target_qps: '100' is no positive number",
    ),
    zero_rate=(
        with_(("target_qps = 100", "target_qps = 0")),
        "16: scenarios[0].target_qps: 0 is no positive number",
    ),
    true_rate=(
        with_(("target_qps = 100", "target_qps = true")),
        "16: scenarios[0].target_qps: True is no positive number",
    ),
    unknown_rate=(
        with_(("target_qps = 100", "target_qps = nan")),
        "16: scenarios[0].target_qps: nan is no positive number",
    ),
    rate_on=(
        with_(("target_qps = 100", "target_qps = { cpu = -1 }")),
        "16: scenarios[0].target_qps: cpu: -1 is no positive number",
    ),
    reference=(
        with_(('name = "mine"', 'name = "mine"\nreference = { top1 = "76 %" }')),
        "7: workload.reference.top1: '76 %' is no positive number",
    ),
    limits=(
        with_(('\n[limits]\nthroughput = { max_drop = "3%" }\n', ""), ("[w", 'limits = "3%"\n[w')),
        "5: limits: must be a table, not '3%'",
    ),
    schema=(with_(("schema = 1", 'schema = "1"')), "1: schema: must be 1, not '1'"),
    newer_schema=(with_(("schema = 1", "schema = 2")), "1: schema: must be 1, not 2"),
    long_value=(
        with_(('"v4.1"', f"[{', '.join(['1'] * 1000)}]")),
        "2: round: must be a string, not [1, 1, 1, 1, 1, 1, ...]",
    ),
)
def test_a_wrong_type_is_named_with_what_would_be_right(text: str, message: str) -> None:
    assert defects(text) == [message]


@cases(
    no_unit=(with_(('"3%"', '"3"')), f"19: limits.throughput.max_drop: '3' {NO_PERCENTAGE}"),
    number=(with_(('"3%"', "0.03")), f"19: limits.throughput.max_drop: 0.03 {NO_PERCENTAGE}"),
    signed=(with_(('"3%"', '"-3%"')), f"19: limits.throughput.max_drop: '-3%' {NO_PERCENTAGE}"),
    zero=(with_(('"3%"', '"0%"')), "19: limits.throughput.max_drop: '0%' must be above 0 %"),
    all=(
        with_(('"3%"', '"100%"')),
        "19: limits.throughput.max_drop: a drop of 100 % or more cannot be measured",
    ),
    target=(
        with_(('name = "mine"', 'name = "mine"\ntarget = 0.99')),
        f"7: workload.target: 0.99 {NO_PERCENTAGE}",
    ),
    target_above_the_reference=(
        with_(('name = "mine"', 'name = "mine"\ntarget = "101%"')),
        "7: workload.target: a gate above 100 % of the reference cannot be meant",
    ),
    seconds=(
        with_(("target_qps = 100", "min_duration = 5")),
        f"16: scenarios[0].min_duration: 5 {NO_DURATION}",
    ),
    no_seconds=(
        with_(("target_qps = 100", 'min_duration = "5"')),
        f"16: scenarios[0].min_duration: '5' {NO_DURATION}",
    ),
    other_unit=(
        with_(("target_qps = 100", 'min_duration = "5 sec"')),
        f"16: scenarios[0].min_duration: '5 sec' {NO_DURATION}",
    ),
    no_time=(
        with_(("target_qps = 100", 'min_duration = "0s"')),
        f"16: scenarios[0].min_duration: '0s' {NO_DURATION}",
    ),
    latency_limit=(
        with_(("target_qps = 100", "latency_limit = 15")),
        f"16: scenarios[0].latency_limit: 15 {NO_DURATION}",
    ),
    accuracy_margin=(
        with_(more='accuracy = { margin = "0.5" }\n'),
        "20: limits.accuracy: {'margin': '0.5'} is no accuracy limit; "
        'write accuracy = { margin = "0.5%" } or { margin = "0.5 points" }',
    ),
    quoted_day=(
        with_(more=FAILURE.replace("2027-01-31", '"2027-01-31"')),
        "23: expected_failures[0].until: '2027-01-31' is no day; "
        "write it without quotes, e.g. 2027-01-31",
    ),
    number_for_a_day=(
        with_(more=FAILURE.replace("2027-01-31", "20270131")),
        "23: expected_failures[0].until: 20270131 is no day; "
        "write it without quotes, e.g. 2027-01-31",
    ),
)
def test_a_value_without_its_unit_is_refused(text: str, message: str) -> None:
    assert defects(text) == [message]


@cases(
    schema=(with_(("schema = 1\n", "")), "1: schema: is missing"),
    workload_name=(with_(('name = "mine"\n', "")), "5: workload.name: is missing"),
    use=(with_(('use = "null"\n', "")), "9: engines[0].use: is missing"),
    reason=(
        with_(more=FAILURE.replace('reason = "issue 812"\n', "")),
        "21: expected_failures[0].reason: is missing",
    ),
    empty_reason=(
        with_(more=FAILURE.replace("issue 812", "")),
        "22: expected_failures[0].reason: must not be empty",
    ),
    until=(
        with_(more=FAILURE.replace("until = 2027-01-31\n", "")),
        "21: expected_failures[0].until: is missing",
    ),
)
def test_what_is_missing_is_named_with_the_table_that_needs_it(text: str, message: str) -> None:
    assert defects(text) == [message]


OF_BEST = 'of_best_published = "50 %"\n'


@cases(
    no_unit=(
        with_(('"mine"', '"resnet50"'), more='of_best_published = "50"\n'),
        f"20: limits.of_best_published: '50' {NO_PERCENTAGE}",
    ),
    another_name=(
        with_(('"mine"', '"resnet50"'), more='of_best_publshed = "50 %"\n'),
        "20: limits.of_best_publshed: unknown metric 'of_best_publshed'; did you mean "
        "'of_best_published'?",
    ),
    times=(
        with_(
            ('"mine"', '"resnet50"'),
            ('"Offline"', '"SingleStream"'),
            ("target_qps = 100\n", ""),
            ('throughput = { max_drop = "3%" }\n', ""),
            more=OF_BEST,
        ),
        "18: limits.of_best_published: no scenario here has official values to be compared with: "
        "that takes Offline, or find in Server or Interactive",
    ),
    open=(
        with_(
            ('"mine"', '"resnet50"'),
            ('"quick"', '"quick"\ndivision = "open"'),
            more=OF_BEST,
        ),
        "21: limits.of_best_published: official results of the closed division are no measure for "
        "the open one",
    ),
)
def test_a_share_of_the_best_official_result_is_refused_where_there_is_none(
    text: str, message: str
) -> None:
    assert defects(text) == [message]


def test_a_share_of_the_best_official_result_needs_a_workload_of_mlperfs() -> None:
    (message,) = defects(with_(more=OF_BEST))

    assert message.startswith(
        "20: limits.of_best_published: no official result is of workload 'mine'; known: 3d-unet-99,"
    )


def test_a_price_of_what_no_engine_runs_on_is_refused() -> None:
    text = with_(more="\n[prices]\nH200 = { usd_per_gpu_hour = 3, as_of = 2026-01-01 }\n")

    assert defects(text) == ["22: prices.H200: no engine entry runs on 'H200'; known: cpu"]


@cases(
    workload=(with_(('"mine"', '"my model"')), f"6: workload.name: 'my model' {IS_NO_NAME}"),
    two_dashes=(with_(('"mine"', '"a--b"')), f"6: workload.name: 'a--b' {IS_NO_NAME}"),
    path=(with_(('"mine"', '"../mine"')), f"6: workload.name: '../mine' {IS_NO_NAME}"),
    newline=(with_(('"mine"', '"mine\\n"')), f"6: workload.name: 'mine\\n' {IS_NO_NAME}"),
    engine=(
        with_(('use = "null"', 'use = "null"\nname = "a/b"')),
        f"11: engines[0].name: 'a/b' {IS_NO_NAME}",
    ),
    own_engine_with_underscores=(
        with_(('use = "null"', 'use = "my.package:_Engine"')),
        "10: engines[0].use: 'my.package:_Engine' needs name = \"...\" beside it",
    ),
    accelerator=(
        with_(('["cpu"]', '["8 H100"]')),
        "11: engines[0].accelerators[0]: '8 H100' is no accelerator; "
        'write "cpu", "H200" or "8xH100"',
    ),
    capitals=(
        with_(('["cpu"]', '["CPU"]')),
        "11: engines[0].accelerators[0]: 'CPU' is no accelerator; did you mean \"cpu\"?",
    ),
    two_of_the_processors=(
        with_(('["cpu"]', '["2xcpu"]')),
        "11: engines[0].accelerators[0]: '2xcpu' is no accelerator; did you mean \"cpu\"?",
    ),
    one_of_one=(
        with_(('["cpu"]', '["1xH200"]')),
        "11: engines[0].accelerators[0]: '1xH200' is no accelerator; did you mean \"H200\"?",
    ),
    several_mig_instances=(
        with_(('["cpu"]', '["2xH200_1g.18gb"]')),
        "11: engines[0].accelerators[0]: '2xH200_1g.18gb' is no accelerator: CUDA shows a process "
        'one MIG instance at most; write "H200_1g.18gb"',
    ),
    price=(
        with_(more='\n[prices]\n"8 H100" = { usd_per_gpu_hour = 3, as_of = 2026-01-01 }\n'),
        '22: prices.\'8 H100\': \'8 H100\' is no accelerator; write "cpu", "H200" or "8xH100"',
    ),
)
def test_a_name_that_could_not_stand_in_a_test_id_is_refused(text: str, message: str) -> None:
    assert defects(text) == [message]


@cases(
    engine=(
        with_(("[[scenarios]]", '[[engines]]\nuse = "null"\n\n[[scenarios]]')),
        "14: engines[1]: duplicate case null-fp32-cpu: engines[0] makes it too; "
        'give one a name of its own (name = "...")',
    ),
    same_id_of_other_words=(
        with_(
            ('use = "null"', 'use = "null"\nname = "a-b"\nprecision = "c"'),
            (
                "[[scenarios]]",
                '[[engines]]\nuse = "null"\nname = "a"\nprecision = "b-c"\n\n[[scenarios]]',
            ),
        ),
        "16: engines[1]: duplicate case a-b-c-cpu: engines[0] makes it too; "
        'give one a name of its own (name = "...")',
    ),
    accelerator=(
        with_(('["cpu"]', '["cpu", "cpu"]')),
        "11: engines[0].accelerators: duplicate case: 'cpu' is listed twice",
    ),
    scenario=(
        with_(("[limits]", '[[scenarios]]\nname = "Offline"\n\n[limits]')),
        "19: scenarios[1].name: duplicate case: Offline is listed twice",
    ),
)
def test_no_two_cases_have_one_id(text: str, message: str) -> None:
    assert defects(text) == [message]


@cases(
    max_rise_of_throughput=(
        with_(("max_drop", "max_rise")),
        "19: limits.throughput: throughput is higher-is-better: "
        'write throughput = { max_drop = "3%" }',
    ),
    max_drop_of_a_latency=(
        with_(("throughput", "latency_p99")),
        "19: limits.latency_p99: latency_p99 is lower-is-better: "
        'write latency_p99 = { max_rise = "10%" }',
    ),
    no_table=(
        with_(('{ max_drop = "3%" }', '"3%"')),
        "19: limits.throughput: throughput is higher-is-better: "
        'write throughput = { max_drop = "3%" }',
    ),
    unknown_metric=(
        with_(("throughput", "troughput")),
        "19: limits.troughput: unknown metric 'troughput'; did you mean 'throughput'?",
    ),
    gated_nowhere=(
        with_(more='peak_host_memory = { max_rise = "10%" }\n'),
        "20: limits.peak_host_memory: no scenario gates this by itself; "
        "write limits = { peak_host_memory = … } in a scenario that is to gate it",
    ),
    no_margin=(
        with_(more='accuracy = { margin = "0%" }\n'),
        "20: limits.accuracy.margin: a margin of 0 can never be proven; allow a small drop",
    ),
    count=(
        with_(more='tokens_per_sample = { max_drop = "5%" }\n'),
        "20: limits.tokens_per_sample: tokens_per_sample is a count: "
        "it is reported, and cannot be gated",
    ),
    above_idle=(
        with_(more='net_joules_per_sample = { max_rise = "5%" }\n'),
        "20: limits.net_joules_per_sample: net_joules_per_sample is reported, and cannot be gated",
    ),
    no_such_engine=(
        with_(more='accuracy = { reference = "nul" }\n'),
        "20: limits.accuracy.reference: no engine entry is called 'nul'; did you mean 'null'?",
    ),
)
def test_a_limit_must_fit_its_metric(text: str, message: str) -> None:
    assert defects(text) == [message]


@cases(
    round=(
        with_(('"v4.1"', '"v4.2"')),
        "2: round: no round 'v4.2'; rounds: v4.1, v5.0, v5.1, v6.0, v6.1",
    ),
    scenario_of_the_round=(
        with_(('"v4.1"', '"v5.1"'), ('"mine"', '"resnet50"'), ('"Offline"', '"Server"')),
        "15: scenarios[0].name: resnet50 has no Server in v5.1; "
        "it has Offline, SingleStream, MultiStream",
    ),
    no_language_model=(
        with_(('"mine"', '"resnet50"'), ('"Offline"', '"Interactive"')),
        "15: scenarios[0].name: Interactive is for language models only",
    ),
    own_server=(
        with_(('"Offline"', '"Server"')),
        '15: scenarios[0].name: no latency limit is known for mine: write latency_limit = "15ms"',
    ),
    twin_without_server=(
        with_(
            ('"v4.1"', '"v5.1"'),
            ('name = "mine"', 'name = "mine"\ntwin_of = "resnet50"'),
            ('"Offline"', '"Server"'),
        ),
        '16: scenarios[0].name: no latency limit is known for mine: write latency_limit = "15ms"',
    ),
    own_language_model=(
        with_(('name = "mine"', 'name = "mine"\ntokens = true'), ('"Offline"', '"Server"')),
        "16: scenarios[0].name: no latency limit is known for mine: "
        'write ttft_limit = "2s" and tpot_limit = "200ms"',
    ),
    own_language_model_half=(
        with_(
            ('name = "mine"', 'name = "mine"\ntokens = true'),
            ('"Offline"\ntarget_qps = 100', '"Interactive"\nttft_limit = "1s"'),
        ),
        '16: scenarios[0].name: no latency limit is known for mine: write tpot_limit = "200ms"',
    ),
    token_limit_without_tokens=(
        with_(("target_qps = 100", 'ttft_limit = "1s"')),
        "16: scenarios[0].ttft_limit: mine is not a language model (tokens = true): "
        "write latency_limit",
    ),
    latency_limit_of_a_language_model=(
        with_(
            ('name = "mine"', 'name = "mine"\ntwin_of = "llama2-70b-99.9"'),
            ('"Offline"\ntarget_qps = 100', '"Server"\nlatency_limit = "1s"'),
        ),
        "17: scenarios[0].latency_limit: mine is a language model: write ttft_limit and tpot_limit",
    ),
    tokens_of_mlperfs_own=(
        with_(('name = "mine"', 'name = "resnet50"\ntokens = true')),
        "7: workload.tokens: resnet50 has MLPerf's own rules; leave tokens out",
    ),
    unknown_twin=(
        with_(('name = "mine"', 'name = "mine"\ntwin_of = "resnet-50"')),
        "7: workload.twin_of: 'resnet-50' is no workload of v4.1; did you mean 'resnet50'?",
    ),
    twin_of_the_same_name=(
        with_(('name = "mine"', 'name = "resnet50"\ntwin_of = "resnet50"')),
        "6: workload.name: 'resnet50' is MLPerf's own name; give the twin a name of its own",
    ),
    own_reference=(
        with_(('name = "mine"', 'name = "resnet50"\nreference = { top1 = 70.0 }')),
        "7: workload.reference: resnet50 has MLPerf's reference scores; "
        'only a twin (twin_of = "...") or a workload of your own brings its own',
    ),
)
def test_the_rules_of_the_round_hold(text: str, message: str) -> None:
    assert defects(text) == [message]


@cases(
    engine=(
        with_(('use = "null"', 'use = "nul"')),
        f"10: engines[0].use: no engine 'nul' is installed; did you mean 'null'? {OWN_CODE}",
    ),
    dataset=(
        with_(('"synthetic"', '"synthetik"')),
        "7: workload.dataset.use: no dataset 'synthetik' is installed; "
        f"did you mean 'synthetic'? {OWN_CODE}",
    ),
    scorer=(
        with_(('name = "mine"', 'name = "mine"\nscorer = { use = "top5" }')),
        f"7: workload.scorer.use: no scorer 'top5' is installed; did you mean 'top1'? {OWN_CODE}",
    ),
    engine_option=(
        with_(("latency_s", "latency")),
        "12: engines[0].options: engine 'null' has no option 'latency'; did you mean 'latency_s'?",
    ),
    dataset_option=(
        with_(("samples", "sample")),
        "7: workload.dataset: dataset 'synthetic' has no option 'sample'; did you mean 'samples'?",
    ),
    scorer_option=(
        with_(('name = "mine"', 'name = "mine"\nscorer = { use = "top1", k = 5 }')),
        "7: workload.scorer: scorer 'top1' has no option 'k'; known: dtype",
    ),
    given_parameter=(
        with_(("latency_s = 0.001", 'model = "m.onnx"')),
        "12: engines[0].options: engine 'null' has no option 'model'; "
        "known: latency_s, batch_size, threads, tokens",
    ),
    missing_option=(
        with_(('use = "synthetic", samples = 8', 'use = "imagenet"')),
        "7: workload.dataset: dataset 'imagenet' needs the option 'path'",
    ),
    unset_variable=(
        with_(("0.001", '"${NOT_SET}"')),
        "12: engines[0].options: ${NOT_SET} is not set; export NOT_SET=...",
    ),
    unset_variable_deep_inside=(
        with_(("0.001", '[{ a = ["x${NOT_SET}y"] }]')),
        "12: engines[0].options: ${NOT_SET} is not set; export NOT_SET=...",
    ),
    rounds_scorer_needs_options=(
        with_(('"mine"', '"stable-diffusion-xl"')),
        "5: workload: scorer 'clip_fid' needs the option 'clip'; "
        'write scorer = { use = "clip_fid", ... } with it',
    ),
    second_engine_only=(
        with_(
            ("0.001", "0.1"),
            (
                "[[scenarios]]",
                '[[engines]]\nuse = "null"\nname = "b"\noptions = { latency_s = "${NOT_SET}" }\n'
                "\n[[scenarios]]",
            ),
        ),
        "17: engines[1].options: ${NOT_SET} is not set; export NOT_SET=...",
    ),
)
def test_an_extension_and_its_options_are_checked_before_anything_runs(
    text: str, message: str
) -> None:
    assert defects(text) == [message]


@cases(
    engine=(
        with_(more=FAILURE + 'engine = "nul"\n'),
        "24: expected_failures[0].engine: this suite has no engine 'nul'; did you mean 'null'?",
    ),
    scenario=(
        with_(more=FAILURE + 'scenario = "Server"\n'),
        "24: expected_failures[0].scenario: this suite has no scenario 'Server'; known: Offline",
    ),
    accelerator=(
        with_(more=FAILURE + 'accelerator = "H200"\n'),
        "24: expected_failures[0].accelerator: this suite has no accelerator 'H200'; known: cpu",
    ),
    metric=(
        with_(more=FAILURE + 'metric = "trougput"\n'),
        "24: expected_failures[0].metric: this suite has no metric 'trougput'; "
        "did you mean 'throughput'?",
    ),
    rate=(
        with_(("target_qps = 100", "target_qps = { H200 = 100 }")),
        "16: scenarios[0].target_qps: no engine entry runs on 'H200'; known: cpu",
    ),
)
def test_an_entry_that_could_match_nothing_is_refused(text: str, message: str) -> None:
    assert defects(text) == [message]


@pytest.mark.parametrize(
    ("use", "options", "accelerators", "message"),
    [
        (
            "vllm",
            "",
            '["H200", "8xH200"]',
            "engines[0].accelerators: replicas = 1 x tensor_parallel_size = 1 x "
            'pipeline_parallel_size = 1 use 1 GPU, but "8xH200" has 8: speed and energy are those '
            "of all of them; set replicas = 8, or tensor_parallel_size so that the product is 8, "
            "or accelerators to as many as are used",
        ),
        ("vllm", "tensor_parallel_size = 2", '["H200"]', 'use 2 GPUs, but "H200" has 1: speed'),
        ("vllm", "tensor_parallel_size = 4, pipeline_parallel_size = 2", '["8xH200"]', None),
        (
            "vllm",
            "tensor_parallel_size = 4, engine_args = { data_parallel_size = 2 }",
            '["8xH200"]',
            None,
        ),
        (
            "vllm",
            "tensor_parallel_size = 4, engine_args = { prefill_context_parallel_size = 2 }",
            '["4xH200"]',
            "x engine_args.prefill_context_parallel_size = 2 use 8 GPUs, but",
        ),
        (
            "vllm",
            'tensor_parallel_size = 4, engine_args = { data_parallel_size = "2" }',
            '["8xH200"]',
            "engines[0].options.engine_args: engine_args.data_parallel_size = '2' is not a whole "
            "number from 1 on",
        ),
        ("vllm", "tensor_parallel_size = 2", '["cpu"]', None),
        ("tensorrt_llm", "", '["2xH200"]', "replicas = 1 x tensor_parallel_size = 1 x"),
        ("tensorrt_llm", "llm = { context_parallel_size = 2 }", '["2xH200"]', None),
        (
            "tensorrt_llm",
            "tensor_parallel_size = 8, llm = { enable_attention_dp = true }",
            '["8xH200"]',
            None,
        ),
        (
            "tensorrt_llm",
            "tensor_parallel_size = 4, llm = { enable_attention_dp = true }",
            '["8xH200"]',
            "tensor_parallel_size = 4 x pipeline_parallel_size = 1 use 4 GPUs, but",
        ),
        (
            "tensorrt_llm",
            "llm = { enable_attention_dp = true }",
            '["8xH200"]',
            "adds no GPUs: set tensor_parallel_size to the GPUs of one copy of the model, it is 1",
        ),
        (
            "tensorrt_llm",
            "tensor_parallel_size = 8, llm = { moe_expert_parallel_size = 8 }",
            '["8xH200"]',
            None,
        ),
        ("null", "", '["8xH200"]', None),
    ],
)
def test_parallelism_must_use_the_gpus_of_the_accelerator(
    use: str, options: str, accelerators: str, message: str | None
) -> None:
    """Others would be leased and counted for nothing, or the engine would fail late."""
    text = with_(
        ('use = "null"', f'use = "{use}"\nmodel = "m"\nprecision = "fp16"'),
        ('accelerators = ["cpu"]', f"accelerators = {accelerators}"),
        ("options = { latency_s = 0.001 }", f"options = {{ {options} }}"),
    )
    assert_one_defect(text, message)


CUDA = 'device = "cuda"'


@pytest.mark.parametrize(
    ("use", "replicas", "options", "accelerators", "message"),
    [
        ("null", "8", "", '["8xH100"]', None),
        ("null", '"all"', "", '["8xH100", "H200", "cpu"]', None),
        ("null", "3", "", '["cpu"]', None),
        (
            "null",
            "3",
            "",
            '["8xH100"]',
            'engines[0].replicas: 3 replicas do not divide the GPUs of "8xH100": write 1, 2, '
            '4, 8, or "all" for one on each GPU',
        ),
        ("null", "2", "", '["H100"]', "2 replicas do not divide"),
        (
            "null",
            "0",
            "",
            '["cpu"]',
            "engines[0].replicas: 0 is no number of replicas; write one from 1 to 256, or "
            '"all" for one on each GPU',
        ),
        ("null", '"many"', "", '["cpu"]', "engines[0].replicas: 'many' is no number of replicas"),
        (
            "openai",
            "2",
            'url = "http://127.0.0.1:1"',
            '["cpu"]',
            "engine 'openai' is a client of a server, which has replicas of its own: leave "
            "replicas out",
        ),
        (
            "openai",
            '"all"',
            'url = "http://127.0.0.1:1"',
            '["cpu"]',
            "engines[0].replicas: engine 'openai' is a client of a server, which has replicas",
        ),
        ("vllm", "4", "tensor_parallel_size = 2", '["8xH200"]', None),
        (
            "vllm",
            "2",
            "tensor_parallel_size = 2",
            '["8xH200"]',
            "replicas = 2 x tensor_parallel_size = 2 x pipeline_parallel_size = 1 use 4 GPUs, but "
            '"8xH200" has 8: speed and energy are those of all of them; set replicas = 4, or',
        ),
        ("torch", '"all"', CUDA, '["8xH200"]', None),
        ("torch", "1", CUDA, '["8xH200"]', 'replicas = 1 use 1 GPU, but "8xH200" has 8: speed'),
        ("torch", "4", CUDA, '["8xH200"]', "engines[0].replicas: replicas = 4 use 4 GPUs, but"),
    ],
)
def test_replicas_share_the_gpus_of_the_accelerator(
    use: str, replicas: str, options: str, accelerators: str, message: str | None
) -> None:
    text = with_(
        ('use = "null"', f'use = "{use}"\nmodel = "m"\nprecision = "fp16"\nreplicas = {replicas}'),
        ('accelerators = ["cpu"]', f"accelerators = {accelerators}"),
        ("options = { latency_s = 0.001 }", f"options = {{ {options} }}"),
    )
    if message is None:
        FILE.write_text(text, "utf-8")
        assert plan_suite(FILE)
    else:
        assert any(message in line for line in defects(text))


@pytest.mark.parametrize("accelerator", ["8xH200", "cpu"])
def test_one_query_at_a_time_is_nothing_for_several_gpus(accelerator: str) -> None:
    text = with_(
        ('accelerators = ["cpu"]', f'replicas = 8\naccelerators = ["{accelerator}"]'),
        ('name = "Offline"\ntarget_qps = 100', 'name = "SingleStream"'),
        ("throughput = { max_drop", "latency_p90 = { max_rise"),
    )
    message = "SingleStream asks one query at a time, which one of the replicas on"
    assert_one_defect(text, None if accelerator == "cpu" else message)


@pytest.mark.parametrize(
    ("use", "options", "accelerator", "message"),
    [
        ("torch", 'device = "cuda"', "8xH200", None),
        ("torch", 'device = "cuda:0"', "H200", None),
        (
            "torch",
            'device = "cuda:3"',
            "8xH200",
            "options.device: device means GPU 3, but of those that each process of "
            '"8xH200" sees there is GPU 0 alone, whatever their numbers outside',
        ),
        ("torch", "", "H200", 'device means the CPU, and the GPUs of "H200" would idle'),
        (
            "torch",
            'device = "cuda"',
            "cpu",
            'device means a GPU: name that in accelerators, not "cpu"',
        ),
        ("onnxruntime", 'providers = ["cuda", "cpu"]', "H200", None),
        ("onnxruntime", 'providers = ["openvino"]', "cpu", None),
        ("onnxruntime", 'providers = ["cuda"]', "cpu", "providers means a GPU: name"),
        ("onnxruntime", "", "H200", "providers means the CPU, and the GPUs of"),
        (
            "onnxruntime",
            'providers = ["cuda"], provider_options = { cuda = { device_id = 1 } }',
            "H200",
            "provider_options means GPU 1, but of those",
        ),
        (
            "onnxruntime",
            'providers = ["tensorrt", "cuda"], provider_options = { cuda = { device_id = 1 } }',
            "H200",
            "provider_options means GPU 1, but of those",
        ),
        ("tensorrt", "device = 1", "H200", "device means GPU 1, but of those"),
        ("tensorrt", "", "H200", None),
    ],
)
def test_an_engine_works_on_what_its_accelerator_is(
    use: str, options: str, accelerator: str, message: str | None
) -> None:
    """Else it would fail once it loads, or its figures would be those of another machine."""
    text = with_(
        ('use = "null"', f'use = "{use}"\nreplicas = "all"\nmodel = "m"\nprecision = "fp16"'),
        ('accelerators = ["cpu"]', f'accelerators = ["{accelerator}"]'),
        ("options = { latency_s = 0.001 }", f"options = {{ {options} }}"),
    )
    assert_one_defect(text, message)


ON = """
[engines.on."8xH200"]
replicas = 4
options = {{ {options} }}
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("tensor_parallel_size = 2", None),
        ("tensor_parallel_size = 4", "engines[0].accelerators: replicas = 4 x tensor_parallel"),
        ("tensor_parallel = 2", "engines[0].on.8xH200.options: engine 'vllm' has no option"),
        ("tensor_parallel_size = 2, api = 1", "engines[0].on.8xH200.options.api: api is 1; text"),
    ],
)
def test_an_accelerator_may_have_options_of_its_own(options: str, message: str | None) -> None:
    """They win over the entry's; the line that a message gets is the one they are written in."""
    text = with_(
        ('use = "null"', 'use = "vllm"\nmodel = "m"\nprecision = "fp16"'),
        ('accelerators = ["cpu"]', 'accelerators = ["H200", "8xH200"]'),
        (
            "options = { latency_s = 0.001 }\n",
            "options = { max_num_seqs = 4, tensor_parallel_size = 1 }" + ON.format(options=options),
        ),
    )
    if message is None:
        FILE.write_text(text, "utf-8")
        one, eight = plan_suite(FILE)
        assert one.options == {"max_num_seqs": 4, "tensor_parallel_size": 1}
        assert eight.options == {"max_num_seqs": 4, "tensor_parallel_size": 2}
        assert (
            one.engine.replicas_on("H200"),
            eight.engine.replicas_on("8xH200"),
        ) == (1, 4)
    else:
        (found,) = defects(text)
        assert message in found


def test_options_on_an_accelerator_that_the_entry_does_not_have_are_refused() -> None:
    text = with_(
        ("options = { latency_s = 0.001 }\n", ON.format(options="")),
    )

    assert defects(text) == [
        "13: engines[0].on.8xH200: this entry does not run on '8xH200'; it runs on cpu"
    ]


def test_several_defects_are_listed_in_the_order_of_their_lines() -> None:
    assert defects(
        with_(
            ("schema = 1", "scheme = 1"),
            ('use = "null"', 'use = "null"\nprecison = "fp8"'),
            ('"Offline"', '"offline"'),
            ("target_qps = 100", "min_duration = 5"),
        )
    ) == [
        "1: schema: is missing",
        "1: scheme: unknown key 'scheme'; did you mean 'schema'?",
        "11: engines[0].precison: unknown key 'precison'; did you mean 'precision'?",
        f"16: scenarios[0].name: must be {SCENARIOS}, not 'offline'",
        f"17: scenarios[0].min_duration: 5 {NO_DURATION}",
    ]


def test_several_values_that_do_not_go_together_are_listed_too() -> None:
    assert defects(
        with_(
            ('name = "mine"', 'name = "mine"\ntwin_of = "resnet-50"'),
            ('["cpu"]', '["cpu", "cpu"]'),
            ("max_drop", "max_rise"),
        )
    ) == [
        "7: workload.twin_of: 'resnet-50' is no workload of v4.1; did you mean 'resnet50'?",
        "12: engines[0].accelerators: duplicate case: 'cpu' is listed twice",
        "20: limits.throughput: throughput is higher-is-better: "
        'write throughput = { max_drop = "3%" }',
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", " the suite is empty; `pytest-mlperf init` writes one to start from"),
        pytest.param(
            b"\n# nothing\n", " the suite is empty; `pytest-mlperf init` writes one to start from"
        ),
        pytest.param(b"\x7fELF\0\0", " this is a binary file, not a suite in TOML"),
        pytest.param(
            SUITE.replace("mine", "Zoë").encode("latin-1"),
            "6: not UTF-8 (byte 0xeb); save the file as UTF-8",
        ),
        pytest.param(SUITE.encode("utf-16"), "1: not UTF-8 (byte 0xff); save the file as UTF-8"),
        pytest.param(b"profile = quick\n", "1: not TOML: Invalid value"),
        pytest.param(
            b"schema = 1\nschema = 1\n", "2: not TOML: Cannot overwrite a value", id="twice"
        ),
        pytest.param(b'schema = 1\nround = "v4.1', "2: not TOML: Unterminated string", id="cut"),
        pytest.param(b"a = " + b"[" * 9000, " nested too deeply (more than 50 levels)", id="deep"),
        pytest.param(
            b"a = " + b"[" * 60 + b"]" * 60, " nested too deeply (more than 50 levels)", id="60"
        ),
        pytest.param(
            b"x" + b".x" * 2000 + b" = 1\n", " nested too deeply (more than 50 levels)", id="dots"
        ),
        pytest.param(
            b"a = 1\nb = " + b"9" * 5000,
            " not TOML: Exceeds the limit (4300 digits) for integer string conversion: "
            "value has 5000 digits",
            id="digits",
        ),
        pytest.param(
            b"#" * (MAX_BYTES + 1),
            " 4.0 MiB is too large for a suite (at most 4 MiB); split it, one workload a file",
            id="large",
        ),
    ],
)
def test_what_is_no_suite_is_said_in_one_line(content: bytes, message: str) -> None:
    assert defects(content) == [message]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"cannot be read: Is a directory$"):
        load_suite(tmp_path)
    with pytest.raises(SuiteError, match=r"gone.mlperf.toml: cannot be read: No such file"):
        load_suite(tmp_path / "gone.mlperf.toml")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xef\xbb\xbf" + SUITE.encode(), id="byte order mark"),
        pytest.param(SUITE.replace("\n", "\r\n").encode(), id="lines end as on Windows"),
        pytest.param(SUITE.encode() + b"#" * 100_000, id="no newline at the end"),
    ],
)
def test_how_an_editor_saved_a_suite_does_not_matter(content: bytes) -> None:
    FILE.write_bytes(content)

    (planned,) = plan_suite(FILE)

    assert planned.case.id == "mine-Offline-null-fp32-cpu"
    assert planned.line == 9


CURVE = with_(('name = "Offline"\ntarget_qps = 100', 'name = "Concurrency"\npoints = [1, 8]'))
POINTS = "scenarios[0].points"


@cases(
    none=(
        CURVE.replace("points = [1, 8]", ""),
        "15: scenarios[0].name: Concurrency needs points: how many requests are kept under way",
    ),
    equal=(CURVE.replace("8]", "8, 8]"), f"16: {POINTS}: points must increase; 8 follows 8"),
    falling=(CURVE.replace("[1, 8]", "[8, 1]"), f"16: {POINTS}: points must increase; 1 follows 8"),
    empty=(
        CURVE.replace("[1, 8]", "[]"),
        f"16: {POINTS}: [] are no points; write numbers of requests: [1, 8, 64]",
    ),
    shares=(
        CURVE.replace("[1, 8]", "[1, 8.5]"),
        f"16: {POINTS}: [1, 8.5] are no points; write numbers of requests: [1, 8, 64]",
    ),
    zero=(
        CURVE.replace("[1, 8]", "[0, 8]"),
        f"16: {POINTS}: a point is a number of requests from 1 to 65,536",
    ),
    many=(
        CURVE.replace("[1, 8]", str(list(range(1, 34)))),
        f"16: {POINTS}: 33 points; a curve has 32 at most",
    ),
    rate=(
        CURVE.replace("[1, 8]", "[1, 8]\ntarget_qps = 3"),
        "17: scenarios[0].target_qps: Concurrency has no rate and no limits; it has points",
    ),
    failures=(
        CURVE.replace("[1, 8]", '[1, 8]\nmax_failed = "20%"'),
        "17: scenarios[0].max_failed: at most 10%: more is no service",
    ),
    failures_elsewhere=(
        with_(("target_qps = 100", 'max_failed = "1%"')),
        "16: scenarios[0].max_failed: Offline has no max_failed; Concurrency and OpenLoop have",
    ),
    elsewhere=(
        with_(("target_qps = 100", "points = [1, 8]")),
        "16: scenarios[0].points: Offline has no points; Concurrency and OpenLoop have",
    ),
    strange_point=(
        CURVE + '\n[scenarios.limits]\n"throughput@9" = { max_drop = "5%" }\n',
        "22: scenarios[0].limits.'throughput@9': throughput@9 cannot be gated in Concurrency; "
        "did you mean 'throughput@8'?",
    ),
    strange_metric=(
        with_(more='"throughputs@9" = { max_drop = "5%" }\n'),
        "20: limits.'throughputs@9': unknown metric 'throughputs@9'; did you mean 'throughput'?",
    ),
    nobodys_point=(
        with_(more='"throughput@9" = { max_drop = "5%" }\n'),
        "20: limits.'throughput@9': no scenario has this point, or measures this at its points",
    ),
    gated_nowhere=(
        CURVE + '"ttft_p50@8" = { max_rise = "5%" }\n',
        "20: limits.'ttft_p50@8': no scenario gates this by itself; "
        'write limits = { "ttft_p50@8" = … } in a scenario that is to gate it',
    ),
)
def test_points_of_a_curve_increase_and_belong_to_it(text: str, message: str) -> None:
    assert defects(text) == [message]


DECLARED = CURVE.replace("points = [1, 8]", "max_concurrency = 1024")


@cases(
    low=(
        DECLARED.replace("1024", "32"),
        "16: scenarios[0].max_concurrency: 32 is no maximum; write a number of requests above 32, "
        "which are ultra-low, and up to 65,536",
    ),
    truth=(
        DECLARED.replace("1024", "true"),
        "16: scenarios[0].max_concurrency: True is no maximum; write a number of requests above "
        "32, which are ultra-low, and up to 65,536",
    ),
    both=(
        DECLARED.replace("1024", "1024\npoints = [1, 8]"),
        "17: scenarios[0].points: write points or max_concurrency, of which they are made, not "
        "both",
    ),
    open=(
        DECLARED.replace('"Concurrency"', '"OpenLoop"'),
        "16: scenarios[0].max_concurrency: OpenLoop has no max_concurrency; Concurrency has",
    ),
    seeds=(
        DECLARED.replace("1024", '1024\nseed_set = "Z"'),
        "17: scenarios[0].seed_set: no seed set 'Z'; published: A",
    ),
)
def test_a_declared_maximum_is_one_and_makes_the_points(text: str, message: str) -> None:
    assert defects(text) == [message]


OPEN = CURVE.replace('"Concurrency"', '"OpenLoop"').replace("[1, 8]", "[0.5, 2.0]")
TOGETHER = (
    'arrivals = "gamma" and burstiness, its shape, belong together: 1 is Poisson, less is burstier'
)


@cases(
    none=(
        OPEN.replace("points = [0.5, 2.0]", ""),
        "15: scenarios[0].name: OpenLoop needs points: how many arrive in a second",
    ),
    fine=(
        OPEN.replace("0.5", "0.0001"),
        f"16: {POINTS}: 0.0001 has more than three digits behind the point",
    ),
    infinite=(
        OPEN.replace("0.5", "inf"),
        f"16: {POINTS}: [inf, 2.0] are no points; write numbers of requests: [1, 8, 64]",
    ),
    unknown_arrivals=(
        OPEN.replace("2.0]", '2.0]\narrivals = "uniform"'),
        "17: scenarios[0].arrivals: must be 'poisson', 'constant', 'gamma' or 'trace', not "
        "'uniform'",
    ),
    no_shape=(
        OPEN.replace("2.0]", '2.0]\narrivals = "gamma"'),
        f"17: scenarios[0].arrivals: {TOGETHER}",
    ),
    shape_of_none=(
        OPEN.replace("2.0]", "2.0]\nburstiness = 0.5"),
        f"17: scenarios[0].burstiness: {TOGETHER}",
    ),
    not_open=(
        CURVE.replace("8]", '8]\narrivals = "poisson"'),
        "17: scenarios[0].arrivals: Concurrency has no arrivals; OpenLoop has",
    ),
    rate=(
        OPEN.replace("2.0]", "2.0]\ntarget_qps = 3"),
        "17: scenarios[0].target_qps: OpenLoop has no rate and no limits; it has points",
    ),
)
def test_an_open_loop_says_how_many_requests_arrive_and_how(text: str, message: str) -> None:
    assert defects(text) == [message]


def test_the_throughput_of_an_open_loop_is_what_was_offered() -> None:
    (defect,) = defects(OPEN + '\n[scenarios.limits]\n"throughput@2" = { max_drop = "5%" }\n')

    refused, _, known = defect.partition("throughput@2 cannot be gated in OpenLoop; known: ")
    assert refused.endswith("limits.'throughput@2': ")
    assert "itl_p50, itl_p50@0.5, itl_p50@2, itl_p90" in known
    assert "throughput" not in known


def test_an_open_loop_is_judged_by_its_times() -> None:
    more = '[scenarios.limits]\n"latency_p90@0.5" = { max_rise = "9%" }\n'
    FILE.write_text(OPEN.replace("\n[limits]", f"{more}\n[limits]"))

    (planned,) = plan_suite(FILE)

    assert planned.limits == {
        "latency_p50": 0.05,
        "latency_p50@0.5": 0.05,
        "latency_p50@2": 0.05,
        "latency_p90@0.5": 0.09,
    }


def test_a_curve_is_judged_by_its_mean_and_by_every_point() -> None:
    more = '[scenarios.limits]\n"throughput@8" = { max_drop = "9%" }\n'
    FILE.write_text(CURVE.replace("\n[limits]", f"{more}\n[limits]"))

    (planned,) = plan_suite(FILE)

    assert planned.limits == {"throughput": 0.03, "throughput@1": 0.05, "throughput@8": 0.09}
    assert planned.seconds_per_run == 120
