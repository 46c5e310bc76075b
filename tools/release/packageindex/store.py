"""The index of one variant as a folder: publish, yank, verify.

<variant>/<pages>, <variant>/<project>/<pages, wheels and their metadata>
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packageindex.pages import JSON_PAGE, in_order, project_pages, read_pages, root_pages
from packageindex.wheels import (
    File,
    Refusal,
    Wheel,
    digest,
    project_of,
    read_wheel,
    version_of,
)

# GitHub Pages runs Jekyll without it, which leaves out files and may change others.
NO_JEKYLL = ".nojekyll"
NOT_IN_THE_WHEEL = ("yanked", "uploaded", "provenance_sha256", "provenance_url")


def write(path: Path, data: bytes) -> None:
    """Atomic. A file that has these bytes already is left alone."""
    if path.exists() and path.read_bytes() == data:
        return
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refusal(f"{folder} is being changed by another process: try later") from None
        yield
    finally:
        os.close(descriptor)


def projects_in(folder: Path) -> list[str]:
    return sorted({page.parent.name for page in folder.glob("*/index.*")})


def damage(folder: Path, listed: Mapping[str, File]) -> Iterator[str]:
    """Faults of the files that a project page lists."""
    for file in in_order(listed.values()):
        for name, sha256 in file.beside.items():
            path = folder / name
            if not path.is_file():
                yield f"{path} is missing"
            elif (found := digest(path.read_bytes())) != sha256:
                yield f"{path} has sha256 {found}, but was published with {sha256}"


def read_project(folder: Path) -> dict[str, File]:
    listed = read_pages(folder)
    if wrong := list(damage(folder, listed)):
        raise Refusal("\n".join(["the index is damaged, restore it from a backup:", *wrong]))
    return listed


def conflict(path: Path, known: str, new: str, advice: str) -> Refusal:
    return Refusal(f"{path} has sha256\n  {known}, the new file has\n  {new}: {advice}")


def add(folder: Path, listed: dict[str, File], wheel: Wheel) -> None:
    """Lists the wheel, too, unless its name is taken by another file."""
    path, new = folder / wheel.file.name, wheel.file.sha256
    if known := listed.get(path.name):
        if known.sha256 != new:
            advice = "published files never change, so release a new version"
            raise conflict(path, known.sha256, new, advice)
        if known.provenance_sha256 is None and wheel.provenance is not None:
            listed[path.name] = replace(
                known,
                provenance_sha256=wheel.file.provenance_sha256,
                provenance_url=wheel.file.provenance_url,
            )
        return
    if path.exists() and (found := digest(path.read_bytes())) != new:
        advice = "no page lists the first, remove it if it is left of an interrupted publication"
        raise conflict(path, found, new, advice)
    listed[path.name] = wheel.file


def write_project(folder: Path, listed: Mapping[str, File], wheels: Iterable[Wheel]) -> None:
    """Each page after what it links to, so that at any moment every link holds."""
    folder.mkdir(exist_ok=True)
    write(folder.parents[1] / NO_JEKYLL, b"")
    for wheel in wheels:
        write(folder / wheel.file.name, wheel.data)
        write(folder / wheel.file.metadata_name, wheel.metadata)
        # The first one stays: a second signature of the same file says the same with another time.
        of_page = listed[wheel.file.name].provenance_sha256
        if wheel.provenance is not None and of_page == wheel.file.provenance_sha256:
            write(folder / wheel.file.provenance_name, wheel.provenance)
    for name, page in project_pages(folder.name, listed).items():
        write(folder / name, page)
    for name, page in root_pages(projects_in(folder.parent)).items():
        write(folder.parent / name, page)


def publish(folder: Path, wheels: Sequence[Wheel]) -> dict[str, bool]:
    """Returns for each file name whether it is new."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        projects = {project_of(wheel.file.name): dict[str, File]() for wheel in wheels}
        new: dict[str, bool] = {}
        for project, listed in projects.items():
            listed.update(read_project(folder / project))
        for wheel in wheels:
            project = project_of(wheel.file.name)
            new.setdefault(wheel.file.name, wheel.file.name not in projects[project])
            add(folder / project, projects[project], wheel)
        for project, listed in projects.items():
            own = [wheel for wheel in wheels if project_of(wheel.file.name) == project]
            write_project(folder / project, listed, own)
    return new


def yank(folder: Path, names: Sequence[str], reason: str | None) -> None:
    """Yanks published files, or takes that back if there is no reason."""
    projects = {project_of(name): dict[str, File]() for name in names}
    if not folder.is_dir():
        raise Refusal(f"{folder} is not there: nothing is published in it")
    with locked(folder):
        for project, listed in projects.items():
            listed.update(read_project(folder / project))
        for name in names:
            listed = projects[project_of(name)]
            if name not in listed:
                raise Refusal(f"{name} is not published in {folder}")
            listed[name] = replace(listed[name], yanked=reason)
        for project, listed in projects.items():
            write_project(folder / project, listed, [])


def wrong_pages(folder: Path, pages: Mapping[str, bytes]) -> Iterator[str]:
    for name, content in pages.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            yield f"{path} is not up to date: publish any of the wheels again"


def wrong_project(folder: Path) -> Iterator[str]:
    try:
        listed = read_pages(folder)
    except Refusal as error:
        yield str(error)
        return
    wrong = list(damage(folder, listed))
    yield from wrong
    if not wrong:
        for file in in_order(listed.values()):
            try:
                found = read_wheel(folder / file.name, allow_any_tag=True).file
            except Refusal as error:
                yield str(error)
                continue
            kept = {name: getattr(file, name) for name in NOT_IN_THE_WHEEL}
            if replace(found, **kept) != file:
                yield f"{folder / JSON_PAGE} does not say of {file.name} what that file says"
    yield from wrong_pages(folder, project_pages(folder.name, listed))


def verify(folder: Path) -> list[str]:
    projects = projects_in(folder)
    wrong = [line for project in projects for line in wrong_project(folder / project)]
    wrong += wrong_pages(folder, root_pages(projects))
    return [*wrong, *wrong_pages(folder.parent, {NO_JEKYLL: b""})]


def names_of(folder: Path, version: str) -> list[str]:
    """Every published file of a version."""
    projects = projects_in(folder)
    listed = [file for project in projects for file in read_pages(folder / project).values()]
    names = [file.name for file in in_order(listed) if version_of(file.name) == version]
    if not names:
        raise Refusal(f"nothing of version {version} is published in {folder}")
    return names
