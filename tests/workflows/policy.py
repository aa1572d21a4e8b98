"""The seven rules that protect self-hosted machines, each a function that yields its violations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.workflows.github import HOSTED, Workflow

Job = Mapping[str, Any]

SAFE_TRIGGERS = frozenset({"workflow_dispatch", "schedule"})
"""Those that nobody without write access can pull."""

FORKS = "${{ inputs.sha || github.sha }}"
"""How a job checks out the commit that a maintainer approved, or else the branch."""

ENVIRONMENTS = "${{ inputs.sha && 'gpu-forks' || 'gpu' }}"
"""Where runs of forks' commits can have reviewers and the nightly run has none."""

OWN = "${{ github.event.repository.default_branch }}"

WRITES = {
    ("gpu-approve", "approve"): {"actions", "pull-requests"},
    ("report", "post"): {"pull-requests"},
    ("update-baselines", "propose"): {"contents", "pull-requests"},
    ("release", "publish"): {"id-token"},
}
"""Every right to write that any job has; nothing else may write."""

LEAK = re.compile(r"\bsecrets\b|github\.token|GH_TOKEN|GITHUB_TOKEN|id-token")
HEAD = re.compile(r"head\.(ref|sha|repo)|head_ref|merge_commit_sha|refs/pull|pr checkout")
ESCAPE = re.compile(r"docker|\bsudo\b|\bsu\b|podman")
UNSAFE_READ = re.compile(r"pickle|\beval\b|GITHUB_ENV|GITHUB_PATH|extractall|weights_only=False")
BEFORE_A_PROGRAM = r"(^\s*|[;&|]\s*|\$\(|\b(bash|sh|source|python3?|exec|install|-e)\s+)"
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


def text_of(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def hosted(job: Job) -> bool:
    named = job["runs-on"]
    if named == "${{ matrix.os }}":
        return {one["os"] for one in job["strategy"]["matrix"]["include"]} <= HOSTED
    return isinstance(named, str) and named in HOSTED


def own_machines(workflow: Workflow) -> Iterator[tuple[str, Job]]:
    return ((name, job) for name, job in workflow.jobs.items() if not hosted(job))


def runs(job: Job) -> Iterator[str]:
    return (str(step["run"]) for step in job["steps"] if "run" in step)


def uses(job: Job, action: str) -> Iterator[Mapping[str, Any]]:
    for step in job["steps"]:
        if str(step.get("uses", "")).startswith(f"{action}@"):
            yield step.get("with", {})


def writes(job: Job) -> set[str]:
    rights = job.get("permissions", "unset")
    if not isinstance(rights, dict):
        return {str(rights)}
    return {name for name, right in rights.items() if right != "read"}


def rule_1(workflow: Workflow) -> Iterator[str]:
    """Strangers' code reaches own machines only as an exact, approved commit."""
    for name, job in own_machines(workflow):
        for trigger in set(workflow.content["on"]) - SAFE_TRIGGERS:
            yield f"{name}: {trigger} reaches a self-hosted machine"
        if job.get("environment") not in {"gpu", ENVIRONMENTS}:
            yield f"{name}: no environment gpu, which says what branches may use it"
    for name, job in workflow.jobs.items():
        refs = [str(given.get("ref", "")) for given in uses(job, "actions/checkout")]
        if any("inputs." in ref and ref != FORKS for ref in refs):
            yield f"{name}: checks out an input that is not the approved commit"
        if FORKS in refs and (writes(job) or LEAK.search(text_of(job))):
            yield f"{name}: a fork's commit beside a token or a right to write"
        if FORKS in refs and hosted(job) and (reason := runs_change(job)):
            yield f"{name}: {reason}"


def runs_change(job: Job) -> str:
    """Return how a hosted job may run code of the commit that it checks out, or ""."""
    steps = job["steps"]
    (first,) = [n for n, step in enumerate(steps) if step.get("with", {}).get("ref") == FORKS]
    path = str(steps[first]["with"].get("path", ""))
    if not path:
        return "a fork's commit takes the place of the branch's code"
    later = [str(step.get("run", "")) for step in steps[first + 1 :]]
    if not later or "python3 -I .github/scripts/take_suites.py" not in later[0]:
        return "a fork's commit is not only read as data"
    if f"rm -rf {path}" not in later[0] or any("pip install" in script for script in later):
        return "a fork's commit stays where other steps run"
    return ""


def rule_2(workflow: Workflow) -> Iterator[str]:
    """What a stranger can start with our rights never checks out or reads their code."""
    if not {"pull_request_target", "workflow_run", "issue_comment"} & set(workflow.content["on"]):
        return
    for name, job in workflow.jobs.items():
        if not hosted(job):
            yield f"{name}: on a self-hosted machine"
        for inputs in uses(job, "actions/checkout"):
            if inputs.get("ref") != OWN:
                yield f"{name}: checks out {inputs.get('ref', 'the default')}"
        if HEAD.search(text_of(job["steps"])):
            yield f"{name}: names the pull request's head"
        if any(
            re.search(r"git (fetch|clone|checkout|pull|switch)", script) for script in runs(job)
        ):
            yield f"{name}: fetches by git"


def rule_3(workflow: Workflow) -> Iterator[str]:
    """Own machines give a job nothing but themselves: no root, no docker, no secret, no cache."""
    for name, job in own_machines(workflow):
        text = text_of(job)
        if "container" in job or "services" in job or ESCAPE.search(text):
            yield f"{name}: a container, docker or root"
        if job.get("permissions") != {"contents": "read"} or LEAK.search(text):
            yield f"{name}: a secret, a token or a right beyond reading"
        if "actions/cache" in text or any("cache" in g for g in uses(job, "actions/setup-python")):
            yield f"{name}: a cache, which outlives the job"


def rule_4(workflow: Workflow) -> Iterator[str]:
    """The least rights; actions by commit; no token left behind; inputs only through env."""
    content, text = workflow.content, workflow.path.read_text("utf-8")
    if content.get("permissions") != {}:
        yield "permissions are not {} at the top"
    for name, job in workflow.jobs.items():
        if extra := writes(job) - WRITES.get((workflow.path.stem, name), set()):
            yield f"{name}: may write {', '.join(sorted(extra))}"
        # What is measured ends by the plan, which knows how long it takes.
        ends = job.get("timeout-minutes", 0)
        if ends != "${{ matrix.minutes }}" and not (isinstance(ends, int) and 0 < ends <= 720):
            yield f"{name}: no end"
        for inputs in uses(job, "actions/checkout"):
            if inputs.get("persist-credentials") is not False:
                yield f"{name}: leaves its token in .git"
        for step in job["steps"]:
            if wrong := unpinned(str(step.get("uses", "")), text):
                yield f"{name}: {wrong}"
            if "${{" in f"{step.get('run')}{step.get('shell')}{step.get('working-directory')}":
                yield f"{name}: an expression in a script"


def unpinned(used: str, text: str) -> str | None:
    """Return the error in how a step names an action, or None."""
    if not used or used.startswith("./"):
        return None
    if not PINNED.fullmatch(used):
        return f"{used} is not pinned to a commit"
    has_version = re.search(rf"{re.escape(used)} # v\d+\.\d+\.\d+", text)
    return None if has_version else f"{used} does not say its version"


def rule_5(workflow: Workflow) -> Iterator[str]:
    """What other machines give is data: read by our own code, without a right to write."""
    for name, job in workflow.jobs.items():
        taken = list(uses(job, "actions/download-artifact"))
        foreign = [g for g in taken if "run-id" in g or "pattern" in g]
        if not foreign:
            continue
        if not hosted(job) or writes(job):
            yield f"{name}: reads results where it may write, or on a self-hosted machine"
        refs = {given.get("ref", OWN) for given in uses(job, "actions/checkout")}
        if refs != {OWN}:
            yield f"{name}: reads results with other code than the branch's"
        folders = "|".join(re.escape(str(given.get("path", "."))) for given in taken)
        started = re.compile(rf"{BEFORE_A_PROGRAM}\"?(\./)?({folders})/", re.MULTILINE)
        for script in runs(job):
            if UNSAFE_READ.search(script) or started.search(script):
                yield f"{name}: runs what it downloaded"
    for name, job in workflow.jobs.items():
        for inputs in uses(job, "actions/download-artifact"):
            if inputs.get("digest-mismatch", "error") != "error":
                yield f"{name}: takes an artifact whose digest differs"


INDEX_CHECK = (
    "git apply --cached",
    "git diff --cached --raw -z --no-renames",
    "'^baselines/",
    "(000000|100644) 100644",
    "gh pr create",
)
"""What a job that pushes must hold: the check is of what it would commit, and people review it."""


def rule_6(workflow: Workflow) -> Iterator[str]:
    """Baselines change by a reviewed pull request, from a hosted machine, by who read nothing."""
    for name, job in workflow.jobs.items():
        text = "\n".join(runs(job))
        pushes = re.findall(r"git push .*", text)
        if (pushes or "contents" in writes(job)) and not hosted(job):
            yield f"{name}: pushes from a self-hosted machine"
        if any('origin "$branch"' not in push for push in pushes):
            yield f"{name}: pushes to a branch that is not its own"
        if pushes and "branch=baselines/" not in text:
            yield f"{name}: its branch is not below baselines/"
        if pushes and not all(part in text for part in INDEX_CHECK):
            yield f"{name}: proposes more than baselines, or not for review"
        if "contents" in writes(job) and re.search(r"\bpip\b|pytest|\.github/scripts", text):
            yield f"{name}: runs more than git and gh beside a right to write"


def rule_7(workflow: Workflow) -> Iterator[str]:
    """Own machines are looked at before a job, and left idle and empty by its last step."""
    for name, job in own_machines(workflow):
        steps, last = job["steps"], job["steps"][-1]
        clean = str(last.get("run", ""))
        if last.get("if") != "always()" or "machine.py clean" not in clean:
            yield f"{name}: its last step does not always clean up"
        if "MLPERF_JOB" not in job.get("env", {}):
            yield f"{name}: its processes carry no mark"
        if any(re.search(r"python3? (?!-I )\S*machine\.py", script) for script in runs(job)):
            yield f"{name}: an earlier job's files can run where the machine is looked at"
        scripts = [number for number, step in enumerate(steps) if "machine.py check" in str(step)]
        forks = [n for n, step in enumerate(steps) if step.get("with", {}).get("ref") == FORKS]
        if not scripts or (forks and forks[0] < scripts[0]):
            yield f"{name}: measures on a machine that nobody has looked at"
        for number in forks:
            path = str(steps[number]["with"].get("path", ""))
            if not path or f"{path}/.github" in text_of(steps):
                yield f"{name}: runs scripts or actions of the commit that is measured"
            elif f"--remove {path}" not in clean:
                yield f"{name}: leaves {path} behind"


RULES: dict[int, Callable[[Workflow], Iterator[str]]] = {
    1: rule_1,
    2: rule_2,
    3: rule_3,
    4: rule_4,
    5: rule_5,
    6: rule_6,
    7: rule_7,
}
