"""cuda/torch/explain/choice_log.cpp on the host: the listener hears each choice once, with no lock
held."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

RUNTIME = """
#pragma once
typedef struct CUstream_st* cudaStream_t;
typedef int cudaError_t;
"""
# What kernelgen writes, of one epilogue and one family.
EPILOGUES = """
#pragma once
#include "epilogue/info.h"
namespace cutwheel {
enum class Epilogue : int { plain };
constexpr EpilogueInfo kEpilogues[1] = {};
}
"""
FAMILIES = """
#pragma once
namespace cutwheel { enum class Family : int { splitk_reduce, elementwise, %s }; }
"""
SOURCE = r"""
#include <cstdio>
#include <string>
#include "torch/explain/choice_log.h"
#include "core/error.h"
namespace cutwheel {
std::string choice_json(char const* op, GemmRequest const& request, GemmPlan const& plan) {
  return concat("{\"op\": \"", op, "\", \"m\": ", request.m, ", \"splits\": ", plan.splits, "}");
}
int rankings = 0;
std::vector<GemmPlan> rank_plans(GemmRequest const&, DeviceInfo const&, std::vector<Rejection>*,
                                 PlanSource* source) {
  ++rankings;
  source->basis = Basis::cost_model;
  return {};
}
std::string text_of(PlanSource const& source) {
  return source.basis == Basis::cost_model ? "cost model" : "?";
}
}
using namespace cutwheel;

int heard = 0;
GemmRequest g_request;
GemmPlan g_plan;
DeviceInfo g_device;

void hear(char const* text) {
  std::printf("%s\n", text);
  // A choice inside of a listener: a lock that was held would be waited for for ever.
  if (++heard == 1) tell_choice("inner", g_request, g_plan, g_device);
}

int main() {
  std::printf("[%d]\n", choices_are_told());
  set_choice_listener(reinterpret_cast<std::intptr_t>(&hear));
  std::printf("[%d]\n", choices_are_told());
  KernelDescriptor kernel{};
  kernel.name = "quantize_rowwise";
  for (int round = 0; round < 3; ++round) {
    for (int m : {16, 32}) {
      g_request.m = m;
      tell_choice("mm", g_request, g_plan, g_device);
      tell_kernel("quantize", kernel, m, 1, 64);
    }
  }
  std::printf("[%d]\n", rankings);
  set_choice_listener(reinterpret_cast<std::intptr_t>(&hear));  // everything anew
  tell_choice("mm", g_request, g_plan, g_device);
  set_choice_listener(0);
  g_request.m = 64;
  tell_choice("mm", g_request, g_plan, g_device);
  std::printf("[%d]\n", choices_are_told());
}
"""


@pytest.fixture(scope="module")
def lines(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("choices")
    cuda = repository / "cuda"
    (folder / "torch" / "explain").mkdir(parents=True)
    (folder / "cuda_runtime_api.h").write_text(RUNTIME)
    (folder / "epilogues.h").write_text(EPILOGUES)
    (folder / "families.h").write_text(families(cuda))
    # That one needs torch; only the declaration is wanted here.
    (folder / "torch" / "explain" / "introspection.h").write_text(
        '#pragma once\n#include <string>\n#include "dispatch/select.h"\nnamespace cutwheel {\n'
        "std::string choice_json(char const*, GemmRequest const&, GemmPlan const&);\n}\n"
    )
    shutil.copy(cuda / "torch" / "explain" / "choice_log.cpp", folder)
    (folder / "main.cpp").write_text(SOURCE)
    command = [
        *(compiler, "-std=c++17", "-O1", "-fvisibility=hidden", f"-I{folder}", f"-I{cuda}"),
        *("main.cpp", "choice_log.cpp", "-o", "program"),
    ]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [folder / "program"], capture_output=True, text=True, check=True, timeout=60
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def families(cuda: Path) -> str:
    """With the names that kernel_descriptor.h has."""
    text = (cuda / "dispatch" / "kernel_descriptor.h").read_text(encoding="utf-8")
    text += (cuda / "dispatch" / "select.h").read_text(encoding="utf-8")
    names = sorted({*re.findall(r"Family::(\w+)", text)} - {"splitk_reduce", "elementwise"})
    return FAMILIES % (", ".join(names) or "other")


def test_each_choice_is_heard_once(lines: list[Any]) -> None:
    def choice(op: str, m: int) -> dict[str, Any]:
        return {"op": op, "m": m, "splits": 1, "choice": "cost model"}

    def kernel(m: int) -> dict[str, Any]:
        request = {"m": m, "n": 1, "k": 64}
        return {"op": "quantize", "request": request, "plan": {"row": "quantize_rowwise"}}

    first = [choice("mm", 16), choice("inner", 16), kernel(16), choice("mm", 32), kernel(32)]
    assert lines == [[0], [1], *first, [3], choice("mm", 32), [0]]
