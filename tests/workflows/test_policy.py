"""The workflows keep the seven rules of docs/github-actions.md, and each rule can be broken."""

from __future__ import annotations

import re
from pathlib import Path

from tests.workflows.github import ACTIONS, ROOT, SCRIPTS, WORKFLOWS, Workflow, action
from tests.workflows.policy import PINNED, RULES, WRITES, hosted

BAD = Path(__file__).parent / "bad"

BROKEN = {
    1: {
        "measure: pull_request reaches a self-hosted machine",
        "measure: no environment gpu, which says what branches may use it",
        "measure: checks out an input that is not the approved commit",
        "approved: a fork's commit beside a token or a right to write",
        "approved: a fork's commit takes the place of the branch's code",
        "plan: a fork's commit takes the place of the branch's code",
        "planned: a fork's commit is not only read as data",
    },
    2: {
        "target: checks out ${{ github.event.pull_request.head.sha }}",
        "target: names the pull request's head",
        "target: fetches by git",
        "machine: on a self-hosted machine",
    },
    3: {
        "measure: a container, docker or root",
        "measure: a secret, a token or a right beyond reading",
        "measure: a cache, which outlives the job",
    },
    4: {
        "permissions are not {} at the top",
        "build: may write write-all",
        "build: no end",
        "build: leaves its token in .git",
        "build: actions/checkout@v4 is not pinned to a commit",
        "build: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 does not say its "
        "version",
        "build: an expression in a script",
    },
    5: {
        "merge: reads results where it may write, or on a self-hosted machine",
        "merge: reads results with other code than the branch's",
        "merge: runs what it downloaded",
        "merge: takes an artifact whose digest differs",
    },
    6: {
        "accept: pushes from a self-hosted machine",
        "accept: pushes to a branch that is not its own",
        "accept: its branch is not below baselines/",
        "accept: proposes more than baselines, or not for review",
        "accept: runs more than git and gh beside a right to write",
    },
    7: {
        "measure: its last step does not always clean up",
        "measure: its processes carry no mark",
        "measure: measures on a machine that nobody has looked at",
        "measure: runs scripts or actions of the commit that is measured",
    },
}


def test_every_workflow_keeps_every_rule_and_each_can_be_broken() -> None:
    assert [
        (found.path.stem, number, breach)
        for found in map(Workflow, WORKFLOWS)
        for number, rule in RULES.items()
        for breach in rule(found)
    ] == []

    assert {
        number: set(rule(Workflow(BAD / f"rule-{number}.yml"))) for number, rule in RULES.items()
    } == BROKEN

    names = {path.stem for path in WORKFLOWS}

    assert {"ci", "gpu", "gpu-approve", "report", "update-baselines", "release"} <= names
    assert [
        path.stem for path in WORKFLOWS if not all(map(hosted, Workflow(path).jobs.values()))
    ] == ["gpu"]


CHECKOUT = "checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2"

DAMAGES = [
    (1, "gpu", "  schedule:\n", "  pull_request:\n  schedule:\n"),
    (1, "gpu", "    environment: ${{ inputs.sha && 'gpu-forks' || 'gpu' }}\n", ""),
    (1, "gpu", "          path: change\n          ref", "          ref"),
    (1, "gpu", "          rm -rf change\n", ""),
    (1, "gpu", "ref: ${{ inputs.sha || github.sha }}", "ref: ${{ inputs.pr }}"),
    (1, "gpu", "      SHA: ${{ inputs.sha }}", "      KEY: ${{ secrets.KEY }}"),
    (2, "gpu-approve", "          ref: ${{ github.event.repository.default_branch }}\n", ""),
    (2, "gpu-approve", ".event.repository.default_branch", ".event.issue.number"),
    (2, "gpu-approve", "python3 .github", "git fetch origin x\n          python3 .github"),
    (2, "report", ".repository.default_branch", ".workflow_run.head_sha"),
    (3, "gpu", "python3 -I control", "sudo python3 -I control"),
    (3, "gpu", "            MLPERF_MODELS=${{ vars.", "            MLPERF_MODELS=${{ secrets."),
    (3, "gpu", "{{ vars.MLPERF_REQUIREMENTS }}", "{{ toJSON(secrets) }}"),
    (4, "gpu", "persist-credentials: false", "persist-credentials: true"),
    (4, "gpu", '<<< "$FLEET"', '<<< "${{ vars.MLPERF_ACCELERATORS }}"'),
    (4, "ci", CHECKOUT, "checkout@v4"),
    (4, "ci", "      contents: read", "      contents: write"),
    (4, "update-baselines", '"$RUN_ID" > artifacts', '"${{ inputs.run_id }}" > artifacts'),
    (5, "gpu", "pytest-mlperf merge", "bash parts/run.sh; pytest-mlperf merge"),
    (5, "report", "      actions: read #", "      issues: write #"),
    (
        5,
        "update-baselines",
        "path: recorded\n",
        "path: recorded\n          digest-mismatch: warn\n",
    ),
    (6, "update-baselines", 'origin "$branch"', "origin main"),
    (6, "update-baselines", "git apply --cached", "git apply --index"),
    (6, "update-baselines", "--raw -z --no-renames", "--raw -z"),
    (6, "update-baselines", "branch=baselines/", "branch="),
    (6, "update-baselines", "git apply --cached", "pip install -e .\n          git apply --cached"),
    (7, "gpu", "machine.py clean", "machine.py check"),
    (
        7,
        "gpu",
        "python3 -I control/.github/scripts/machine.py check",
        "python3 control/.github/scripts/machine.py check",
    ),
    (
        7,
        "gpu",
        "        run: python3 -I control/.github/scripts/machine.py check\n",
        "        run: id\n",
    ),
    (7, "gpu", "./control/.github/actions", "./change/.github/actions"),
    (7, "gpu", " --remove change", ""),
]


def test_a_rule_sees_the_damage_in_the_real_workflow(tmp_path: Path) -> None:
    """One line changed in a workflow of this repository breaks the rule that it stands for."""
    unseen = []
    for number, name, old, new in DAMAGES:
        text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text("utf-8")
        file = tmp_path / f"{name}.yml"
        file.write_text(text.replace(old, new), "utf-8")
        if old not in text or not list(RULES[number](Workflow(file))):
            unseen.append((number, name, old, new))

    assert unseen == []


def test_our_actions_get_their_declared_inputs_and_no_needless_right() -> None:
    """GitHub only warns of an unknown input; one action has one commit everywhere."""
    taken = action("run-suite")["inputs"]
    required = {name for name, one in taken.items() if one.get("required")}
    inputs_by_use = [
        set(step["with"])
        for path in WORKFLOWS
        for job in Workflow(path).jobs.values()
        for step in job["steps"]
        if str(step.get("uses", "")).endswith("/actions/run-suite")
    ]
    assert inputs_by_use
    assert all(required <= names <= set(taken) for names in inputs_by_use)

    step = Workflow(ROOT / ".github" / "workflows" / "gpu.yml").step("run", "Measure and judge")
    assert step["with"]["update"] == (
        "${{ inputs.purpose == 'baseline' && 'replace' "
        "|| inputs.purpose == 'session' && 'missing' || '' }}"
    )
    assert step["with"]["reason"] == "${{ inputs.reason }}"
    assert step["with"]["manifest"] == "${{ github.workspace }}/plan/plan.json"

    for path in ACTIONS:
        for own_step in action(path.parent.name)["runs"]["steps"]:
            assert "${{" not in own_step.get("run", "")
            assert "uses" not in own_step or PINNED.fullmatch(own_step["uses"])

    commits: dict[str, set[str]] = {}
    for path in (*WORKFLOWS, *ACTIONS):
        for name, commit in re.findall(r"uses: ([\w./-]+)@(\S+)", path.read_text("utf-8")):
            commits.setdefault(name, set()).add(commit)
    assert {name: found for name, found in commits.items() if len(found) > 1} == {}

    for (name, job), rights in WRITES.items():
        jobs = Workflow(ROOT / ".github" / "workflows" / f"{name}.yml").jobs
        assert {k for k, right in jobs[job]["permissions"].items() if right == "write"} == rights

    for name in {*(name for name, _ in WRITES), "gpu"}:
        text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text("utf-8")
        assert re.findall(r"actions/cache|\bcache:", text) == [], name


def test_every_script_is_used_and_those_that_hold_a_token_need_nothing() -> None:
    ours = {path.stem for path in SCRIPTS.glob("*.py")}
    holding = {"approve", "comment", "api", "pull_request", "gpu_run", "recorded_run", "release"}

    for name in sorted(holding):
        text = (SCRIPTS / f"{name}.py").read_text("utf-8")
        imported = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
        assert "pytest_mlperf" not in imported
        assert holding >= imported & ours

    texts = "".join(path.read_text("utf-8") for path in (*WORKFLOWS, *ACTIONS))
    scripts = {path.stem: path.read_text("utf-8") for path in SCRIPTS.glob("*.py")}

    unused = {
        name
        for name in scripts
        if f"{name}.py" not in texts
        and not any(re.search(rf"^(from|import) {name}\b", t, re.M) for t in scripts.values())
    }
    assert unused == set()
