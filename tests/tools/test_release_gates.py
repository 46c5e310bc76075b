"""Gates of a release: each passes with what is right, and a case here breaks it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import attestation
import card
import constraints
import cubins
import hashes
import pytest
import releasing
import runs

TAG = "v1.2.0"
REPOSITORY = "cutwheel/cutwheel"


# --- hashes.py: from the job that builds to those that test and publish


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "outputs"
    monkeypatch.setenv("GITHUB_OUTPUT", str(path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    return path


def read(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """What a run has built: an sdist and wheels of two platforms."""
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in ("x-1.tar.gz", "x-1-x86_64.whl", "x-1-aarch64.whl"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def collected(built: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The outputs of the workflow that built them; SHA256 is set."""
    files = {
        "sdist": "x-1.tar.gz",
        "wheel-x86_64": "x-1-x86_64.whl",
        "wheel-aarch64": "x-1-aarch64.whl",
    }
    for artifact, name in files.items():
        assert hashes.main(["record", artifact, str(built / name)]) == 0
    told = read(outputs)
    needs = {
        "sdist": {"result": "success", "outputs": {"sdist": told.pop("sdist")}},
        "wheel": {"result": "success", "outputs": told | {"wheel-ppc64le": ""}},
    }
    monkeypatch.setenv("NEEDS", json.dumps(needs))
    assert hashes.main(["collect"]) == 0
    found = read(outputs)
    monkeypatch.setenv("SHA256", found["sha256"])
    return found


def test_files_of_the_build_pass(built, collected, tmp_path):
    assert hashes.main(["compare", str(built)]) == 0
    assert json.loads(collected["wheels"]) == ["wheel-aarch64", "wheel-x86_64"]
    assert json.loads(collected["gpu-wheels"]) == ["wheel-x86_64"]
    assert collected["sha256"] in (tmp_path / "summary").read_text()


def test_one_artifact_is_compared_by_its_name(built, collected):
    for name in ("x-1.tar.gz", "x-1-aarch64.whl"):
        (built / name).unlink()
    assert hashes.main(["compare", str(built), "--artifact", "wheel-x86_64"]) == 0
    assert hashes.main(["compare", str(built), "--artifact", "wheel-aarch64"]) == 1
    assert hashes.main(["compare", str(built), "--artifact", "wheel-s390x"]) == 1


def test_a_swapped_wheel_is_refused(built, collected, capsys):
    (built / "x-1-x86_64.whl").write_text("swapped")
    assert hashes.main(["compare", str(built)]) == 1
    assert "x-1-x86_64.whl is another file" in capsys.readouterr().err


def test_a_file_more_or_less_is_refused(built, collected, capsys):
    (built / "x-2.whl").write_text("smuggled")
    assert hashes.main(["compare", str(built)]) == 1
    assert "x-2.whl is no file of this release" in capsys.readouterr().err
    (built / "x-2.whl").unlink()
    (built / "x-1.tar.gz").unlink()
    assert hashes.main(["compare", str(built)]) == 1
    assert "x-1.tar.gz is not there" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "{}", "null", '{"sdist": {}}', '{"sdist": {"a": "0"}}', "[1]"]
)
def test_without_hashes_nothing_passes(built, collected, monkeypatch, text):
    monkeypatch.setenv("SHA256", text)
    assert hashes.main(["compare", str(built)]) == 1


@pytest.mark.parametrize(
    "state", [{"result": "failure", "outputs": {}}, {"result": "success", "outputs": {"x": ""}}]
)
def test_a_job_that_tells_no_hashes_stops_the_run(collected, monkeypatch, state):
    monkeypatch.setenv("NEEDS", json.dumps({"wheel": state}))
    assert hashes.main(["collect"]) == 1


def test_an_artifact_is_built_once(built, collected, monkeypatch, capsys):
    text = json.dumps({"sdist": {"x": "0" * 64}})
    twice = {job: {"result": "success", "outputs": {"sdist": text}} for job in ("one", "two")}
    monkeypatch.setenv("NEEDS", json.dumps(twice))
    assert hashes.main(["collect"]) == 1
    assert "two jobs built sdist" in capsys.readouterr().err


def test_two_files_of_one_name_have_to_be_the_same():
    one, other = {"x": "0" * 64}, {"x": "1" * 64}
    assert hashes.flatten({"a": one, "b": one}) == one
    with pytest.raises(releasing.ReleaseError, match="different files x"):
        hashes.flatten({"a": one, "b": other})


# --- runs.py: the tag is on green main


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose origin has two commits on main; the tag is on the first."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    urls = f'[project.urls]\nSource = "https://github.com/{REPOSITORY}"\n'
    (origin / "pyproject.toml").write_text(urls)
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "one")
    git(origin, "tag", "-a", "-m", "release", TAG)
    git(origin, "commit", "-qm", "two", "--allow-empty")
    git(tmp_path, "clone", "-q", str(origin), "clone")
    return tmp_path / "clone"


GH = """#!{python}
import json, sys
from pathlib import Path
with Path({log!r}).open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
sys.stderr.write({error!r})
print({text!r})
sys.exit({status})
"""


class Gh:
    """A gh that answers what it is told to, and writes down what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        folder.mkdir()

    def answers(self, found: object, status: int = 0, error: str = "") -> None:
        program = self.folder / "gh"
        names = {"python": sys.executable, "log": str(self.log), "text": json.dumps(found)}
        program.write_text(GH.format(**names, status=status, error=error))
        program.chmod(0o755)

    @property
    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gh:
    made = Gh(tmp_path / "gh")
    monkeypatch.setenv("PATH", str(made.folder), prepend=":")
    return made


def run_of(status: str = "completed", conclusion: str = "success") -> dict[str, Any]:
    return {"databaseId": 7, "status": status, "conclusion": conclusion, "url": "https://run/7"}


def green(clone: Path) -> int:
    return runs.main(["green", TAG, "--root", str(clone)])


def test_a_tag_on_green_main_passes(clone, gh):
    gh.answers([run_of(), run_of(conclusion="failure")])  # the newest run counts
    assert green(clone) == 0
    [asked] = gh.asked
    commit = git(clone, "rev-parse", f"{TAG}^{{commit}}")
    for option, value in (("--commit", commit), ("--branch", "main"), ("--workflow", "ci.yml")):
        assert asked[asked.index(option) + 1] == value


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "ci.yml has not run"),
        ([run_of(conclusion="failure"), run_of()], "ci.yml ended with failure"),
        ([run_of(conclusion="cancelled")], "ci.yml ended with cancelled"),
        ([run_of("in_progress", "")], "ci.yml has not finished"),
    ],
)
def test_a_tag_on_main_that_is_not_green_is_refused(clone, gh, capsys, found, message):
    gh.answers(found)
    assert green(clone) == 1
    assert message in capsys.readouterr().err


def test_a_tag_off_main_is_refused_though_its_checks_passed(clone, gh, capsys):
    gh.answers([run_of()])
    git(clone, "switch", "-q", "-c", "side", TAG)
    git(clone, "commit", "-qm", "side", "--allow-empty")
    git(clone, "tag", "-f", "-a", "-m", "moved", TAG)
    assert green(clone) == 1
    assert "which is no commit of main" in capsys.readouterr().err


def test_a_clone_without_main_or_tag_is_no_proof(clone, gh, capsys):
    gh.answers([run_of()])
    git(clone, "update-ref", "-d", "refs/remotes/origin/main")
    assert green(clone) == 1
    assert "origin/main cannot be read" in capsys.readouterr().err
    git(clone, "tag", "-d", TAG)
    assert green(clone) == 1
    assert f"there is no tag {TAG}" in capsys.readouterr().err


def test_the_last_success_is_found(clone, gh, outputs):
    gh.answers([run_of()])
    assert runs.main(["latest", "wheels.yml", "--root", str(clone)]) == 0
    assert read(outputs) == {"run-id": "7"}
    gh.answers([])
    assert runs.main(["latest", "wheels.yml", "--root", str(clone)]) == 1


# --- card.py: a runner has the card that its label names


@pytest.mark.parametrize(
    ("label", "cards", "message"),
    [
        ("cutwheel-sm90", "NVIDIA H200, 9.0\n", None),
        ("cutwheel-sm90", "NVIDIA H200, 9.0\nNVIDIA A100, 8.0\n", "here is NVIDIA A100 (8.0)"),
        ("cutwheel-sm120", "NVIDIA B200, 10.0\n", "asks for 12.0, but here is NVIDIA B200 (10.0)"),
        ("cutwheel-sm80", "", "finds no GPU"),
        ("cutwheel-gpu", "NVIDIA H200, 9.0\n", "names no compute capability"),
    ],
)
def test_a_card_is_what_its_label_says(tmp_path, monkeypatch, capsys, label, cards, message):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\nprint({cards!r}, end='')\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert card.main([label]) == (1 if message else 0)
    assert (message or "") in capsys.readouterr().err


# --- constraints.py

LOCKED = """cutwheel==1.2.0 \\
    --hash=sha256:{wheel}
torch==2.13.0 \\
    --hash=sha256:{torch}
"""


@pytest.mark.parametrize(
    ("wheel", "torch", "message"),
    [
        ("1" * 64, "2" * 64, None),
        ("3" * 64, "2" * 64, "other hashes of cutwheel"),
        ("1" * 64, "none", "no hash of torch"),
    ],
)
def test_constraints_name_the_files_of_this_build(wheel, torch, message):
    text = LOCKED.format(wheel=wheel, torch=torch)
    if message is None:
        constraints.check(text, {"x.whl": "1" * 64})
        return
    with pytest.raises(releasing.ReleaseError, match=message):
        constraints.check(text, {"x.whl": "1" * 64})


def test_constraints_are_of_one_time_and_version(tmp_path, monkeypatch, capsys):
    for name in ("cutwheel-1.0-x.whl", "cutwheel-2.0-x.whl"):
        (tmp_path / name).write_bytes(b"")
    wheels = sorted(map(str, tmp_path.glob("*.whl")))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert constraints.main([*wheels, "--to", str(tmp_path)]) == 1
    assert "SOURCE_DATE_EPOCH is not set" in capsys.readouterr().err
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    assert constraints.main([*wheels, "--to", str(tmp_path)]) == 1
    assert "of one version" in capsys.readouterr().err


# --- attestation.py


def attested(clone: Path, *files: Path) -> int:
    return attestation.main([TAG, *map(str, files), "--root", str(clone)])


def test_provenance_is_asked_for_of_this_tag_and_workflow(clone, gh, built):
    gh.answers("")
    assert attested(clone, built / "x-1.tar.gz", built / "x-1-x86_64.whl") == 0
    assert len(gh.asked) == 2
    commit = git(clone, "rev-parse", f"{TAG}^{{commit}}")
    for asked in gh.asked:
        assert {
            f"--repo={REPOSITORY}",
            f"--signer-workflow={REPOSITORY}/.github/workflows/wheels.yml",
            f"--source-ref=refs/tags/{TAG}",
            f"--source-digest={commit}",
            "--deny-self-hosted-runners",
        } < set(asked)
    assert (releasing.ROOT / attestation.BUILDER).is_file() or not (
        releasing.ROOT / ".github"
    ).exists()


def test_a_file_without_provenance_is_refused(clone, gh, built, capsys):
    gh.answers("", status=1, error="no attestations found for subject sha256:12")
    assert attested(clone, built / "x-1-x86_64.whl") == 1
    assert "no attestations found" in capsys.readouterr().err
    assert attested(clone, built / "nothing.whl") == 1


@pytest.mark.parametrize("own", [True, False])
def test_bundles_are_kept_by_the_name_of_their_file(clone, gh, built, tmp_path, own):
    path = built / "x-1-x86_64.whl"
    name = releasing.digest(path) if own else "0" * 64
    gh.answers("")
    program = gh.folder / "gh"
    write = f"Path('sha256:{name}.jsonl').write_text('bundle')"
    program.write_text(
        program.read_text().replace("sys.exit(", f"if 'download' in sys.argv: {write}\nsys.exit(")
    )
    kept = tmp_path / "kept"
    status = attestation.main([TAG, str(path), "--download", str(kept), "--root", str(clone)])
    assert status == (0 if own else 1)
    assert [found.name for found in kept.iterdir()] == [f"{path.name}.sigstore.jsonl"] * own


def test_a_repository_is_read_from_the_project(tmp_path):
    assert releasing.repository() == REPOSITORY
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nSource = "https://example.org/x"\n')
    with pytest.raises(releasing.ReleaseError, match=r"project\.urls\.Source"):
        releasing.repository(tmp_path)


# --- cubins.py: wheels that no GPU has run hold the code of the one that GPUs have


def component(name: str, arch: str, sha256: str) -> dict[str, Any]:
    properties = [{"name": "cutwheel:arch", "value": arch}]
    return {
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "properties": properties,
    }


KERNELS = [
    component("mm", "sm80", "a"),
    component("mm", "sm100", "b"),
    component("bmm", "sm80", "a"),
]


def wheel(folder: Path, platform: str, kernels: list[dict[str, Any]]) -> None:
    parts = [{"name": "libcudart_static.a", "hashes": []}, *kernels]
    with zipfile.ZipFile(folder / f"x-1-py3-none-manylinux_2_28_{platform}.whl", "w") as archive:
        name = "x-1.dist-info/sboms/cutwheel.cdx.json"
        archive.writestr(name, json.dumps({"components": parts}))


def test_wheels_of_all_platforms_hold_the_same_cubins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path, "x86_64", KERNELS)
    (tmp_path / "x-1.tar.gz").touch()
    assert cubins.main([str(tmp_path)]) == 0
    assert "no wheel but that for x86_64" in capsys.readouterr().out
    wheel(tmp_path, "aarch64", KERNELS[::-1])
    assert cubins.main([str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "x-1-py3-none-manylinux_2_28_aarch64.whl: 3 cubins, all those of x-1-py3" in told


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ([*KERNELS[:2], component("bmm", "sm80", "c")], "bmm [sm80] is another cubin"),
        (KERNELS[1:], "mm [sm80] is not in it"),
        ([*KERNELS, component("mm", "sm120", "d")], "mm [sm120] is in it alone"),
        ([], "its SBOM lists no kernel"),
        ([{**KERNELS[0], "hashes": []}], "has no SBOM that lists cubins"),
    ],
)
def test_other_cubins_stop_the_release(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kernels: list[dict[str, Any]],
    message: str,
) -> None:
    wheel(tmp_path, "x86_64", KERNELS)
    wheel(tmp_path, "aarch64", kernels)
    assert cubins.main([str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


def test_cubins_are_compared_with_those_of_one_wheel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path, "aarch64", KERNELS)
    assert cubins.main([str(tmp_path)]) == 1
    assert "has 0 wheels for x86_64, expected one" in capsys.readouterr().err
    (tmp_path / "x-1-py3-none-manylinux_2_28_x86_64.whl").write_text("no zip")
    assert cubins.main([str(tmp_path)]) == 1
    assert "manylinux_2_28_x86_64.whl has no SBOM that lists cubins" in capsys.readouterr().err
