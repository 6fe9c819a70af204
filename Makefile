# `make demo` and `make test` set up what they need by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Tests and benchmarks share the cores among processes, not among threads.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test quick fuzz lowest lint types check bench docs results notebooks dist smoke clean

help:
	@echo "make demo   train a plain and a projected network on the built-in digits, attack and certify both"
	@echo "make test   run all tests, the same ones every time;  make quick: fewer examples, no slow ones"
	@echo "make fuzz   random search for failures, for SECONDS (120);  SEED=N repeats one"
	@echo "make lowest run all tests with the lowest versions that pyproject.toml allows"
	@echo "make lint   ruff and the layer contract;  make types: mypy;  make check: lint, types and test"
	@echo "make bench  speed as ratios, to bench/results.json"
	@echo "make docs   the site, to build/docs;  make notebooks: runs the tutorials and keeps their outputs"
	@echo "make results  tables, figures and report of docs/results, from its scores.csv"
	@echo "make dist   wheel and sdist, to dist;  make smoke: installs the wheel without and with extras, and uses it"
	@echo "make clean  remove the environment and everything that was built"

PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# In two steps into one environment: what the demo needs, and all that developers need on top of it.
$(VENV)/ready-for-demo: pyproject.toml constraints.txt
	@echo "installing into $(VENV) what the demo needs; torch is large, this takes some minutes"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[plot]'
	touch $@

$(VENV)/ready: $(VENV)/ready-for-demo
	@echo "installing into $(VENV) what developers need"
	$(PIP) -e '.[dev,docs]'
	# A judge in tests and benchmarks. It asks for torchvision and an old requests, but works without either.
	$(PIP) --no-deps torchattacks
	# Another one, which is built from source: its test is skipped where that is not possible.
	$(PIP) 'vnnlib<1' || echo "vnnlib cannot be built here (a C compiler and Python's headers are missing)"
	touch $@

demo: $(VENV)/ready-for-demo
	$(BIN)/polybound demo

test: $(VENV)/ready
	$(BIN)/python -m pytest -n auto --dist worksteal

quick: $(VENV)/ready
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow'

# What it finds becomes an @example, or a test, of its own.
SECONDS ?= 120
SEED    ?=
fuzz: $(VENV)/ready
	$(BIN)/python tests/fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

LOWEST := build/lowest
lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tests/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/constraints.txt -e '.[dev,docs]'
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchattacks
	$(LOWEST)/bin/python -m pytest -n auto --dist worksteal

lint: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(VENV)/ready
	$(BIN)/mypy

check: lint types test

bench: $(VENV)/ready
	$(BIN)/python bench/run.py

docs: $(VENV)/ready
	PYTHONPATH=docs $(BIN)/python -m generator

# Everything in docs/results but its prose and scores.csv; without weights or data, from what lies there.
results: $(VENV)/ready
	PYTHONPATH=docs $(BIN)/python -m generator.committed

# Outputs of the tutorials are kept in them; the tests run them, and say when they are out of date.
notebooks: $(VENV)/ready
	PYTHONPATH=docs $(BIN)/python -m generator.notebooks

# The wheel is built from the sdist, so that the sdist is known to be whole.
dist: $(VENV)/ready
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build
	$(BIN)/python tests/contents.py dist

SMOKE  := build/smoke
smoke: dist
	rm -rf $(SMOKE)
	$(PYTHON) -m venv $(SMOKE)
	$(SMOKE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	$(SMOKE)/bin/python tests/smoke.py
	$(SMOKE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		"$$(echo dist/*.whl)[check,experiments,onnx,plot]"
	$(SMOKE)/bin/python tests/smoke.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
