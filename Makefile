# `make` lists the targets. Each sets up what it needs in .venv or .venv-upstream, once.

PYTHON ?= $(shell for p in python3.11 python3.10 python3; do \
    $$p -c 'import sys; sys.exit(sys.version_info[:2] not in [(3, 10), (3, 11)])' 2>/dev/null \
    && { command -v $$p; break; }; done)
FOUND = $(or $(PYTHON),$(error Python 3.10 or 3.11 is needed and neither is on PATH; install one, or: make PYTHON=/path/to/python3.11))
RUN = .venv/bin/python
RUN_UPSTREAM = .venv-upstream/bin/python
# two tests at a time; PARALLEL= for one, as a debugger wants it
PARALLEL ?= -n 2 --dist worksteal
TESTS_UPSTREAM = tests/upstream tests/test_interpreter.py tests/test_triton.py
SETUP_FILES = pyproject.toml constraints.txt upstream-constraints.txt .ci/environment.py

.PHONY: help setup demo test test-main test-upstream bench bench-check lint format clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 16

setup: .venv/.ready .venv-upstream/.ready ## make both environments

demo: .venv/.ready ## a language model on flashasc's kernels, and how errors grow with length
	@TQDM_DISABLE=1 $(RUN) examples/demo.py

test: test-main test-upstream ## every test that runs on this machine

test-main: .venv/.ready ## the tests under triton-ascend
	$(RUN) -m pytest $(PARALLEL) --ignore tests/upstream $(ARGS)

test-upstream: .venv-upstream/.ready ## compile for NVIDIA under upstream Triton 3.6 and 3.2, and interpret
	$(RUN_UPSTREAM) -m pytest $(PARALLEL) $(TESTS_UPSTREAM) $(ARGS)
	PYTHONPATH=.venv-upstream/triton-3.2 $(RUN_UPSTREAM) -m pytest $(PARALLEL) $(TESTS_UPSTREAM) $(ARGS)

bench: .venv/.ready ## time every case that runs here; ARGS="-k gemm --benchmark-json=out.json"
	$(RUN) -m pytest bench/ $(ARGS)

bench-check: .venv/.ready ## time the CPU cases; fails where a ratio to a peer fell below the baseline's
	$(RUN) -m pytest bench/ -k cpu --benchmark-json=.bench.json $(ARGS)
	$(RUN) -m bench.check .bench.json --slack 0.6

lint: .venv/.ready ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: .venv/.ready ## rewrite the sources the way lint wants them
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean: ## remove the environments and every cache in this folder
	rm -rf .venv .venv-upstream .venv*.lock .bench.json .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/.ready: $(SETUP_FILES)
	@$(FOUND) .ci/environment.py main

.venv-upstream/.ready: $(SETUP_FILES)
	@$(FOUND) .ci/environment.py upstream
