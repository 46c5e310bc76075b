"""tools/release/tag.py: with a project, an answer of PyPI and a gh that are all made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import releasing
import tag

VERSION, TAG = "1.2.0", "v1.2.0"
GH = """#!{python}
import hashlib, json, sys
from pathlib import Path
state = Path({state!r})
releases = json.loads(state.read_text())
verb, arguments = sys.argv[2], sys.argv[3:]
with Path({log!r}).open("a") as log:
    log.write(verb + "\\n")
if verb == {broken!r}:
    sys.exit("HTTP 502")
if verb == "list":
    print(json.dumps([{{"tagName": tag}} for tag in releases]))
elif verb == "view":
    print(json.dumps(releases[arguments[0]]))
elif verb == "create":
    assert "--draft" in arguments and "--verify-tag" in arguments
    releases[arguments[0]] = {{"isDraft": True, "assets": []}}
elif verb == "upload":
    assert releases[arguments[0]]["isDraft"]
    files = [Path(word) for word in arguments[1:] if not word.startswith("--")]
    releases[arguments[0]]["assets"] = [
        {{"name": f.name, "digest": "sha256:" + hashlib.sha256(f.read_bytes()).hexdigest()}}
        for f in files
    ]
elif verb == "edit":
    releases[arguments[0]]["isDraft"] = False
state.write_text(json.dumps(releases))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{VERSION}"\n')
    text = f"## [Unreleased]\n\n## [{VERSION}] - 2026-11-21\n\n- New.\n\n## [1.1.0] - x\n"
    (tmp_path / "CHANGELOG.md").write_text(text)
    (tmp_path / "CITATION.cff").write_text(f"cff-version: 1.2.0\nversion: {VERSION}\n")
    program = tmp_path / tag.PROGRAMS / f"{VERSION}.pt2"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"program")
    lock = {"version": VERSION, "released": True}
    (tmp_path / "tests" / "schemas.lock").write_text(json.dumps(lock))
    return tmp_path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"cutwheel-{VERSION}{end}" for end in (".tar.gz", "-py3-none-any.whl")]
    for path in found:
        path.write_bytes(path.name.encode())
    return found


class Hub:
    """GitHub, as `gh` shows it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.log = folder, folder / "state.json", folder / "log"
        folder.mkdir()
        self.state.write_text("{}")
        self.answer()

    def answer(self, broken: str = "") -> None:
        gh = self.folder / "gh"
        names = {"state": str(self.state), "log": str(self.log), "broken": broken}
        gh.write_text(GH.format(python=sys.executable, **names))
        gh.chmod(0o755)
        self.log.write_text("")

    @property
    def release(self) -> dict[str, object]:
        return json.loads(self.state.read_text())[TAG]

    @property
    def verbs(self) -> list[str]:
        return self.log.read_text().split()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "hub")
    monkeypatch.setenv("PATH", str(made.folder), prepend=":")
    return made


def github(root: Path, files: list[Path]) -> int:
    return tag.main(["github", TAG, *map(str, files), "--root", str(root)])


def pypi(root: Path, files: list[Path]) -> int:
    there = ["--pypi", (root / "pypi").as_uri(), "--pause", "0"]
    return tag.main(["pypi", TAG, *map(str, files), *there])


def upload(root: Path, files: list[Path], **other: str) -> None:
    page = root / "pypi" / "cutwheel" / VERSION / "json"
    page.parent.mkdir(parents=True)
    hashes = releasing.digests(files) | other
    urls = [
        {
            "filename": name,
            "digests": {"sha256": sha256},
            "url": (files[0].parent / name).as_uri(),
        }
        for name, sha256 in hashes.items()
    ]
    page.write_text(json.dumps({"urls": urls}))


def test_a_tag_that_fits_passes(root):
    assert tag.main(["check", TAG, "--root", str(root)]) == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("pyproject.toml", VERSION, "1.3.0", "the tag is v1.2.0, pyproject.toml has 1.3.0"),
        ("CHANGELOG.md", f"[{VERSION}] - ", f"[{VERSION}] ", "CHANGELOG.md has no entries"),
        ("CHANGELOG.md", "- New.\n", "", "CHANGELOG.md has no entries"),
        ("CITATION.cff", "\nversion: 1.2.0", "\nversion: 1.1.0", "CITATION.cff is of another"),
        ("tests/schemas.lock", "true", "false", "schema_lock.py --release"),
        ("tests/schemas.lock", VERSION, "1.1.0", "schema_lock.py --release"),
    ],
)
def test_what_does_not_fit_the_tag_is_named(root, capsys, file, old, new, message):
    path = root / file
    path.write_text(path.read_text().replace(old, new))
    assert tag.main(["check", TAG, "--root", str(root)]) == 1
    assert message in capsys.readouterr().err


def test_the_notes_are_one_section(root):
    assert tag.notes(VERSION, root) == "- New.\n"


def test_pypi_with_the_same_files_passes(root, files):
    upload(root, files)
    assert pypi(root, files) == 0


def test_pypi_with_another_file_fails(root, files, capsys):
    upload(root, files, **{files[0].name: "0" * 64})
    assert pypi(root, files) == 1
    assert f"{files[0].name} is another file" in capsys.readouterr().err


def test_pypi_that_serves_another_file_than_it_says_fails(root, files, capsys):
    upload(root, files)
    page = root / "pypi" / "cutwheel" / VERSION / "json"
    swapped = root / "swapped"
    swapped.write_bytes(b"swapped")
    page.write_text(page.read_text().replace(files[0].as_uri(), swapped.as_uri()))
    assert pypi(root, files) == 1
    message = capsys.readouterr().err
    assert "what PyPI serves" in message
    assert f"{files[0].name} is another file" in message


def test_a_tag_without_a_program_for_later_versions_fails(root, capsys):
    (root / tag.PROGRAMS / f"{VERSION}.pt2").unlink()
    assert tag.main(["check", TAG, "--root", str(root)]) == 1
    assert "make program" in capsys.readouterr().err


@pytest.mark.parametrize(
    "version", ["1.2", "1.2.0+cu130", "1.2.0.dev1", "1.2.0.post1", "1.2.0-rc1"]
)
def test_versions_have_one_form(root, capsys, version):
    project = root / "pyproject.toml"
    project.write_text(project.read_text().replace(VERSION, version))
    assert tag.main(["check", f"v{version}", "--root", str(root)]) == 1
    assert f"{version} is no version of a release" in capsys.readouterr().err


def test_pypi_without_the_release_fails(root, files, capsys):
    assert pypi(root, files) == 1
    assert f"{files[0].name} is not there" in capsys.readouterr().err


def test_a_github_release_is_filled_before_it_is_published(root, files, hub):
    assert github(root, files) == 0
    assert hub.verbs == ["list", "create", "upload", "list", "view", "edit"]
    assert hub.release["isDraft"] is False
    assert len(hub.release["assets"]) == len(files)


def test_a_published_github_release_is_never_changed(root, files, hub, capsys):
    assert github(root, files) == 0
    hub.answer()
    assert github(root, files) == 0
    files[0].write_bytes(b"another")
    assert github(root, files) == 1
    assert f"{files[0].name} is another file" in capsys.readouterr().err
    assert set(hub.verbs) == {"list", "view"}


@pytest.mark.parametrize("verb", ["list", "create", "upload", "view", "edit"])
def test_a_step_that_broke_is_run_again(root, files, hub, verb):
    hub.answer(broken=verb)
    assert github(root, files) == 1
    hub.answer()
    assert github(root, files) == 0
    assert hub.release["isDraft"] is False
    assert len(hub.release["assets"]) == len(files)


def test_the_index_is_pushed_once(tmp_path):
    remote, checkout = tmp_path / "remote", tmp_path / "whl"

    def run(*command: object) -> str:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "MAKE"))}
        words = [*map(str, command)]
        done = subprocess.run(words, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("git", "init", "-q", "--bare", "-b", "index", remote)
    run("git", "clone", "-q", remote, checkout)
    for content, commits in (("a", 1), ("a", 1), ("b", 2)):
        (checkout / "index.html").write_text(content)
        run("make", "-C", tag.ROOT, "push-index", f"INDEX={checkout}")
        assert int(run("git", "-C", remote, "rev-list", "--count", "index")) == commits


def test_files_are_named_where_they_are_needed():
    for arguments in (["check", TAG, "x.whl"], ["pypi", TAG]):
        with pytest.raises(SystemExit):
            tag.main(arguments)


def test_exported_programs_name_no_file_of_a_machine() -> None:
    programs = [*(releasing.ROOT / "examples" / "downstream" / "programs").glob("*.pt2")]
    assert programs
    for program in programs:
        with zipfile.ZipFile(program) as archive:
            for name in archive.namelist():
                assert b"stack_trace" not in archive.read(name), f"{program}: {name}"
