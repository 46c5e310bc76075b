# Thin lines over standard tools. `make wheel` and `make test` need python3 >= 3.11, g++ and make; the rest is set up in .venv.
#   make wheel KERNELS='gemm_sm80_*' ARCHS='80;89'    a narrow build
#   CUDACXX=/path/to/nvcc make wheel                  a certain compiler
#   CUTWHEEL_CUDA=pypi make wheel                     the pinned compiler from PyPI, whatever the machine has
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
KERNELS ?=
ALL_ARCHS := 80;89;90a
ARCHS ?= $(ALL_ARCHS)
CUTWHEEL_CUDA ?= auto
BENCH_ARGS ?=
PYTEST_ARGS ?=
MATRIX_ARGS ?=

VENV := .venv
INSTALL := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export CUTWHEEL_CUDA
# One time stamp for every file in an archive: the same commit gives the same bytes.
export SOURCE_DATE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),315532800)

SOURCES := $(shell find CMakeLists.txt pyproject.toml README.md LICENSE THIRD_PARTY_NOTICES.md licenses \
             cmake cuda python tools/build_backend.py -type f ! -name '*.py[co]')
BUILD := python -m build --no-isolation --skip-dependency-check

.PHONY: help env wheel test schemas torch-matrix lint bench sdist clean distclean FORCE
help:
	@sed -n 's/^\([a-z-]*\): .*## /make \1\t/p' Makefile

# --- environment
$(VENV)/.base: requirements/build.txt requirements/cutlass.txt requirements/torch.txt requirements/test.txt requirements/bench.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cutwheel: python3 >= 3.11 is needed to build; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements/build.txt -r requirements/test.txt -r requirements/bench.txt
	$(INSTALL) -r requirements/torch.txt
	$(INSTALL) --no-deps -r requirements/cutlass.txt
	touch $@

# The compiler from PyPI, if the machine has none that is usable.
$(VENV)/.cuda-$(CUTWHEEL_CUDA): $(VENV)/.base requirements/cuda.txt
	pins=$$(python cmake/cuda_toolchain.py requirements); [ -z "$$pins" ] || $(INSTALL) $$pins
	touch $@

$(VENV)/.lint: requirements/lint.txt $(VENV)/.base
	$(INSTALL) -r $<
	touch $@

env: $(VENV)/.cuda-$(CUTWHEEL_CUDA)   ## set up .venv

# --- build
build/options: FORCE
	@mkdir -p build
	@cmp -s $@ <<<'$(KERNELS) $(ARCHS) $(CUTWHEEL_CUDA) $(CUDACXX)' || cat >$@ <<<'$(KERNELS) $(ARCHS) $(CUTWHEEL_CUDA) $(CUDACXX)'

build/.wheel: $(VENV)/.cuda-$(CUTWHEEL_CUDA) build/options $(SOURCES)
	rm -rf build/dist
	$(BUILD) --wheel --outdir build/dist -Cbuild-dir=build/$(CUTWHEEL_CUDA) \
	  '-Ccmake.define.CUTWHEEL_KERNELS=$(KERNELS)' '-Ccmake.define.CUTWHEEL_ARCHS=$(ARCHS)'
	touch $@

# torch brings libtorch and libc10; nothing is grafted, and auditwheel finds out the tag.
build/.repaired: build/.wheel
	rm -rf wheelhouse
	auditwheel repair --exclude 'libtorch*.so' --exclude libc10.so --wheel-dir wheelhouse build/dist/*.whl
	touch $@

$(VENV)/.installed: build/.repaired
	$(INSTALL) --no-deps --force-reinstall wheelhouse/*.whl
	touch $@

wheel: build/.repaired   ## build, repair and verify the wheel of all kernels: wheelhouse/
	python tools/verify_wheel.py wheelhouse/*.whl

sdist: $(VENV)/.base   ## source distribution: dist/
	rm -rf dist
	$(BUILD) --sdist --outdir dist

# --- checks
test: $(VENV)/.installed   ## every test that needs no GPU, on the built wheel
	CUTWHEEL_NARROW='$(KERNELS)$(filter-out $(ALL_ARCHS),$(ARCHS))' CUTWHEEL_WHEEL=$$(echo "$(CURDIR)"/wheelhouse/*.whl) python -m pytest -m 'not gpu' $(PYTEST_ARGS)

schemas: $(VENV)/.installed   ## rewrite tests/schemas.lock, the public interface, from the built wheel
	python tools/schema_lock.py --write

torch-matrix: build/.repaired   ## the wheel with every torch from 2.10 (20 to 30 GB in build/): MATRIX_ARGS='--help'
	python tools/torch_matrix.py wheelhouse/*.whl $(MATRIX_ARGS)

lint: $(VENV)/.lint   ## all checks of .pre-commit-config.yaml
	pre-commit run --all-files --show-diff-on-failure

bench: $(VENV)/.installed   ## benchmarks (needs a GPU): BENCH_ARGS='--help'
	python -m benchmarks all --out benchmarks/results $(BENCH_ARGS)

clean:   ## remove build output
	rm -rf build dist wheelhouse

distclean: clean   ## remove build output and .venv
	rm -rf $(VENV)
