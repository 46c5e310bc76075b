"""The workflows, as far as they can be tested where they do not run."""

from __future__ import annotations

import importlib.metadata
import os
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

NAMES = [
    "ci.yml",
    "compatibility.yml",
    "docs.yml",
    "gpu.yml",
    "release.yml",
    "reproduce.yml",
    "served.yml",
    "wheels.yml",
    "yank.yml",
]
USES = re.compile(r"^\s*(?:- )?uses: (\S+)(.*)$", re.MULTILINE)
SIGNS = {"id-token", "attestations"}
MAY_WRITE = {
    "release.yml": {"build": SIGNS, "pypi": {"id-token"}, "publish": {"contents"}},
    "wheels.yml": {"sdist": SIGNS, "wheel": SIGNS},
    "yank.yml": {"yank": {"contents"}},
}
MAY_READ = {"contents", "actions", "attestations"}

DIGEST = f"sha256:{'0' * 64}"
# Of make: a release of images with digests.
RELEASE = ["RELEASE=1", f"IMAGE_12_X86_64=x@{DIGEST}", f"IMAGE_12_AARCH64=y@{DIGEST}"]

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
    return set(re.findall(r"^([a-z0-9-]+):.* ## ", text, re.MULTILINE))


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
        assert writes == MAY_WRITE.get(name, {}).get(key, set()), key
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


def ancestors(jobs: dict[str, Any], key: str) -> set[str]:
    needs = jobs[key].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(ancestors(jobs, job) for job in direct))


def test_nothing_is_published_before_every_gate():
    jobs = load("release.yml")["jobs"]
    gates = {"check", "build", "verify", "docs", "compatibility", "gpu", "cubins", "assets"}
    published = ["pypi", "publish", "served", "reproduce"]
    assert jobs.keys() == gates | set(published)
    for index, key in enumerate(published):
        assert ancestors(jobs, key) == gates | set(published[:index])
    assert ancestors(jobs, "build") == {"check"}
    assert "verify" in ancestors(jobs, "gpu")
    assert "verify" in ancestors(jobs, "cubins"), "which compares the SBOM with the library"
    assert commands(jobs["cubins"])[-1] == "python3 tools/release/cubins.py dist"


def commands(job: dict[str, Any]) -> list[str]:
    """What its steps run or use, in their order."""
    return [step.get("run", step.get("uses", "")) for step in job.get("steps", [])]


def place(found: list[str], start: str) -> int:
    return next(index for index, text in enumerate(found) if text.startswith(start))


COMPARE = "python3 tools/release/hashes.py compare"


def test_every_downloaded_file_is_compared_before_it_is_used():
    downloads = 0
    for name in ("gpu.yml", "release.yml", "wheels.yml", "compatibility.yml"):
        for key, job in load(name)["jobs"].items():
            found = commands(job)
            for index, text in enumerate(found):
                if text.startswith("actions/download-artifact@"):
                    if job["steps"][index]["with"].get("name") == "docs":
                        continue  # pages, which nobody installs
                    downloads += 1
                    weekly = (name, key) == ("compatibility.yml", "torch")  # publishes nothing
                    assert weekly or found[index + 1].startswith(COMPARE), f"{name}: {key}"
            for step in job.get("steps", []):
                if step.get("run", "").startswith(COMPARE):
                    assert "sha256" in step["env"]["SHA256"] or "sdist" in step["env"]["SHA256"]
    assert downloads >= 9


@pytest.mark.parametrize("key", ["sdist", "wheel"])
def test_the_job_that_builds_tells_the_hash_and_signs_at_once(key):
    job = load("wheels.yml")["jobs"][key]
    found = commands(job)
    built = place(found, "make sdist" if key == "sdist" else "make manylinux")
    assert found[built + 1].startswith("python3 tools/release/hashes.py record")
    assert found[built + 2].startswith("actions/attest-build-provenance@")
    assert job["steps"][built + 2]["if"] == "${{ inputs.release }}"
    assert job["steps"][built + 1]["id"] == "sha256"
    assert all("steps.sha256.outputs." in value for value in job["outputs"].values())
    # Packages that no hash pins are installed by `make verify` alone: not where a token signs.
    unpinned = [step for step in job["steps"] if step.get("run", "").startswith("make verify")]
    assert all(step["if"] == "${{ !inputs.release }}" for step in unpinned)


def test_every_wheel_of_the_matrix_tells_its_hash():
    """An entry without an output would be built, and never be published."""
    job = load("wheels.yml")["jobs"]["wheel"]
    matrix = job["strategy"]["matrix"]
    names = {f"wheel-{host}" for host in matrix["platform"]}
    assert job["outputs"] == {name: f"${{{{ steps.sha256.outputs.{name} }}}}" for name in names}
    assert job["env"]["ARTIFACT"] == "wheel-${{ matrix.platform }}"


def test_a_release_asks_for_provenance_before_it_tests_and_before_it_publishes():
    jobs = load("release.yml")["jobs"]
    for key, later in (("verify", "make verify"), ("publish", "make index")):
        found = commands(jobs[key])
        assert place(found, "python3 tools/release/attestation.py") < place(found, later)


def test_a_tag_has_to_be_on_green_main():
    job = load("release.yml")["jobs"]["check"]
    assert place(commands(job), "python3 tools/release/runs.py green")
    assert job["steps"][0]["with"]["fetch-depth"] == 0  # the tag's commit, and main


def test_what_is_published_is_read_back_and_built_again():
    jobs = load("release.yml")["jobs"]
    for key in ("served", "reproduce"):
        assert jobs[key]["uses"] == f"./.github/workflows/{key}.yml"
    assert load("yank.yml")["jobs"]["served"]["uses"] == "./.github/workflows/served.yml"
    assert "make served-index" in commands(load("served.yml")["jobs"]["served"])
    again = commands(load("reproduce.yml")["jobs"]["reproduce"])
    assert place(again, "make reproduce RELEASE=1")


def test_gpu_tests_run_on_every_card_with_every_wheel():
    job = load("gpu.yml")["jobs"]["gpu"]
    assert job["strategy"]["matrix"].keys() == {"wheel", "card"}
    assert job["strategy"]["fail-fast"] is False
    assert job["runs-on"][-1] == "${{ matrix.card }}"
    found = commands(job)
    assert place(found, "python3 tools/release/card.py") < place(found, "make test-gpu")


def test_every_python_of_the_classifiers_is_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    start = "Programming Language :: Python :: 3."
    named = [c.rpartition(" ")[2] for c in project["classifiers"] if c.startswith(start)]
    matrix = load("compatibility.yml")["jobs"]["python"]["strategy"]["matrix"]
    assert matrix["python"] == named


def test_pull_requests_are_tested_as_they_will_be_merged():
    assert {"push", "pull_request", "merge_group"} == triggers(load("ci.yml")).keys()


def test_make_passes_no_token_on_that_signs():
    names = ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL")
    command = ["make", "--eval=show:; @env", "show"]
    given = {**os.environ, **dict.fromkeys(names, "secret"), "KEPT": "1"}
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=True)
    assert "KEPT=1" in done.stdout
    assert not [name for name in names if name in done.stdout]


def test_dependabot_knows_actions_and_requirements():
    found = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8"))
    updates = {entry["package-ecosystem"]: entry for entry in found["updates"]}
    assert updates.keys() == {"github-actions", "pip"}
    assert all(entry["cooldown"]["default-days"] >= 7 for entry in found["updates"])
    by_hand = {entry["dependency-name"] for entry in updates["pip"]["ignore"]}
    assert (
        by_hand == pins("cuda.txt").keys() | pins("cutlass.txt").keys() | pins("torch.txt").keys()
    )


def test_a_release_takes_nothing_from_a_cache():
    assert load("release.yml")["jobs"]["build"]["with"] == {"release": True}
    cached = [step for step in steps("wheels.yml") if "actions/cache" in step.get("uses", "")]
    # Saved by a run that fails, too: what it has compiled is not compiled again.
    expected = ["${{ !inputs.release }}", "${{ always() && !inputs.release }}"]
    assert [step["if"] for step in cached] == expected
    assert [step["uses"].split("@")[0].split("/")[-1] for step in cached] == ["restore", "save"]
    for name in set(NAMES) - {"wheels.yml"}:
        assert not any("actions/cache" in step.get("uses", "") for step in steps(name))


def test_all_shards_are_built_told_of_and_compared():
    jobs = load("wheels.yml")["jobs"]
    matrix = jobs["shard"]["strategy"]["matrix"]
    count = len(matrix["shard"])
    assert matrix["shard"] == list(range(1, count + 1))
    build = next(s for s in jobs["shard"]["steps"] if s.get("run", "").startswith("make manylinux"))
    assert build["env"]["SHARD"] == f"${{{{ matrix.shard }}}}/{count}"
    names = {f"shard-{p}-{number}" for p in matrix["platform"] for number in matrix["shard"]}
    outputs = jobs["shard"]["outputs"]
    assert outputs == {name: f"${{{{ steps.sha256.outputs.{name} }}}}" for name in names}
    assert jobs["wheel"]["strategy"]["matrix"]["platform"] == matrix["platform"]
    found = commands(jobs["wheel"])
    compared = next(text for text in found if text.startswith(f"{COMPARE} build/shards"))
    artifacts = re.findall(r'--artifact "(\S+)"', compared)
    assert artifacts == [f"shard-$PLATFORM-{number}" for number in matrix["shard"]]
    linked = next(text for text in found if text.startswith("make manylinux"))
    assert linked.startswith("make manylinux SHARDS=1 ")
    assert found.index(compared) < found.index(linked)


@pytest.mark.parametrize(
    ("settings", "given", "folder"),
    [
        (["SHARD=2/3"], {"CUTWHEEL_SHARD": "2/3", "CIBW_TEST_SKIP": "*"}, "build/shard"),
        (
            ["SHARD=2/3", *RELEASE],
            {"CUTWHEEL_SHARD": "2/3", "CCACHE_DISABLE": "1"},
            "build/shard",
        ),
        (["SHARDS=1"], {"CUTWHEEL_SHARD": None, "CIBW_REPAIR_WHEEL_COMMAND": None}, "dist"),
        ([], {"CUTWHEEL_SHARDS": None, "CUTWHEEL_SHARD": None}, "dist"),
    ],
)
def test_a_shard_of_a_wheel_is_kept_out_of_dist(settings, given, folder):
    command = ["make", "-n", "manylinux", *settings]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if "cibuildwheel --platform" in line)
    words = dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)
    assert {name: words.get(name) for name in given} == given
    if settings:
        assert words["CUTWHEEL_SHARDS"] == f"/host{ROOT}/build/shards"
    assert f"--output-dir {folder} " in line


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


def test_there_is_one_wheel_for_a_platform_and_aarch64_on_request_only():
    workflow = load("wheels.yml")
    for trigger in ("workflow_dispatch", "workflow_call"):
        assert triggers(workflow)[trigger]["inputs"]["aarch64"]["default"] is False
    matrix = workflow["jobs"]["wheel"]["strategy"]["matrix"]
    assert matrix.keys() == {"platform", "exclude"}
    assert matrix["platform"] == ["x86_64", "aarch64"]
    assert "include" not in matrix  # it would add a job where its row is excluded


def test_each_wheel_that_is_taken_by_name_is_built():
    built = load("wheels.yml")["jobs"]["wheel"]["outputs"].keys()
    texts = [(FOLDER / name).read_text(encoding="utf-8") for name in NAMES if name != "wheels.yml"]
    taken = {name for text in texts for name in re.findall(r"\bwheel-\w+", text)}
    assert taken == {"wheel-x86_64"} <= built


@pytest.mark.parametrize(("settings", "image"), [([], True), (["CUDA=13"], False)])
def test_the_wheel_is_built_with_cuda_12_unless_13_is_asked_for(settings, image):
    command = ["make", "-n", "manylinux", *settings]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if "cibuildwheel --platform" in line)
    assert ("manylinux2_28-builder:cuda12.8 " in line) is image
    assert ("CUTWHEEL_CUDA=auto" in line) is image


def test_a_release_is_built_from_hashes():
    command = ["make", "-n", "manylinux", *RELEASE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if "cibuildwheel --platform" in line)
    words = dict(word.split("=", 1) for word in shlex.split(line) if word.startswith("CIBW_"))
    assert words["CIBW_BUILD_FRONTEND"] == "build; args: --no-isolation --skip-dependency-check"
    install = "pip install --no-deps --require-hashes -r {project}/requirements/build.lock"
    assert words["CIBW_BEFORE_BUILD"] == install
    assert words["CIBW_TEST_SKIP"] == "*"  # nothing unpinned before the hash is told
    plain = subprocess.run(command[:3], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "require-hashes -r {project}" not in plain.stdout


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


LOCK_ENTRY = re.compile(
    r"^([\w.-]+)==(\S+).*?\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M
)


@pytest.mark.parametrize(
    ("lock", "sources"),
    [
        ("release.lock", ["release.txt"]),
        ("build.lock", ["build.txt", "isolated.txt", "cuda.txt", "cutlass.txt", "torch.txt"]),
    ],
)
def test_locks_have_hashes_of_every_pin(lock, sources):
    """`make locks` writes them."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    entries = {canonical(name): version for name, version, _ in LOCK_ENTRY.findall(text)}
    assert LOCK_ENTRY.sub("", text).strip() == ""  # nothing is without a hash
    wanted: dict[str, str] = {}
    for source in sources:
        wanted |= {canonical(name): version for name, version in pins(source).items()}
    assert {name: entries.get(name) for name in wanted} == wanted
    if lock == "build.lock":
        assert entries.keys() == wanted.keys()


def test_the_lock_of_the_build_has_what_its_tools_need():
    """It is installed with --no-deps: torch, CUTLASS and the compiler are only read."""
    requirements = pytest.importorskip("packaging.requirements")
    text = (ROOT / "requirements" / "build.lock").read_text(encoding="utf-8")
    entries = {canonical(name): version for name, version, _ in LOCK_ENTRY.findall(text)}
    for tool in ("auditwheel", "build", "scikit-build-core"):
        for line in importlib.metadata.requires(tool) or []:
            needed = requirements.Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert needed.specifier.contains(entries[canonical(needed.name)]), f"{tool}: {line}"


def test_make_refuses_other_cuda_versions():
    command = ["make", "-n", "manylinux", "CUDA=11"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "CUDA=11: expected 12 or 13" in done.stderr


@pytest.mark.parametrize("name", ["IMAGE_12_X86_64", "IMAGE_12_AARCH64"])
def test_a_release_in_an_image_without_a_digest_is_refused(name):
    command = ["make", "-n", "manylinux", *RELEASE, f"{name}=quay.io/x:1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "RELEASE=1: quay.io/x:1 has no digest; `make images` looks it up" in done.stderr
    # The stock image is pinned by cibuildwheel, which requirements/release.lock pins.
    subprocess.run([*command, "CUDA=13"], cwd=ROOT, capture_output=True, check=True)


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
