# `make` lists the targets. Everything runs in .venv, which is made, and made again after a change of its inputs,
# when a target needs it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.evenkeel-installed
SOURCES := $(wildcard csrc/*/*)

# The isolated build of `pip install .` and `make wheel` takes the same versions: pip reads the first variable up to
# 25.2, the second from 25.3 on.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow fuzz lint format bench bench-sweep performance numerics sanitize wheel docs site clean browser

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(STAMP): pyproject.toml setup.py constraints.txt $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "evenkeel needs Python >= 3.11; choose one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "no virtual environment: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet "setuptools>=77" torch numpy
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[dev]'
	@touch $@

install: $(STAMP) ## make .venv with evenkeel (editable) and the developer tools

demo: $(STAMP) ## train one small transformer with each norm on real text; report in runs/demo
	$(BIN)/evenkeel study --out runs/demo --resume

test: $(STAMP) ## run the tests and doctests that need no browser and no compiler
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(STAMP) browser ## run the slow tests: compiled graphs, wheels, the report in Chromium
	$(BIN)/python -m pytest -m slow

MINUTES ?= 60
fuzz: $(STAMP) ## run the fuzzers for an hour (MINUTES=5: for five minutes; SEED=1: the same cases again)
	PYTHONPATH=src:tests $(BIN)/python -m fuzz.driver --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update --quiet && apt-get install --yes --quiet chromium; } || \
		{ echo "the browser tests need Chromium; on Debian: sudo apt install chromium" >&2; exit 1; }

lint: $(STAMP) ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## measure whole models, then the kernels, against torch and a plain memory copy
	$(BIN)/python -m benchmarks

bench-sweep: $(STAMP) ## measure 300 calls on shapes drawn at random against torch, in 10 minutes
	mkdir -p build
	$(BIN)/python -W ignore -m benchmarks.sweep --out build/sweep.json

performance: $(STAMP) ## run every benchmark and write docs/performance.md with its charts, and the README's
	mkdir -p build
	$(BIN)/python -W ignore -m benchmarks --out build/performance.json
	$(BIN)/python -W ignore -m benchmarks.sweep --out build/sweep.json
	PYTHONPATH=. $(BIN)/python docs/build_performance.py build/performance.json build/sweep.json

numerics: $(STAMP) ## measure the numerics contract and write docs/numerics.md with its charts
	$(BIN)/python docs/build_numerics.py

sanitize: $(STAMP) ## run the kernels' tests under the address and undefined-behaviour sanitizers of g++
	$(BIN)/python tests/sanitize.py

wheel: ## build dist/evenkeel-*-py3-none-<platform>.whl: one for every Python >= 3.11 and torch >= 2.11
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -rf build/lib* build/bdist*
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

docs: $(STAMP) ## write the course's figures and tables from docs/measurements, and the README's picture
	$(BIN)/python docs/build_lessons.py
	PYTHONPATH=. $(BIN)/python docs/build_readme.py

site: $(STAMP) ## build the documentation in build/site: the pages of docs, the API, search; needs no network
	rm -rf docs/api build/site
	$(BIN)/sphinx-build -c docs -E -W --keep-going -d build/doctrees . build/site
	@echo "open build/site/index.html"

clean: ## remove what was built, but not .venv and runs
	rm -rf build dist docs/api src/*.egg-info src/evenkeel/kernels/*.so src/evenkeel/kernels/_build.json $(STAMP)
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
