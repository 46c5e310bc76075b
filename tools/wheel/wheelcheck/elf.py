"""A shared library as the dynamic loader sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

ELF_MAGIC = b"\x7fELF"


@dataclass(frozen=True)
class Library:
    name: str  # path inside the wheel
    needed: tuple[str, ...]
    rpaths: tuple[str, ...]  # DT_RPATH and DT_RUNPATH
    defined: tuple[str, ...]  # dynamic symbols that others can bind to
    undefined: tuple[str, ...]


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(ELF_MAGIC)) == ELF_MAGIC


def read_library(path: Path, root: Path) -> Library:
    with path.open("rb") as file:
        elf = ELFFile(file)
        dynamic, names = (elf.get_section_by_name(name) for name in (".dynamic", ".dynsym"))
        tags = list(dynamic.iter_tags()) if isinstance(dynamic, DynamicSection) else []
        symbols = list(names.iter_symbols()) if isinstance(names, SymbolTableSection) else []

    def texts(kind: str) -> tuple[str, ...]:
        return tuple(getattr(tag, kind.lower()) for tag in tags if tag.entry.d_tag == f"DT_{kind}")

    defined: list[str] = []
    undefined: list[str] = []
    for symbol in symbols:
        if symbol.name and symbol["st_info"]["bind"] != "STB_LOCAL":
            (undefined if symbol["st_shndx"] == "SHN_UNDEF" else defined).append(symbol.name)
    name = path.relative_to(root).as_posix()
    rpaths = texts("RPATH") + texts("RUNPATH")
    return Library(name, texts("NEEDED"), rpaths, tuple(defined), tuple(undefined))
