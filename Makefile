# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HARNESS := .venv-harness
ZOO := .venv-zoo
SKIPS := build/skips.txt
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
NATIVE := $(wildcard src/pathsgd/kernels/src/*.cpp src/pathsgd/kernels/src/*.h src/pathsgd/kernels/src/simd/*.h)

# Bytecode is made of the modules that are imported, when they are, the large ones at the end of the set-up; to make it
# of everything that is installed takes five times as long.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: zoo demo test lint types unit fuzz explore reliability harness nightly test-arm wheel test-wheel release docs test-oldest test-newest setup lock clean

setup: $(READY)

$(READY): pyproject.toml lab/pyproject.toml setup.py requirements.lock $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint requirements.lock --editable '.[rivals,docs,dev]' --editable lab
	$(BIN)/python -c 'import pathsgd_lab.run.train, pathsgd_lab.report.page, torch._dynamo'
	touch $@

demo: setup
	$(BIN)/pathsgd demo

# Side by side; each runs to its end, and make names those that failed. The last lines say which tests were skipped.
test: setup
	mkdir -p build && : >$(SKIPS)
	$(MAKE) --no-print-directory --keep-going --jobs=3 lint types unit; status=$$?; cat $(SKIPS); exit $$status

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

# Two worker processes with one thread each: small tensors gain nothing from more.
# Tests of several processes fork, which autograd allows only where no test has registered a device of its own.
unit: setup
	mkdir -p build
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist worksteal --ignore tests/distributed --skips $(SKIPS); status=$$?; \
	$(ONE_THREAD) $(BIN)/python -m pytest tests/distributed --skips $(SKIPS) && exit $$status

# The same tests with 10,000 new cases in all; `make test` tries a few hundred, always the same.
fuzz: setup
	PATHSGD_FUZZ=10000 $(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist worksteal --timeout=3600 \
	  --hypothesis-profile=explore -m '' tests/fuzz

# The properties of all tests with new cases, in rounds, for an hour. A failure prints its example and the seed of its
# round; what it finds becomes an @example of the test.
EXPLORE_MINUTES ?= 60
explore: setup
	$(ONE_THREAD) $(BIN)/python tools/explore.py $(EXPLORE_MINUTES) -n 2 --dist worksteal

# The documentation in build/docs: notebooks are run, warnings (a link that leads nowhere, a public name without an
# entry) are errors.
docs: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

# The table of docs/reliability.md: runs stopped at every change they make to the disk.
reliability: setup
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m support.crash

# Lightning, Accelerate, transformers and neurogym, in an environment of their own: neurogym needs an older numpy.
harness: $(HARNESS)/.ready
	$(ONE_THREAD) $(HARNESS)/bin/python -m pytest examples

$(HARNESS)/.ready: pyproject.toml setup.py requirements-harness.lock $(NATIVE)
	$(PYTHON) -m venv $(HARNESS)
	$(HARNESS)/bin/python -m pip install --quiet --no-compile --constraint requirements-harness.lock --editable '.[harness]'
	touch $@

# ---- once a night: what takes long, or needs other versions, other processors, or no compiler -------------------------

nightly: harness test-arm test-wheel test-oldest test-newest explore setup
	$(BIN)/python -m pip install --quiet --no-compile --constraint requirements.lock '.[cluster]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m nightly

# The kernel on ARM: cross-compiled, its own tests run by an emulator (Debian: g++-aarch64-linux-gnu, qemu-user).
test-arm:
	mkdir -p build
	aarch64-linux-gnu-g++ -std=c++17 -O1 -ffp-contract=fast -static -Isrc/pathsgd/kernels/src tests/kernels/harness.cpp \
	  $(filter-out %/threads.cpp,$(filter %.cpp,$(NATIVE))) -o build/harness-arm
	qemu-aarch64 build/harness-arm | tee build/harness-arm.txt
	grep -qx '0 failures' build/harness-arm.txt

# An sdist and a wheel with the kernels of every processor of this platform, tagged for every Linux it runs on.
wheel: setup
	rm -rf dist build/wheel
	$(BIN)/python -m build --outdir build/wheel
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair build/wheel/*.whl --wheel-dir dist
	mv build/wheel/*.tar.gz dist

# In a new environment, where compilers fail, from a folder without the sources.
test-wheel: wheel
	rm -rf build/installed && $(PYTHON) -m venv build/installed
	CC=false CXX=false build/installed/bin/python -m pip install --quiet --no-compile --constraint requirements.lock dist/*.whl
	cd build && OMP_NUM_THREADS=1 installed/bin/python $(CURDIR)/tests/support/smoke.py

# What goes out: both files as an index would take them, the wheel where there is nothing else. twine brings many packages
# along that nothing else here needs.
release: test-wheel
	rm -rf build/release && $(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --no-compile twine
	build/release/bin/python -m twine check --strict dist/*

# The oldest versions that the package declares, and the newest that install. The lab and its many packages stay out.
CORE_TESTS := -n 2 --ignore=tests/distributed --ignore=lab/tests --ignore=tests/fuzz/test_files.py \
  --ignore=tests/support/test_disk.py --ignore=tests/test_docs.py --ignore=tests/test_front_door.py --ignore=tests/test_peers.py
CORE_TESTS_OF_PROCESSES := tests/distributed --ignore=tests/distributed/test_train.py

# pip's default index has no CPU build of that torch (asked for 2.6.0+cpu, it finds none), so gigabytes of CUDA come along.
# Whoever has told pip of an index with CPU builds (PIP_EXTRA_INDEX_URL): make test-oldest OLDEST_TORCH=torch==2.6.0+cpu
OLDEST_TORCH ?= torch==2.6.*

test-oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --no-compile '$(OLDEST_TORCH)' 'numpy==1.26.*' --editable '.[dev]'
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest $(CORE_TESTS)
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest $(CORE_TESTS_OF_PROCESSES)

test-newest:
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --no-compile --upgrade --upgrade-strategy eager --editable '.[dev]'
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest $(CORE_TESTS)
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest $(CORE_TESTS_OF_PROCESSES)

# Models that other people wrote, in an environment of their own; their records, and docs/models.md made of them.
zoo: $(ZOO)/.ready
	$(ONE_THREAD) nice -n 19 $(ZOO)/bin/python -m zoo --missing
	$(ZOO)/bin/python -m zoo --page

$(ZOO)/.ready: pyproject.toml setup.py zoo/requirements.txt $(NATIVE)
	$(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/python -m pip install --quiet --no-compile --requirement zoo/requirements.txt --editable .
	touch $@

# The versions that are tested together, for CPU. Made anew from whatever the environment holds.
lock: setup
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf $(VENV) $(HARNESS) build src/*.egg-info src/pathsgd/kernels/*.so
