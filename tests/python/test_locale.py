"""Programs whose global C++ locale writes numbers in another way than C does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

# The locale of a country, without asking whether the machine has one installed: 1.234.567,5
SOURCE = """
#include <locale>
struct Punctuation : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\\3"; }
};
extern "C" void install() {
  std::locale::global(std::locale(std::locale::classic(), new Punctuation));
}
"""

ASK = """
import ctypes, json, sys, torch, cutwheel
ctypes.CDLL(sys.argv[1]).install()
gpu = 8, 0, 108, 163 << 10, 1555.5, 1.41
request = "gemm bf16 bf16 bf16 tn none - 0 none 1 4096 4096 4096 1 none 0 none 1 1 1 none -"
text = torch.ops.cutwheel._explain_for_gpu(*gpu, request)
plan = json.loads(text)["plans"][0]
plan_line = f"plan {plan['row']} along_m 1 1 1234.5"
torch.ops.cutwheel._load_tuning(
    f"table t\\ngpu 8 0 108 1555.5 described\\nentry {request}\\n{plan_line}\\n"
)
tuned = json.loads(torch.ops.cutwheel._explain_for_gpu(*gpu, request))
try:
    torch.ops.cutwheel._load_tuning("table t\\ngpu 8 0 108 x described\\n")
except RuntimeError as error:
    refusal = str(error)
print(json.dumps([text, tuned["choice"], tuned["plans"][0]["predicted_us"], refusal]))
"""


def test_numbers_do_not_follow_the_global_locale(cutwheel: ModuleType, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ for a locale")
    assert cutwheel.__file__ is not None
    source, library = tmp_path / "locale.cpp", tmp_path / "locale.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    environment = {**os.environ, "PYTHONPATH": str(Path(cutwheel.__file__).parents[1])}
    command = [sys.executable, "-c", ASK, str(library)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text, choice, microseconds, refusal = json.loads(done.stdout)
    assert json.loads(text)["request"]["m"] == 4096
    assert (choice, microseconds) == ("tuned (exact)", 1234.5)
    assert "bandwidth is no number of at least 0" in refusal
