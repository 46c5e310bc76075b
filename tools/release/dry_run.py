#!/usr/bin/env python3
"""A release from the tag to the index, in temporary folders: nothing leaves this machine.

    python tools/release/dry_run.py WHEEL...

Takes the commit that is checked out, prepares it as docs/releasing.md says, tags it, and runs the
commands of release.yml in their order on the given wheels, as if the build had made them. Origin is
a folder; the package index and PyPI are served from here; gh is a stand-in that knows a green main,
provenance for everything, and one release. So this shows nothing of GitHub, PyPI, the build and the
GPU tests. Exit status: 0 every command did what it should, 1 one did not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from releasing import ROOT, ReleaseError, digest, git

IDENTITY = ("-c", "user.name=release", "-c", "user.email=release@localhost")
GH = """#!{python}
import hashlib, json, sys
from pathlib import Path
state = Path(__file__).with_name("releases.json")
releases = json.loads(state.read_text()) if state.exists() else {{}}
area, verb, *words = sys.argv[1:]
if (area, verb) == ("run", "list"):
    run = {{"databaseId": 1, "status": "completed", "conclusion": "success", "url": ""}}
    print(json.dumps([run]))
elif (area, verb) == ("attestation", "verify"):
    assert Path(words[0]).is_file()
elif (area, verb) == ("release", "list"):
    print(json.dumps([{{"tagName": tag}} for tag in releases]))
elif (area, verb) == ("release", "view"):
    print(json.dumps(releases[words[0]]))
elif (area, verb) == ("release", "create"):
    releases[words[0]] = {{"isDraft": True, "assets": []}}
elif (area, verb) == ("release", "upload"):
    releases[words[0]]["assets"] = [
        {{"name": f.name, "digest": "sha256:" + hashlib.sha256(f.read_bytes()).hexdigest()}}
        for f in map(Path, words[1:]) if not f.name.startswith("--")
    ]
elif (area, verb) == ("release", "edit"):
    releases[words[0]]["isDraft"] = False
else:
    sys.exit(f"the stand-in for gh does not know {{area}} {{verb}}")
state.write_text(json.dumps(releases))
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Rehearsal:
    """One release in `folder`."""

    def __init__(self, folder: Path, wheels: Sequence[Path]) -> None:
        self.folder, self.clone, self.dist = folder, folder / "clone", folder / "dist"
        self.assets, self.site = folder / "assets", folder / "site"
        versions = {path.name.split("-")[1] for path in wheels}
        if len(versions) != 1:
            raise ReleaseError(f"the wheels are of several versions: {', '.join(versions)}")
        [self.version] = versions
        self.tag = f"v{self.version}"
        self.dist.mkdir()
        for path in wheels:
            (self.dist / path.name).write_bytes(path.read_bytes())
        gh = folder / "bin" / "gh"
        gh.parent.mkdir()
        gh.write_text(GH.format(python=sys.executable), encoding="utf-8")
        gh.chmod(0o755)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "MAKE"))}
        self.environment = clean | {"PATH": f"{gh.parent}:{clean['PATH']}"}

    def run(self, *command: object, **environment: str) -> str:
        words = [str(word) for word in command]
        print("+", shlex.join(words).replace(str(self.folder), "..."), flush=True)
        done = subprocess.run(
            words,
            cwd=self.clone if self.clone.exists() else self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        for line in (done.stdout + done.stderr).splitlines():
            print("   ", line[:200].replace(str(self.folder), "..."))
        if done.returncode != 0:
            raise ReleaseError(f"{shlex.join(words)} ends with {done.returncode}")
        return done.stdout

    def tool(self, name: str, *words: object, **environment: str) -> str:
        return self.run(sys.executable, f"tools/release/{name}.py", *words, **environment)

    def prepare(self) -> None:
        """The commit, as docs/releasing.md has it, and the tag."""
        origin = self.folder / "origin.git"
        self.run("git", "clone", "-q", "--bare", ROOT, origin)
        head = git(ROOT, "rev-parse", "HEAD").stdout.strip()
        self.run("git", "-C", origin, "update-ref", "refs/heads/main", head)
        self.run("git", "-C", origin, "symbolic-ref", "HEAD", "refs/heads/main")
        self.run("git", "clone", "-q", "-b", "main", origin, self.clone)
        self.edit("pyproject.toml", r'(?m)^version = "[^"]+"', f'version = "{self.version}"')
        self.edit("CITATION.cff", r"(?m)^version: .+$", f"version: {self.version}")
        today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        heading = f"## [Unreleased]\n\n## [{self.version}] - {today}"
        self.edit("CHANGELOG.md", r"(?m)^## \[Unreleased\]", heading)
        # What `schema_lock.py --release` writes; the tool itself needs torch and the package.
        self.edit("tests/schemas.lock", r'"released": false', '"released": true')
        self.run("git", *IDENTITY, "commit", "-qam", f"Release {self.version}")
        self.run("git", "push", "-q", "origin", "main")
        self.run("git", *IDENTITY, "tag", "-a", "-m", self.tag, self.tag)
        self.run("git", "push", "-q", "origin", self.tag)

    def edit(self, name: str, pattern: str, new: str) -> None:
        path = self.clone / name
        text = path.read_text(encoding="utf-8")
        if not re.search(pattern, text):
            raise ReleaseError(f"{name} has nothing that matches {pattern}")
        path.write_text(re.sub(pattern, new, text, count=1), encoding="utf-8")

    def build(self) -> str:
        """The sdist, and the hashes of all files as outputs of the jobs that built them."""
        make_sdist = ("-m", "build", "--no-isolation", "--skip-dependency-check", "--sdist")
        when = git(self.clone, "log", "-1", "--format=%ct").stdout.strip()
        sdist = (sys.executable, *make_sdist, "--outdir", self.dist)
        self.run(*sdist, SOURCE_DATE_EPOCH=when)
        outputs = self.folder / "outputs"
        told: dict[str, str] = {"GITHUB_OUTPUT": str(outputs)}
        self.tool("hashes", "record", "sdist", *self.dist.glob("*.tar.gz"), **told)
        for path in sorted(self.dist.glob("*.whl")):
            platform = "aarch64" if path.stem.endswith("aarch64") else "x86_64"
            self.tool("hashes", "record", f"wheel-{platform}", path, **told)
        own = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        needs = {"all": {"result": "success", "outputs": own}}
        self.tool("hashes", "collect", NEEDS=json.dumps(needs), **told)
        found = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        self.tool("cubins", self.dist)
        wheels = sorted(self.dist.glob("*.whl"))
        self.tool("constraints", *wheels, "--to", self.assets, SOURCE_DATE_EPOCH=when)
        return found["sha256"]

    def publish(self, sha256: str) -> None:
        files = sorted(self.dist.iterdir())
        wheels = [path for path in files if path.suffix == ".whl"]
        program = self.clone / "examples" / "downstream" / "programs" / f"{self.version}.pt2"
        index = self.folder / "whl"
        self.run("git", "init", "-q", "-b", "index", index)
        self.run("git", "-C", index, "remote", "add", "origin", self.folder / "origin.git")
        with serve(self.site) as url:
            self.tool("hashes", "compare", self.dist, SHA256=sha256)
            self.tool("attestation", self.tag, *files)
            self.upload(files, url)
            self.tool("tag", "pypi", self.tag, *files, f"--pypi={url}/pypi", "--pause=0")
            variant = ("--index", index, "--variant", "cu128")
            self.tool("index", *variant, *wheels)
            self.read_back(index, url)
            assets = [*sorted(self.assets.iterdir()), program]
            self.tool("tag", "github", self.tag, *files, *assets)
            self.tool("tag", "fetch", self.tag, self.folder / "again", f"--pypi={url}/pypi")
            self.tool("index", *variant, "--release", self.version, "--yank", "a rehearsal")
            self.read_back(index, url)

    def upload(self, files: Sequence[Path], url: str) -> None:
        """Stands in for the upload to PyPI."""
        page = self.site / "pypi" / "cutwheel" / self.version / "json"
        page.parent.mkdir(parents=True)
        rows = []
        for path in files:
            (self.site / path.name).write_bytes(path.read_bytes())
            address = f"{url}/{path.name}"
            rows.append(
                {"filename": path.name, "digests": {"sha256": digest(path)}, "url": address}
            )
        page.write_text(json.dumps({"urls": rows}), encoding="utf-8")

    def read_back(self, index: Path, url: str) -> None:
        """The push, what Pages makes of it, and whether that is what was pushed."""
        self.tool("index", "--index", index, "--verify")
        self.run("make", "push-index", f"INDEX={index}")
        pages = self.site / "index"
        if not pages.exists():
            self.run("git", "clone", "-q", "-b", "index", self.folder / "origin.git", pages)
        self.run("git", "-C", pages, "pull", "-q")
        limits = ("--attempts", 1)
        self.tool("served", "--index", index, "--url", f"{url}/index", *limits)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", metavar="WHEEL", type=Path, nargs="+")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        try:
            rehearsal = Rehearsal(Path(folder), options.wheels)
            rehearsal.prepare()
            rehearsal.tool("tag", "check", rehearsal.tag)
            rehearsal.tool("runs", "green", rehearsal.tag)
            rehearsal.publish(rehearsal.build())
        except (ReleaseError, OSError) as error:
            print(f"dry run: {error}", file=sys.stderr)
            return 1
    print(f"{rehearsal.tag}: every command did what it should; nothing is published")
    return 0


if __name__ == "__main__":
    sys.exit(main())
