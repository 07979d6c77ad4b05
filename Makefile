# make run [MODEL=path/to/model.onnx] [ARGS="--trials 32"]   tune a model, print its results
# make test                                                  everything that CI checks
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install run test all-tests test-fast test-aarch64 coverage lint format repro ui lock clean

MODEL ?= squeezenet
ARGS ?=
VENV := .venv
INSTALLED := $(VENV)/.installed
# The installer, pinned like everything it installs (requirements.lock).
UV := uv==0.13.8

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export DO_NOT_TRACK := 1
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false

help:
	@echo 'make run [MODEL=NAME|FILE.onnx]  tune a model (squeezenet) and print its results: a minute,'
	@echo '                                 two more for the first installation; longer on a busy machine'
	@echo 'make test                        lint and run all tests: four minutes on two idle cores'
	@echo 'make test-fast                   the tests of a minute'
	@echo 'make repro                       bring all results of params.yaml up to date (dvc repro)'
	@echo 'make ui                          open the recorded results in MLflow'
	@echo 'make install | lint | format | lock | clean'

run: install
	@fewtune run '$(MODEL)' $(ARGS)

# Two processes (three take as long on two cores): the tests of one file stay together, files with slow ones first.
PYTEST := pytest -n 2 --dist loadfile --no-loadscope-reorder

# Lint takes what the tests, which wait for processes, leave of the cores.
test: install
	@$(MAKE) --no-print-directory --jobs=2 lint all-tests

all-tests: install
	$(PYTEST)

# The lines that no test runs: printed, and judging nothing. The tests take a fifth longer.
coverage: install
	python -m slipcover -m $(PYTEST)

# The inner loop: nothing that tunes, runs a pipeline, builds a whole model, or takes over a second.
test-fast: install
	$(PYTEST) -m 'not slow'

# On an emulated board, of arm64 packages and wheels: apt, dpkg-deb, qemu-user-static and
# gcc-aarch64-linux-gnu are needed, and the package mirrors.
test-aarch64: install
	python -m tests.devices.aarch64 "$$(tests/devices/aarch64.sh build/aarch64)"

lint: install
	nice ruff check .
	nice ruff format --check .
	nice mypy

format: install
	ruff check --fix .
	ruff format .

repro: install
	dvc repro $(ARGS)

ui: install
	@fewtune ui

# Resolve pyproject.toml anew, for every Python from 3.11 on. Upgrade one package with: make lock ARGS="--upgrade-package dvc"
lock: install
	uv pip compile pyproject.toml --universal --extra pipeline --extra fleet --group dev \
	    --output-file requirements.lock --python-version 3.11 \
	    --generate-hashes --no-annotate --quiet $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache

install: $(INSTALLED)

# Python 3.11 may go by several names, and a name may be a shim that does not work.
$(INSTALLED): requirements.lock pyproject.toml Makefile
	@if ! [ -x $(VENV)/bin/python ]; then \
	    for python in python3.11 python3 python; do \
	        if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	            echo "creating $(VENV) with $$($$python --version)"; \
	            $$python -m venv $(VENV) && break; \
	            echo "make: $$python cannot create $(VENV): see above (Debian: install python3-venv)" >&2; \
	            rm -rf $(VENV); exit 1; \
	        fi; \
	    done; \
	    [ -x $(VENV)/bin/python ] || \
	        { echo 'make: Python 3.11 or later is needed and was not found on PATH' >&2; exit 1; }; \
	fi
	@echo 'installing requirements.lock into $(VENV) (2 GB, about two minutes the first time)'
	@python -m pip install --quiet --disable-pip-version-check '$(UV)'
	@uv pip install --quiet --require-hashes --requirement requirements.lock
	@uv pip install --quiet --no-deps --no-build-isolation --editable .
	@# A command loads 2,400 modules: compiled each time, they take longer than all it does.
	@python -m compileall -q -q -j 0 $(VENV)/lib fewtune pipelines stages || true
	@touch $@
