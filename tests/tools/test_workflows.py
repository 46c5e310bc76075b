"""The workflows, as far as they can be tested where they do not run."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomllib

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
# An sdist has PKG-INFO and no workflows. In a checkout their absence is a failure.
if (ROOT / "PKG-INFO").exists() and not FOLDER.exists():
    pytest.skip("an sdist holds no workflows", allow_module_level=True)

NAMES = ["ci.yml", "docs.yml", "gpu.yml", "release.yml", "wheels.yml"]
USES = re.compile(r"^\s*(?:- )?uses: (\S+)(.*)$", re.MULTILINE)
MAY_WRITE = {"attest": {"id-token", "attestations"}, "pypi": {"id-token"}, "publish": {"contents"}}
MAY_READ = {"contents", "actions"}

every_workflow = pytest.mark.parametrize("name", NAMES)


def load(name: str) -> dict[Any, Any]:
    document = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def triggers(workflow: dict[Any, Any]) -> dict[str, Any]:
    found = workflow[True]  # YAML 1.1 reads `on` as a truth value
    assert isinstance(found, dict)
    return found


def steps(name: str) -> Iterator[dict[str, Any]]:
    for job in load(name)["jobs"].values():
        yield from job.get("steps", [])


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):.* ## ", text, re.MULTILINE))


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w-]+)(?:\[\w+\])?==(\S+)$", text, re.MULTILINE))


def test_these_are_all_workflows():
    assert sorted(path.name for path in FOLDER.iterdir()) == NAMES


@every_workflow
def test_actions_are_pinned_by_hash_and_say_their_version(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    for action, comment in USES.findall(text):
        if action.startswith("./"):
            assert (ROOT / action).is_file(), action
            continue
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action}{comment}"


def test_an_action_has_one_hash_everywhere():
    found = {use for name in NAMES for use in USES.findall((FOLDER / name).read_text("utf-8"))}
    actions = [action.partition("@")[0] for action, _ in found if "@" in action]
    assert len(actions) == len(set(actions)), sorted(actions)


@every_workflow
def test_permissions_are_empty_at_the_top_and_granted_by_job(name):
    workflow = load(name)
    assert workflow["permissions"] == {}
    for key, job in workflow["jobs"].items():
        granted = {scope: level for scope, level in job["permissions"].items() if level != "none"}
        writes = {scope for scope, level in granted.items() if level == "write"}
        assert writes <= (MAY_WRITE.get(key, set()) if name == "release.yml" else set()), key
        assert granted.keys() - writes <= MAY_READ, key


@every_workflow
def test_each_command_is_a_make_target_or_a_tool(name):
    for step in steps(name):
        if "run" not in step:
            continue
        command = step["run"]
        assert "${{" not in command, f"pass it in env: {command}"
        assert "\n" not in command.strip(), f"one command a step: {command}"
        assert not re.search(r"[;|&`<>]|\$\(", command), f"logic belongs into a tool: {command}"
        program, *words = shlex.split(command)
        if program == "make":
            target, *settings = words
            assert target in make_targets(), command
            assert all(re.match(r"[A-Z_]+=", word) for word in settings), command
        else:
            assert program == "python3", command
            assert words[0].startswith("tools/"), command
            assert (ROOT / words[0]).is_file(), command


@every_workflow
def test_each_job_has_a_timeout(name):
    for key, job in load(name)["jobs"].items():
        if "uses" not in job:  # GitHub takes none there; the called jobs have theirs
            assert 0 < job["timeout-minutes"] <= 360, key


@every_workflow
def test_concurrency_is_limited(name):
    assert {"group", "cancel-in-progress"} <= load(name)["concurrency"].keys()


@every_workflow
def test_checkouts_keep_no_credentials(name):
    for step in steps(name):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@every_workflow
def test_there_are_no_secrets(name):
    assert "secrets" not in (FOLDER / name).read_text(encoding="utf-8")


def test_runners_of_our_own_run_no_code_of_pull_requests():
    for name in NAMES:
        jobs = load(name)["jobs"].values()
        own = any("self-hosted" in str(job.get("runs-on")) for job in jobs)
        assert not own or triggers(load(name)).keys() <= {"workflow_dispatch", "workflow_call"}


def test_a_release_takes_its_steps_in_order():
    jobs = load("release.yml")["jobs"]
    order = ["check", "build", "verify", "docs", "gpu", "attest", "pypi", "publish"]
    assert list(jobs) == order
    assert [jobs[key].get("needs") for key in order] == [None, *order[:-1]]


def test_a_release_takes_nothing_from_a_cache():
    assert load("release.yml")["jobs"]["build"]["with"] == {"release": True}
    cached = [step for step in steps("wheels.yml") if "actions/cache@" in step.get("uses", "")]
    assert [step["if"] for step in cached] == ["${{ !inputs.release }}"]
    for name in ("gpu.yml", "release.yml"):
        assert not any("actions/cache@" in step.get("uses", "") for step in steps(name))


def test_ci_runs_what_the_local_check_runs():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    local = re.findall(r"^make (.+?)(?: REPRODUCE_ARGS=.*)?$", script, re.MULTILINE)
    hosted = [step["run"].removeprefix("make ") for step in steps("ci.yml") if "run" in step]
    # There the image is the PyPA's. One stands in for it here, which `make env` comes before.
    here = [line for line in local if line not in ("env", "docs")]
    assert [line for line in hosted if line != "manylinux"] == here
    assert hosted.index("manylinux") == [x for x in local if x != "docs"].index("env")


def test_the_site_is_rendered_for_each_pull_request_and_published_with_a_release():
    assert {"pull_request", "workflow_call"} <= triggers(load("docs.yml")).keys()
    assert "make docs" in [step.get("run") for step in steps("docs.yml")]
    commands = [step.get("run") for step in load("release.yml")["jobs"]["publish"]["steps"]]
    assert commands.index("make add-docs") < commands.index("make push-index")


def test_cuda_12_and_aarch64_are_built_on_request_only():
    workflow = load("wheels.yml")
    for trigger in ("workflow_dispatch", "workflow_call"):
        inputs = triggers(workflow)[trigger]["inputs"]
        assert [inputs[key]["default"] for key in ("cuda12", "aarch64")] == [False, False]
    matrix = workflow["jobs"]["wheel"]["strategy"]["matrix"]
    assert matrix["cuda"] == ["13", "12"]
    assert matrix["platform"] == ["x86_64", "aarch64"]
    assert "include" not in matrix  # it would add a job where its row is excluded


@pytest.mark.parametrize(("cuda", "image"), [("13", False), ("12", True)])
def test_make_knows_each_cuda_version(cuda, image):
    command = ["make", "-n", "manylinux", f"CUDA={cuda}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if "cibuildwheel --platform" in line)
    assert (f"manylinux_2_28_x86_64_cuda{cuda}_" in line) is image
    assert ("CUTWHEEL_CUDA=auto" in line) is image


def test_make_refuses_other_cuda_versions():
    command = ["make", "-n", "manylinux", "CUDA=11"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "CUDA=11: expected 12 or 13" in done.stderr


def test_both_repairs_leave_out_the_same_libraries():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    repair = project["tool"]["cibuildwheel"]["repair-wheel-command"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    line = next(line for line in makefile.splitlines() if "auditwheel repair" in line)
    left_out = [re.findall(r"--exclude (\S+)", text) for text in (repair, line)]
    assert left_out[0] == left_out[1] != []
    assert "--plat manylinux_2_28_$(uname -m)" in repair


def test_pins_of_one_package_agree():
    release = pins("release.txt")
    assert "cibuildwheel" in release
    for other in ("build.txt", "test.txt", "lint.txt"):
        both = release.keys() & pins(other).keys()
        assert {key: release[key] for key in both} == {key: pins(other)[key] for key in both}
