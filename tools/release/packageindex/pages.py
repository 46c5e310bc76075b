"""The pages of an index, as HTML (PEP 503) and as JSON (PEP 691, 700 and 740), written and read."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from packaging.utils import parse_wheel_filename

from packageindex.wheels import File, Refusal, project_of

# Names that web servers with content negotiation and mirrors of package indexes use.
# JSON is what is read back, so it is written first: HTML never lists more than JSON does.
JSON_PAGE = "index.v1_json"
HTML_PAGE = "index.html"
API_VERSION = "1.3"  # PEP 740


def in_order(files: Iterable[File]) -> list[File]:
    return sorted(files, key=lambda file: (parse_wheel_filename(file.name)[1], file.name))


def json_bytes(**content: object) -> bytes:
    page = {"meta": {"api-version": API_VERSION}, **content}
    return (json.dumps(page, indent=1, ensure_ascii=False) + "\n").encode()


def html_bytes(title: str, links: Iterable[str]) -> bytes:
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        f'<head><meta charset="utf-8"><meta name="pypi:repository-version" '
        f'content="{API_VERSION}"><title>{title}</title></head>',
        "<body>",
        f"<h1>{title}</h1>",
        *(f"{link}<br>" for link in links),
        "</body>",
        "</html>",
    ]
    return ("\n".join(lines) + "\n").encode()


def json_row(file: File) -> dict[str, object]:
    row: dict[str, object] = {
        "filename": file.name,
        "url": quote(file.name),
        "hashes": {"sha256": file.sha256},
        "size": file.size,
        "core-metadata": {"sha256": file.metadata_sha256},
        "yanked": False if file.yanked is None else file.yanked,
    }
    if file.requires_python is not None:
        row["requires-python"] = file.requires_python
    if file.uploaded is not None:
        row["upload-time"] = file.uploaded
    if file.provenance_url is not None:
        row["provenance"] = file.provenance_url
        # Ours (PEP 691 reserves the underscore): what is read back is compared with it.
        row["_provenance-sha256"] = file.provenance_sha256
    return row


def html_link(file: File) -> str:
    attributes = {
        "href": f"{quote(file.name)}#sha256={file.sha256}",
        "data-requires-python": file.requires_python,
        "data-core-metadata": f"sha256={file.metadata_sha256}",
        "data-provenance": file.provenance_url,
        "data-yanked": file.yanked,
    }
    given = (f'{key}="{html.escape(value)}"' for key, value in attributes.items() if value)
    return f"<a {' '.join(given)}>{file.name}</a>"


def project_pages(project: str, listed: Mapping[str, File]) -> dict[str, bytes]:
    files = in_order(listed.values())
    versions = dict.fromkeys(str(parse_wheel_filename(file.name)[1]) for file in files)
    rows = [json_row(file) for file in files]
    return {
        JSON_PAGE: json_bytes(name=project, versions=list(versions), files=rows),
        HTML_PAGE: html_bytes(f"Links for {project}", map(html_link, files)),
    }


def root_pages(projects: Sequence[str]) -> dict[str, bytes]:
    links = (f'<a href="{project}/">{project}</a>' for project in projects)
    return {
        JSON_PAGE: json_bytes(projects=[{"name": project} for project in projects]),
        HTML_PAGE: html_bytes("Simple index", links),
    }


def file_of_row(row: Mapping[str, Any]) -> File:
    return File(
        name=row["filename"],
        size=row["size"],
        sha256=row["hashes"]["sha256"],
        metadata_sha256=row["core-metadata"]["sha256"],
        requires_python=row.get("requires-python"),
        yanked=None if row["yanked"] is False else row["yanked"],
        uploaded=row.get("upload-time"),
        provenance_sha256=row.get("_provenance-sha256"),
        provenance_url=row.get("provenance"),
    )


def read_pages(folder: Path) -> dict[str, File]:
    """Files that the project's JSON page lists; none for a project that has no page yet."""
    page = folder / JSON_PAGE
    try:
        rows = json.loads(page.read_bytes())["files"] if page.exists() else []
        listed = {row["filename"]: file_of_row(row) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refusal(f"{page} cannot be read ({error!r}): restore it from a backup") from error
    if strays := sorted(name for name in listed if project_of(name) != folder.name):
        raise Refusal(f"{page} lists files of other projects: {', '.join(strays)}")
    linked: set[str] = set()
    if (folder / HTML_PAGE).exists():
        text = (folder / HTML_PAGE).read_text(encoding="utf-8", errors="replace")
        linked = {unquote(link) for link in re.findall(r'<a href="([^"#]+)', text)}
    if lost := sorted(linked - listed.keys()):
        raise Refusal(f"{page} has lost {', '.join(lost)}: restore it from a backup")
    return listed
