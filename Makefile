# Thin lines over standard tools. `make wheel` and `make test` need python3 >= 3.11, g++ and make; the rest is set up in .venv.
#   make quick                                        few kernels for the GPU that is there: a first result in minutes
#   make wheel KERNELS='gemm_sm80_*' ARCHS='80;89'    a narrow build
#   CUDACXX=/path/to/nvcc make wheel                  a certain compiler
#   CUDA_HOME=/path/to/toolkit make wheel             the compiler of a certain CUDA toolkit
#   CUTWHEEL_CUDA=pypi make wheel                     the pinned compiler from PyPI, whatever the machine has
#   make test WHEEL='dist/*.whl'                      a file that is there already; nothing is built
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
KERNELS ?=
ALL_ARCHS := 80;89;90a
# Empty: CMake takes those of TORCH_CUDA_ARCH_LIST.
ARCHS ?= $(if $(TORCH_CUDA_ARCH_LIST),,$(ALL_ARCHS))
CUTWHEEL_CUDA ?= auto
WHEEL ?=
CUDA ?= 12
INDEX ?= whl
VARIANT ?= cu128
BENCH_ARGS ?=
PYTEST_ARGS ?=
# Each process imports torch: more than a few gain nothing. Files in the order of tests/conftest.py, those with slow tests first.
PYTEST_JOBS ?= -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Not empty: .ci/run or CI has built the sdist in isolation with PyPI's compiler and verified the file, so `test` does not.
PIPELINE ?=
DONE_BEFORE = --deselect tests/wheel/test_toolchain.py::test_the_sdist_builds_in_isolation_with_the_compiler_from_pypi \
              --deselect tests/wheel/test_verify_wheel.py::test_the_built_wheel
MATRIX_ARGS ?=
# Not empty: as release.yml builds, from requirements/build.lock.
RELEASE ?=
# i/n: `make manylinux` builds this part of the kernels into build/shards. SHARDS not empty: it links all that are there.
SHARD ?=
SHARDS ?=
PROVENANCE ?=
INDEX_URL ?= https://cutwheel.github.io/cutwheel
REPRODUCE_ARGS ?=

VENV := .venv
FILE = $(or $(WHEEL),wheelhouse/*.whl)
INSTALL := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export CUTWHEEL_CUDA
# One time stamp for every file in an archive: the same commit gives the same bytes.
export SOURCE_DATE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),315532800)

# With these a job of GitHub signs. Nothing that make runs has to.
unexport ACTIONS_ID_TOKEN_REQUEST_TOKEN ACTIONS_ID_TOKEN_REQUEST_URL ACTIONS_RUNTIME_TOKEN

SOURCES := $(shell find CMakeLists.txt pyproject.toml README.md LICENSE THIRD_PARTY_NOTICES.md licenses \
             cmake cuda python tools/build_backend.py tools/progress.py \
             tools/wheel/sbom.py tools/wheel/driver_floor.py tools/wheel/wheelcheck/fatbin.py -type f ! -name '*.py[co]')
BUILD := python -m build --no-isolation --skip-dependency-check

.PHONY: help env quick wheel aarch64 test test-wheel test-clean test-caches test-gpu schemas torch-matrix lint locks docs bench verify sdist \
        manylinux images reproduce index add-docs verify-index served-index yank push-index constraints program dry-run clean distclean FORCE
help:
	@sed -n 's/^\([a-z0-9-]*\): .*## /make \1\t/p' Makefile

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

# What a release needs besides: no torch and no compiler, since these jobs may write to what is published.
$(VENV)/.release: requirements/release.lock
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --no-deps --require-hashes -r $<
	touch $@

# The site is rendered from sources that nothing imports: no torch and no compiler either.
$(VENV)/docs/.installed: requirements/docs.txt
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip install -qq --disable-pip-version-check -r $<
	touch $@

env: $(VENV)/.cuda-$(CUTWHEEL_CUDA)   ## set up .venv

# --- build
OPTIONS = $(KERNELS) $(ARCHS) $(CUTWHEEL_CUDA) $(CUDACXX) $(CUDA_HOME) $(TORCH_CUDA_ARCH_LIST) $(CUTWHEEL_PRECOMPILED) $(CUTWHEEL_SHARDS)
build/options: FORCE
	@mkdir -p build
	@cmp -s $@ <<<'$(OPTIONS)' || cat >$@ <<<'$(OPTIONS)'

# The stamp is as old as the start: what is edited during a build is in the next one.
build/.wheel: $(VENV)/.cuda-$(CUTWHEEL_CUDA) build/options $(SOURCES)
	@touch $@.started
	rm -rf build/dist
	$(BUILD) --wheel --outdir build/dist -Cbuild-dir=build/$(CUTWHEEL_CUDA) \
	  '-Ccmake.define.CUTWHEEL_KERNELS=$(KERNELS)' '-Ccmake.define.CUTWHEEL_ARCHS=$(ARCHS)'
	@mv $@.started $@

# torch brings libtorch and libc10; nothing is grafted, and auditwheel finds out the tag.
build/.repaired: build/.wheel
	rm -rf wheelhouse
	auditwheel repair --exclude 'libtorch*.so' --exclude libc10.so --wheel-dir wheelhouse build/dist/*.whl
	touch $@

# A given file leaves no stamp behind: the next `make test` without WHEEL installs its own file again.
$(VENV)/.installed: $(if $(WHEEL),$(VENV)/.base FORCE,build/.repaired)
	$(INSTALL) --no-deps --force-reinstall $(FILE)
	$(if $(WHEEL),rm -f,touch) $@

# Not repaired and not verified: for this machine. The stamp goes, since `make test` installs a file of its own.
quick: $(VENV)/.cuda-$(CUTWHEEL_CUDA)   ## build the core set of kernels for the GPU that is there (or ARCHS=), install it, run one
	rm -rf build/quick/dist
	archs=$$(python tools/quick.py archs '$(if $(filter file,$(origin ARCHS)),,$(ARCHS))'); \
	$(BUILD) --wheel --outdir build/quick/dist -Cbuild-dir=build/quick/$(CUTWHEEL_CUDA) \
	  '-Ccmake.define.CUTWHEEL_KERNELS=$(or $(KERNELS),@core)' "-Ccmake.define.CUTWHEEL_ARCHS=$$archs"
	$(INSTALL) --no-deps --force-reinstall build/quick/dist/*.whl
	rm -f $(VENV)/.installed
	cd build/quick && python ../../tools/quick.py run

wheel: build/.repaired   ## build, repair and verify the wheel of all kernels: wheelhouse/
	python tools/wheel/verify.py wheelhouse/*.whl

# Not with the machine's compiler: the pinned one from PyPI, and its runtime for aarch64.
aarch64: $(VENV)/.base   ## cross-build a wheel of few kernels for aarch64 and test it under emulation
	python tools/wheel/aarch64.py $(if $(KERNELS),--kernels '$(KERNELS)') $(if $(filter file,$(origin ARCHS)),,--archs '$(ARCHS)')

verify: $(VENV)/.base   ## verify the file that WHEEL names
	python tools/wheel/verify.py $(FILE)

# --- release
sdist: $(VENV)/.release   ## source distribution: dist/
	rm -rf dist
	$(BUILD) --sdist --outdir dist

# What is released is built with CUDA 12.8: it runs with every driver from 550.54 on and beside torch of CUDA 12 and 13, and the
# PTX of 12.9 and later needs newer drivers than the first that know Blackwell. PyPI has no compiler for CUDA 12, so the images
# bring one: those in which PyTorch builds its own wheels. CUDA=13 takes the pinned compiler from PyPI, as a build from the
# sdist does. The cache of compiled kernels is on the host, which cibuildwheel mounts at /host.
# `make images` writes the digests behind the tags, @sha256:...
IMAGE_12_X86_64 = docker.io/pytorch/manylinux2_28-builder:cuda12.8
IMAGE_12_AARCH64 = docker.io/pytorch/manylinuxaarch64-builder:cuda12.8
NOT_PINNED = $(if $(RELEASE),$(if $(filter 12,$(CUDA)),$(strip $(foreach image,$(IMAGE_12_X86_64) $(IMAGE_12_AARCH64),$(if $(findstring @sha256:,$(image)),,$(image))))))
CIBW_13 :=
CIBW_12 := CIBW_MANYLINUX_X86_64_IMAGE=$(IMAGE_12_X86_64) CIBW_MANYLINUX_AARCH64_IMAGE=$(IMAGE_12_AARCH64) \
           CIBW_ENVIRONMENT='CUTWHEEL_CUDA=auto CUDACXX=/usr/local/cuda/bin/nvcc CCACHE_COMPILERCHECK=content'
# A release is built from what requirements/build.lock has the hashes of. The tests run on another machine, since what they install could change the wheel.
CIBW_RELEASE = CIBW_BEFORE_ALL=true CIBW_TEST_SKIP='*' CCACHE_DISABLE=1 PIP_EXTRA_INDEX_URL= \
               CIBW_BUILD_FRONTEND='build; args: --no-isolation --skip-dependency-check' \
               CIBW_BEFORE_BUILD='pip install --no-deps --require-hashes -r {project}/requirements/build.lock'
# All shards are compiled at one path, since nvcc puts a hash of it into objects: that of the container. A shard holds no library, so
# what cibuildwheel takes for a wheel is left in build/shard.
CIBW_SHARD = CUTWHEEL_SHARDS=/host$(CURDIR)/build/shards \
             $(if $(SHARD),CUTWHEEL_SHARD=$(SHARD) CIBW_REPAIR_WHEEL_COMMAND='cp {wheel} {dest_dir}' CIBW_TEST_SKIP='*')
manylinux: $(VENV)/.release   ## wheel of the sdist in dist/, built in the manylinux image (needs docker): CUDA=12 or 13
	$(if $(filter 12 13,$(CUDA)),,$(error CUDA=$(CUDA): expected 12 or 13))
	$(if $(NOT_PINNED),$(error RELEASE=$(RELEASE): $(NOT_PINNED) has no digest; `make images` looks it up))
	mkdir -p build/ccache build/shards
	CCACHE_DIR=/host$(CURDIR)/build/ccache $(CIBW_$(CUDA)) $(if $(RELEASE),$(CIBW_RELEASE)) $(if $(SHARD)$(SHARDS),$(CIBW_SHARD)) cibuildwheel --platform linux --output-dir $(if $(SHARD),build/shard,dist) dist/*.tar.gz

images:   ## pin the images of the Makefile by the digests of their tags (needs docker)
	python3 tools/release/images.py Makefile

reproduce: $(VENV)/.base $(VENV)/.release   ## two builds of the commit in two directories, one of them in shards: the same bytes? REPRODUCE_ARGS='--help'
	$(CIBW_$(CUDA)) $(if $(RELEASE),$(CIBW_RELEASE)) python tools/wheel/reproduce.py --kernels '$(KERNELS)' $(REPRODUCE_ARGS)

index: $(VENV)/.release   ## add the wheels that WHEEL names to the package index: INDEX=whl VARIANT=cu128
	python tools/release/index.py --index $(INDEX) --variant $(VARIANT) \
	  $(if $(PROVENANCE),--provenance $(PROVENANCE) --url $(INDEX_URL)) $(FILE)
	python tools/release/index.py --index $(INDEX) --verify

# Pages of GitHub leave out files whose name begins with _, unless they are told not to.
add-docs:   ## put the site that `make docs` has rendered beside the package index: INDEX=whl
	rm -rf $(INDEX)/docs
	cp -r build/site $(INDEX)/docs
	touch $(INDEX)/.nojekyll
verify-index: $(VENV)/.release   ## check every page and file of the package index in INDEX
	python tools/release/index.py --index $(INDEX) --verify

served-index:   ## does INDEX_URL serve the bytes of the package index in INDEX?
	python3 tools/release/served.py --index $(INDEX) --url $(INDEX_URL)

# Both words come from people: the shell takes them from the environment, and make does not expand them.
yank: $(VENV)/.release   ## yank VERSION in the package index, for REASON; without one, take it back
	python tools/release/index.py --index $(INDEX) --variant "$$VARIANT" --release "$$VERSION" \
	  $$(if [ -n "$$REASON" ]; then echo --yank; else echo --unyank; fi) $${REASON:+"$$REASON"}

constraints: $(VENV)/.release   ## pins of the release that WHEEL names and of all it needs, with hashes: build/assets/
	rm -rf build/assets
	python tools/release/constraints.py --to build/assets $(FILE)

program: $(VENV)/.installed   ## export the program that later versions have to run: examples/downstream/programs/
	PYTHONPATH=examples/downstream/src python tools/release/program.py

dry-run: $(VENV)/.release   ## the release of the commit with the files that WHEEL names, in temporary folders
	python tools/release/dry_run.py $(FILE)

# The token comes from gh and GH_TOKEN, so no credential is ever in a file. Nothing new is no error: a rerun ends here.
push-index:   ## commit and push the package index in INDEX, a checkout of the branch `index`
	git -C $(INDEX) add --all
	git -C $(INDEX) diff --cached --quiet || git -C $(INDEX) -c user.name=release -c user.email=release@localhost commit -qm 'Publish'
	git -C $(INDEX) -c credential.helper= -c credential.helper='!gh auth git-credential' push origin HEAD:index

# --- checks
# Not empty: the wheel that is built lacks kernels.
NARROW = $(KERNELS)$(if $(ARCHS),$(filter-out $(ALL_ARCHS),$(ARCHS)),$(if $(WHEEL),,$(TORCH_CUDA_ARCH_LIST)))
test: $(VENV)/.installed   ## every test that needs no GPU, on the built wheel
	CUTWHEEL_NARROW='$(NARROW)' CUTWHEEL_WHEEL=$$(realpath $(FILE)) python -m pytest $(PYTEST_JOBS) -m 'not gpu' $(if $(PIPELINE),$(DONE_BEFORE)) $(PYTEST_ARGS)

test-wheel: $(VENV)/.installed   ## the tests of the built file alone
	CUTWHEEL_WHEEL=$$(realpath $(FILE)) python -m pytest -m 'not gpu' tests/wheel --ignore tests/wheel/test_toolchain.py --ignore tests/wheel/test_build_environment.py

test-clean: $(VENV)/.base   ## the file that WHEEL names in a clean environment of the Python that CUTWHEEL_PYTHON names
	CUTWHEEL_WHEEL=$$(realpath $(FILE)) python -m pytest tests/wheel/test_clean_install.py $(PYTEST_ARGS)

# The caches are not in the environment of the builds, which would use them.
$(VENV)/caches/.installed: requirements/caches.txt requirements/ccache.txt
	$(PYTHON) -m venv $(VENV)/caches
	$(VENV)/caches/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r $<
	touch $@

test-caches: $(VENV)/.cuda-$(CUTWHEEL_CUDA) $(VENV)/caches/.installed   ## builds that share a cache of compiled kernels in Redis
	python tools/wheel/debian_packages.py redis-server
	PATH=$(CURDIR)/$(VENV)/caches/bin:$$PATH CUTWHEEL_CACHES=1 $(CURDIR)/$(VENV)/bin/python -m pytest tests/wheel/test_remote_cache.py

# Without a usable GPU the tests would all be skipped, and that would look like success: doctor fails then.
test-gpu: $(VENV)/.installed   ## every test that needs a GPU
	python -m cutwheel doctor
	python -m pytest -m gpu $(PYTEST_ARGS)

schemas: $(VENV)/.installed   ## rewrite tests/schemas.lock, the public interface, from the built wheel
	python tools/compat/schema_lock.py --write

torch-matrix: $(if $(WHEEL),$(VENV)/.base,build/.repaired)   ## the wheel with every torch from 2.10 (20 to 30 GB in build/): MATRIX_ARGS='--help'
	python tools/compat/torch_matrix.py $(FILE) $(MATRIX_ARGS)

lint: $(VENV)/.lint   ## all checks of .pre-commit-config.yaml
	pre-commit run --all-files --show-diff-on-failure

docs: $(VENV)/docs/.installed   ## render the documentation site and check its links: build/site/
	rm -rf build/site
	$(VENV)/docs/bin/python tools/docs/site_pages.py stage build/docs
	$(VENV)/docs/bin/zensical build --clean --strict
	$(VENV)/docs/bin/python tools/docs/site_pages.py check build/site
# Not with the machine's own pip configuration: the hashes are those of PyPI's files.
LOCK = env -u PIP_FIND_LINKS uv pip compile -q --no-config --default-index https://pypi.org/simple --no-header --no-annotate \
       --generate-hashes --universal --python-version 3.11
locks: $(VENV)/.base   ## rewrite requirements/*.lock from the pins
	$(LOCK) requirements/release.txt -o requirements/release.lock
	$(LOCK) --no-deps requirements/{build,isolated,cuda,cutlass,torch}.txt -o requirements/build.lock

bench: $(VENV)/.installed   ## benchmarks (needs a GPU), docs/performance.md and its plots: BENCH_ARGS='--no-compile'
	python -m benchmarks all --drawn $(BENCH_ARGS)

clean:   ## remove build output
	rm -rf build dist wheelhouse

distclean: clean   ## remove build output and .venv
	rm -rf $(VENV)
