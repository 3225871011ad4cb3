# Sets up everything it needs on a machine with Python 3.11+, git and make; each target has a comment for `make help`.

PYTHON ?= python3
JOBS   ?= 2
UV     := .tools/uv
BIN    := .venv/bin
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif

# certificates as the machine has them: a proxy that inspects TLS has its own
export UV_SYSTEM_CERTS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check bench soak lock-check format lint types imports docs reference wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(UV): scripts/fetch_uv.py
	@$(PYTHON) scripts/fetch_uv.py && touch $(UV)

# the environment of the product alone: enough for the demo
.venv/.product: $(UV) pyproject.toml uv.lock
	@echo "env: installing the product's dependencies into .venv" >&2
	@$(UV) sync --frozen --quiet --no-default-groups --inexact
	@touch $@

# the same with the development tools
.venv/.synced: .venv/.product
	@echo "env: installing the development tools into .venv" >&2
	@$(UV) sync --frozen --quiet
	@touch $@

demo: .venv/.product  ## a simulated fleet, the whole loop and the dashboard (make demo ARGS="--headless --minutes 60")
	@$(BIN)/outrider demo $(ARGS)

test: .venv/.synced  ## the quick half of the tests, 6 minutes on 2 cores
	@sh scripts/system_packages.sh
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not slow" $(ARGS)

test-all: .venv/.synced  ## every test, as in CI; installs Debian's servers if allowed
	@sh scripts/system_packages.sh
	@OUTRIDER_CPU_LIMIT=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

check: format lint types imports reference docs wheel  ## everything but the tests

format: .venv/.synced  ## check the formatting
	@echo "check: format" && $(BIN)/ruff format --check --quiet .

lint: .venv/.synced  ## check the code by ruff
	@echo "check: lint" && $(BIN)/ruff check --quiet .

types: .venv/.synced  ## check the types by mypy, strict
	@echo "check: types" && $(BIN)/mypy --no-error-summary && cd sdk && ../$(BIN)/mypy --no-error-summary

imports: .venv/.synced  ## check the import contracts
	@echo "check: imports" && found=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$found"; exit 1; }

reference: .venv/.synced  ## check that the generated pages of docs/reference are up to date
	@echo "check: reference" && $(BIN)/python scripts/file_reference.py --check && $(BIN)/python scripts/measures_reference.py --check && $(BIN)/python scripts/config_reference.py --check && $(BIN)/python scripts/drill_reference.py --check && $(BIN)/python scripts/drill_figures.py --check && $(BIN)/python scripts/adapter_reference.py --check && $(BIN)/python scripts/tables_reference.py --check && $(BIN)/python scripts/detector_reference.py --check && $(BIN)/python scripts/playbook_reference.py --check && $(BIN)/python scripts/channel_reference.py --check

docs: .venv/.synced  ## build docs/_build/html; a warning or a dead link inside is an error
	@echo "check: docs" && $(BIN)/python -m sphinx -W --keep-going -n -q -b html docs docs/_build/html

wheel: .venv/.synced  ## build the wheel, install it alone, test it there
	@echo "check: wheel" && $(BIN)/python scripts/wheel_test.py && $(BIN)/python scripts/sdk_wheel_test.py

# the peers of the benchmarks; one that cannot be fetched is left out, and its line gives the reason
.venv/.bench: .venv/.synced
	@echo "env: installing the peers of the benchmarks into .venv" >&2
	@$(UV) sync --frozen --quiet --inexact --group bench || echo "env: they cannot be fetched here; going on without" >&2
	@touch $@

bench: .venv/.bench  ## all benchmarks: figure, target, peer, ratio (make bench NAMES="store_write")
	@sh scripts/system_packages.sh
	@$(BIN)/python benchmarks/run.py $(NAMES) -o table

soak: .venv/.synced  ## the long runs: 200 kills of a writer on each database, 100 of an engine that repairs, 200 of one on call (make soak ARGS="--engine sqlite")
	@sh scripts/system_packages.sh
	@$(BIN)/python benchmarks/soak.py $(ARGS)

lock-check: $(UV)  ## check that uv.lock matches pyproject.toml
	@$(UV) lock --check

clean:  ## remove build outputs, keep .venv and .tools
	@rm -rf dist build docs/_build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
