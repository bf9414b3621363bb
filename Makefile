# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HARNESS := .venv-harness
NATIVE := $(wildcard src/pathsgd/_native/src/*.cpp src/pathsgd/_native/src/*.h src/pathsgd/_native/src/simd/*.h)

# Bytecode is made of the modules that are imported, when they are, the large ones at the end of the set-up; to make it
# of everything that is installed takes five times as long.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint types unit harness setup lock clean

setup: $(READY)

$(READY): pyproject.toml setup.py requirements.lock $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint requirements.lock --editable '.[lab,dev]'
	$(BIN)/python -c 'import pathsgd.lab.run.train, pathsgd.lab.report.page, torch._dynamo'
	touch $@

demo: setup
	$(BIN)/pathsgd demo

# Side by side; every one of them runs to its end, and make names those that failed.
test: setup
	$(MAKE) --no-print-directory --keep-going --jobs=3 lint types unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

# Two worker processes with one thread each: small tensors gain nothing from more.
unit: setup
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Lightning, Accelerate and transformers, in an environment of their own: they import torchvision where they find it,
# and the one that the locked environment holds (another package asks for it) does not fit torch's CPU build.
harness: $(HARNESS)/.ready
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(HARNESS)/bin/python -m pytest examples

$(HARNESS)/.ready: pyproject.toml setup.py requirements-harness.lock $(NATIVE)
	$(PYTHON) -m venv $(HARNESS)
	$(HARNESS)/bin/python -m pip install --quiet --no-compile --constraint requirements-harness.lock --editable '.[harness]'
	touch $@

# The versions that are tested together, for CPU. Made anew from whatever the environment holds.
lock: setup
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf $(VENV) $(HARNESS) build src/*.egg-info src/pathsgd/_native/*.so
