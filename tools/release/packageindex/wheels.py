"""One wheel: the bytes, and what an index says of them."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from packaging.errors import ExceptionGroup
from packaging.metadata import Metadata
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

READ_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


class Refusal(Exception):  # noqa: N818  (a verdict on what was asked for)
    """Tells the person why the index was not changed."""


@dataclass(frozen=True)
class File:
    """A wheel as its project page lists it."""

    name: str
    size: int
    sha256: str
    metadata_sha256: str
    requires_python: str | None
    yanked: str | None = None  # the reason
    uploaded: str | None = None  # UTC, as PEP 700 writes it
    provenance_sha256: str | None = None
    provenance_url: str | None = None

    @property
    def metadata_name(self) -> str:
        return f"{self.name}.metadata"

    @property
    def provenance_name(self) -> str:
        return f"{self.name}.provenance"

    @property
    def beside(self) -> dict[str, str]:
        """The files of the index that belong to it, with their hashes."""
        found = {self.name: self.sha256, self.metadata_name: self.metadata_sha256}
        if self.provenance_sha256 is not None:
            found[self.provenance_name] = self.provenance_sha256
        return found


@dataclass(frozen=True)
class Wheel:
    file: File
    data: bytes
    metadata: bytes
    provenance: bytes | None = None


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def project_of(name: str) -> str:
    try:
        return parse_wheel_filename(name)[0]
    except InvalidWheelFilename as error:
        raise Refusal(f"{name} is no wheel's file name: {error}") from None


def version_of(name: str) -> str:
    return str(parse_wheel_filename(name)[1])


def read_wheel(path: Path, allow_any_tag: bool = False) -> Wheel:
    project = project_of(path.name)
    _, version, _, tags = parse_wheel_filename(path.name)
    others = {tag.platform for tag in tags if not tag.platform.startswith("manylinux")}
    if others and not allow_any_tag:
        raise Refusal(
            f"{path.name} is tagged {', '.join(sorted(others))}, not manylinux: "
            "publish the repaired wheel, which `make wheel` leaves in wheelhouse/"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror}") from error
    raw = read_metadata(path.name, data)
    try:
        metadata = Metadata.from_email(raw)
    except ExceptionGroup as error:
        reasons = "; ".join(map(str, error.exceptions))
        raise Refusal(f"the METADATA in {path.name} is not valid: {reasons}") from error
    if (canonicalize_name(metadata.name), metadata.version) != (project, version):
        raise Refusal(
            f"{path.name} says {project} {version}, but the METADATA in it says "
            f"{metadata.name} {metadata.version}: build the wheel again, do not rename it"
        )
    requires = metadata.requires_python
    requires_python = None if requires is None else str(requires)
    return Wheel(File(path.name, len(data), digest(data), digest(raw), requires_python), data, raw)


def read_metadata(name: str, data: bytes) -> bytes:
    member = "-".join(name.split("-")[:2]) + ".dist-info/METADATA"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if damaged := archive.testzip():
                raise Refusal(f"{name} is damaged ({damaged}): build or download it again")
            return archive.read(member)
    except KeyError:
        raise Refusal(f"{name} is no wheel: it holds no {member}") from None
    except READ_ERRORS as error:
        raise Refusal(f"{name} is no valid zip file: {error}") from error
