"""The wheel under test: the zip file, its unpacked tree and everything read from it once."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from functools import cached_property
from pathlib import Path

from elftools.common.exceptions import ELFError

from wheelcheck.elf import Library, is_elf, read_library
from wheelcheck.failure import Failure
from wheelcheck.fatbin import DeviceCode, KernelId, read_device_code, read_manifest

MANIFEST = "cutwheel/manifest.json"


@dataclass(frozen=True)
class Wheel:
    path: Path
    root: Path  # the unpacked tree
    scratch: Path  # for extracted cubins

    @cached_property
    def files(self) -> list[str]:
        """Every file of the archive, in its order, duplicates included."""
        with zipfile.ZipFile(self.path) as archive:
            return [name for name in archive.namelist() if not name.endswith("/")]

    @cached_property
    def dist_info(self) -> str:
        folders = {name.split("/", 1)[0] for name in self.files if ".dist-info/" in name}
        if len(folders) != 1:
            raise Failure(f"expected one *.dist-info folder, found {sorted(folders) or 'none'}")
        return folders.pop()

    @cached_property
    def metadata(self) -> Message:
        path = self.root / self.dist_info / "METADATA"
        if not path.is_file():
            raise Failure(f"{self.dist_info}/METADATA is missing: pack it with `wheel pack`")
        return Parser().parsestr(path.read_text("utf-8"), headersonly=True)

    @cached_property
    def libraries(self) -> list[Library]:
        paths = (self.root / name for name in sorted(set(self.files)))
        try:
            found = [read_library(path, self.root) for path in paths if is_elf(path)]
        except ELFError as error:
            raise Failure(f"a shared library is damaged ({error}): build it again") from error
        if not found:
            raise Failure("the wheel holds no shared library: build it with the CUDA targets")
        return found

    @cached_property
    def manifest(self) -> dict[KernelId, bool]:
        """Every cubin, (architecture, kernel) -> whether PTX of that architecture is shipped."""
        try:
            kernels = read_manifest(self.root / MANIFEST)
        except FileNotFoundError:
            raise Failure(f"{MANIFEST} is missing: install kernelgen's manifest.json") from None
        except (ValueError, KeyError, TypeError) as error:
            raise Failure(f"{MANIFEST} is not a kernel manifest ({error!r})") from error
        if not kernels:
            raise Failure(f"{MANIFEST} lists no kernels")
        return kernels

    @cached_property
    def device_code(self) -> DeviceCode:
        code = DeviceCode()
        for index, library in enumerate(self.libraries):
            folder = self.scratch / str(index)
            folder.mkdir()
            try:
                code += read_device_code(self.root / library.name, folder)
            except (ELFError, OSError, RuntimeError) as error:
                raise Failure(str(error)) from error
            finally:
                shutil.rmtree(folder)
        return code


@contextmanager
def unpacked(path: Path) -> Iterator[Wheel]:
    with tempfile.TemporaryDirectory(prefix="verify_") as folder:
        root, scratch = Path(folder, "wheel"), Path(folder, "device_code")
        scratch.mkdir()
        with zipfile.ZipFile(path) as archive:
            archive.extractall(root)
        yield Wheel(path, root, scratch)
