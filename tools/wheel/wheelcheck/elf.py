"""What the dynamic loader sees of a shared library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import StringTableSection, SymbolTableSection

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
    needed: list[str] = []
    rpaths: list[str] = []
    defined: list[str] = []
    undefined: list[str] = []
    with path.open("rb") as file:
        elf = ELFFile(file)
        dynamic = elf.get_section_by_name(".dynamic")
        if isinstance(dynamic, DynamicSection):
            strings = elf.get_section(dynamic["sh_link"])
            assert isinstance(strings, StringTableSection)
            for tag in dynamic.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    needed.append(strings.get_string(tag.entry.d_val))
                elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    rpaths.append(strings.get_string(tag.entry.d_val))
        symbols = elf.get_section_by_name(".dynsym")
        if isinstance(symbols, SymbolTableSection):
            for symbol in symbols.iter_symbols():
                if symbol.name and symbol["st_info"]["bind"] != "STB_LOCAL":
                    missing = symbol["st_shndx"] == "SHN_UNDEF"
                    (undefined if missing else defined).append(symbol.name)
    name = path.relative_to(root).as_posix()
    return Library(name, tuple(needed), tuple(rpaths), tuple(defined), tuple(undefined))
