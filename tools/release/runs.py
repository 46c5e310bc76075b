#!/usr/bin/env python3
"""Runs of workflows on GitHub.

    python3 tools/release/runs.py green TAG         is the tag a commit of main whose ci.yml passed?
    python3 tools/release/runs.py latest WORKFLOW   the output `run-id`: its last success on main

Exit status: 0 yes, 1 no. Needs gh and the history of main; otherwise the standard library only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from releasing import ROOT, ReleaseError, commit_of, gh, git, repository, write_output

FIELDS = "databaseId,status,conclusion,url"


def list_runs(root: Path, workflow: str, *filters: str) -> list[dict[str, Any]]:
    """Newest first."""
    given = ["--repo", repository(root), "--workflow", workflow, "--branch", "main", *filters]
    found: list[dict[str, Any]] = json.loads(gh("run", "list", *given, "--json", FIELDS))
    return found


def green(tag: str, root: Path) -> None:
    commit = commit_of(tag, root)
    state = git(root, "merge-base", "--is-ancestor", commit, "refs/remotes/origin/main")
    if state.returncode == 1:
        raise ReleaseError(
            f"{tag} is {commit}, which is no commit of main: delete the tag, merge, tag main"
        )
    if state.returncode != 0:
        raise ReleaseError(f"origin/main cannot be read: {state.stderr.strip()}")
    runs = list_runs(root, "ci.yml", "--commit", commit, "--event", "push")
    if not runs:
        raise ReleaseError(f"ci.yml has not run for {commit} on main: push main before the tag")
    newest = runs[0]
    if newest["status"] != "completed":
        raise ReleaseError(f"ci.yml has not finished: wait, then re-run this job; {newest['url']}")
    if newest["conclusion"] != "success":
        raise ReleaseError(
            f"ci.yml ended with {newest['conclusion']}: {newest['url']}. Re-run it after a passing "
            "fault; a defect is mended on main, and another commit is tagged"
        )
    print(f"{tag}: {commit} is on main, and ci.yml passed")


def latest(workflow: str, root: Path) -> None:
    runs = list_runs(root, workflow, "--status", "success", "--limit", "1")
    if not runs:
        raise ReleaseError(f"{workflow} has never succeeded on main")
    write_output("run-id", str(runs[0]["databaseId"]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["green", "latest"])
    parser.add_argument("name", metavar="TAG|WORKFLOW")
    parser.add_argument("--root", type=Path, default=ROOT, help="for tests")
    options = parser.parse_args(argv)
    try:
        (green if options.step == "green" else latest)(options.name, options.root)
    except (ReleaseError, OSError) as error:
        print(f"runs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
