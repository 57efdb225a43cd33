# Everything happens in .venv/; `make help` lists the targets.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
PY := $(VENV)/bin/python
BATCH ?= 10000
SECONDS ?= 600
# make PY=python3 takes that Python as it is, and installs nothing
GIVEN := $(filter command,$(origin PY))
READY := $(if $(GIVEN),,$(VENV)/.dev)
LINTED := $(if $(GIVEN),,$(VENV)/.lint)
PIP = $(PY) -m pip install --quiet --disable-pip-version-check
SELF := $(MAKE) --no-print-directory# by this name, make --dry-run runs nothing
GPU = $(PY) -c 'from app.cuda.device import why_no_gpu; raise SystemExit(why_no_gpu() is not None)'
# What depends on how the processor multiplies matrices, as pooling does not, nor how threads share work; that other ways to the same session keep its bits needs no second processor.
NUMERIC := $(addprefix tests/,layers/test_layers.py layers/test_gradients.py network/test_graph.py \
  engine/test_cpu_engine.py)
MULTIPLIES := not pool and not thread and not progress and not report and not fa19# k7's sums are nearly as long

.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE # which containers set: hundreds of processes would compile every module again
.PHONY: help run test test-all numeric lint format sanitize soak fuzz docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12 | \
	  sed -E '/.{81}/s/^(.{1,79}) /\1\n            /'

run: $(if $(GIVEN),,$(VENV)/.run) ## set everything up, then classify BATCH (10,000) test images and report
	$(PY) main.py --batch $(BATCH)

# Style and types are checked beside the rest of the installation and the tests, the tests of numbers beside the tests;
# what these print comes last, in one piece each.
test: $(LINTED) ## set everything up, check the style and run the tests: of large grids the sample SEED (1)
	@logs=$$(mktemp -d); $(SELF) lint >$$logs/1 2>&1 & lint=$$!; numeric=; trap 'exit 130' INT TERM; \
	trap 'kill $$lint $$numeric 2>&-; rm -rf $$logs' EXIT; \
	$(if $(GIVEN),,$(SELF) $(READY) || exit 2;) \
	$(SELF) numeric >$$logs/2 2>&1 & numeric=$$!; \
	failed=0; $(PY) -m pytest -m 'not alone' -n auto --dist worksteal --sample $(or $(SEED),1) || failed=1; \
	wait $$lint || failed=1; wait $$numeric || failed=1; \
	if $(GPU); then $(PY) -m pytest -m alone --sample $(or $(SEED),1) || failed=1; fi; \
	cat $$logs/1 $$logs/2; exit $$failed

test-all: $(READY) lint ## run all tests in long form, in PARTS (8) parts; the next call skips those that passed, unless AGAIN=1
	$(PY) -m tests.parts $(if $(PARTS),--parts $(PARTS)) $(if $(AGAIN),--again)
	@$(MAKE) --no-print-directory numeric

# One process for each kind, side by side: for a process to collect the tests takes half as long as all of them.
numeric: $(READY) ## the tests of numbers again, with the matrix kernels of other processors
	@kinds=$$($(PY) -m tests.support.cpu_bits --kinds) && echo $$kinds | xargs -r -n 1 -P 2 sh -c 'said=$$(OPENBLAS_CORETYPE=$$0 \
	  $(PY) -m pytest -q -m "not gpu" -k "$(MULTIPLIES)" $(NUMERIC)); code=$$?; \
	  echo "with the matrix kernels of OpenBLAS for $$0:"; echo "$$said"; exit $$code'

lint: $(LINTED) ## ruff (lint and format) and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(LINTED) ## rewrite the sources in the project's format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

sanitize: $(READY) ## compute-sanitizer (of a CUDA toolkit) over every kernel; TOOL=racecheck or PART=2/4: some checks
	$(PY) -m tests.sanitize $(if $(TOOL),--tools $(TOOL)) $(if $(PART),--part $(PART)) $(if $(JOBS),--jobs $(JOBS)) $(if $(AGAIN),--again)

soak: $(READY) ## engines, then classifiers in threads, each for SECONDS (600), on every route: the bits of one thread?
	$(PY) -m tests.soak --seconds $(SECONDS)
	$(PY) -m tests.engine.classifier.soak --seconds $(SECONDS)

fuzz: $(READY) ## broken files for every reader, for MINUTES (10) minutes; SEED and CASES choose which
	$(PY) -m tests.fuzz --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES))

docs: $(READY) ## write the ladder's pages, static HTML, a playground and the JSON Schemas into build/site
	$(PY) -m docs.generate.site build/site

clean: ## remove the environment and caches inside the tree
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Debian splits venv from python3: where it is missing, root installs it and others are told how.
$(PY):
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 found: install python3, or run make PYTHON=/path/to/python3" >&2; exit 2; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); \
	  else echo "error: Python's venv module is missing: sudo apt-get install python3-venv, then run make again" >&2; exit 2; fi; }

# pip is run once per change of pyproject.toml; the stamp is written only when it succeeded.
# Tests import some of the modules alone: Python compiles these by itself, on all cores.
$(VENV)/.run: pyproject.toml | $(PY)
	$(PIP) -e '.[cuda,pictures]'
	@touch $@

# First what lint needs, so that it can run beside the rest: of the application's packages mypy reads NumPy's types alone.
# With setuptools, which then need not be installed apart.
$(VENV)/.lint: pyproject.toml | $(PY)
	@$(PY) -c 'import tomllib; t = tomllib.load(open("pyproject.toml", "rb")); p = t["project"]; print("\n".join( \
	  t["build-system"]["requires"] + [one for one in p["dependencies"] if one.startswith("numpy")] + p["optional-dependencies"]["dev"]))' >$@.txt
	$(PIP) --no-compile -r $@.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.lint
	$(PIP) --no-compile --no-build-isolation -e '.[cuda,test]'
	@touch $@ $(VENV)/.run
