"""Packages of Debian or Ubuntu that a check needs: installed where nobody minds, else named.

    python tools/wheel/debian_packages.py COMMAND ...

A package is installed as root, and on a machine of CI. COMMAND is the name of a program, which is
that of its package, too; nothing happens if it is there. The exit status is 1 if one is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence


class MissingPackagesError(Exception):
    """Packages that have to be installed by hand."""


def install(packages: Sequence[str]) -> None:
    """Raises MissingPackagesError where they are not installed; CalledProcessError if apt fails."""
    if not packages:
        return
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") is None or (as_root and not os.environ.get("CI")):
        raise MissingPackagesError(
            f"{', '.join(packages)} of Debian or Ubuntu is needed: "
            f"apt-get install --no-install-recommends {' '.join(packages)}"
        )
    apt = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "install", "--no-install-recommends", *packages], check=True)


def main(commands: Sequence[str]) -> int:
    try:
        install([command for command in commands if shutil.which(command) is None])
    except MissingPackagesError as error:
        print(f"debian_packages.py: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"debian_packages.py: apt-get ends with status {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
