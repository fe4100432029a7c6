# `make` lists the targets. Everything runs in .venv, which is made, and made again after a change of its inputs,
# when a target needs it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SET_UP := $(PYTHON) tools/set_up.py
SWEEP := $(BIN)/python -W ignore -m benchmarks.sweep

# The isolated build of `pip install .` and `make release` takes the same versions: pip reads the first variable up to
# 25.2, the second from 25.3 on.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow fuzz lint format bench bench-sweep performance numerics sanitize release arm docs site clean browser emulator

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: ## make .venv with evenkeel (editable) and the developer tools
	@$(SET_UP) dev

demo: ## train one small transformer with each norm on real text; report in runs/demo
	@$(SET_UP) report $(BIN)/evenkeel study --out runs/demo $(if $(wildcard runs/demo/study.json),--resume)

test: install ## run the tests and doctests that need no browser and no compiler, two at a time
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

# OpenMP's threads spin while they wait, and would take the core of the other process's tests.
test test-slow: export OMP_WAIT_POLICY := passive

test-slow: install browser emulator ## run the slow tests: compiled graphs, wheels, the report in Chromium, Arm
	$(BIN)/python -m pytest tests -m "slow and not alone" -n 2 --dist worksteal
	$(BIN)/python -m pytest tests -m "slow and alone"

MINUTES ?= 60
fuzz: install ## run the fuzzers for an hour (MINUTES=5: for five minutes; SEED=1: the same cases again)
	PYTHONPATH=src:tests $(BIN)/python -m fuzz.driver --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# $(call need,programs,package): one of the programs is there; else root installs the package, and others are told
need = @for program in $(1); do command -v $$program >/dev/null && exit 0; done; \
	{ test "$$(id -u)" = 0 && apt-get update --quiet && apt-get install --yes --quiet $(2); } || \
	{ echo "the slow tests need $(2); on Debian and Ubuntu: sudo apt install $(2)" >&2; exit 1; }

browser:
	$(call need,chromium chromium-browser google-chrome,chromium)

emulator:
	$(call need,aarch64-linux-gnu-g++,g++-aarch64-linux-gnu)
	$(call need,qemu-aarch64,qemu-user)

lint: install ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install ## measure whole models, then the kernels, against torch and a plain memory copy
	$(BIN)/python -m benchmarks

bench-sweep: install ## measure 300 calls on shapes drawn at random against torch, in 10 minutes
	mkdir -p build
	$(SWEEP) --out build/sweep.json

performance: install ## run every benchmark and write docs/performance.md with its charts, and the README's
	mkdir -p build
	$(BIN)/python -W ignore -m benchmarks --out build/performance.json
	rm -f build/sweep*.json
	$(SWEEP) --out build/sweep.json
	$(SWEEP) --threads 1 --out build/sweep-1.json
	if grep -qs avx512f /proc/cpuinfo; then \
	    export EVENKEEL_SIMD=avx2 ATEN_CPU_CAPABILITY=avx2; \
	    $(SWEEP) --out build/sweep-avx2.json && $(SWEEP) --threads 1 --out build/sweep-avx2-1.json; fi
	PYTHONPATH=. $(BIN)/python docs/build_performance.py build/performance.json build/sweep.json build/sweep-*.json

numerics: install ## measure the numerics contract and write docs/numerics.md with its charts
	$(BIN)/python docs/build_numerics.py

sanitize: install ## run the kernels' tests under the address and undefined-behaviour sanitizers of g++
	$(BIN)/python tests/sanitize.py

release: ## build and check dist/*.tar.gz and the wheel for every Python >= 3.11 and torch >= 2.11, and try it out
	@$(SET_UP) release $(BIN)/python tools/release.py

arm: install ## build the kernels for 64-bit Arm, run them in an emulator, compare their bits with this processor's
	$(BIN)/python tests/emulated/run.py

docs: install ## write the course's figures and tables from docs/measurements, and the README's picture
	$(BIN)/python docs/build_lessons.py
	PYTHONPATH=. $(BIN)/python docs/build_readme.py

site: install ## build the documentation in build/site: the pages of docs, the API, search; needs no network
	rm -rf docs/api build/site
	$(BIN)/sphinx-build -c docs -E -W --keep-going -d build/doctrees . build/site
	@echo "open build/site/index.html"

clean: ## remove what was built, but not .venv and runs
	rm -rf build dist docs/api src/*.egg-info src/evenkeel/kernels/*.so src/evenkeel/kernels/_build.json $(VENV)/.evenkeel-kernels
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
