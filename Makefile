# README's two commands: `make shootout` and `make test`. Both set up what they need, with Python 3.11+ and make alone.

PYTHON ?= python3
# What runs the product as a user has it; what runs its tests, on the built wheel; the same with PyTorch.
VENV := .venv
TEST_VENV := .venv-test
TORCH_VENV := .venv-torch
NOTEBOOK_VENV := .venv-notebooks
TORCH := torch==2.13.0
PACKAGES := -p slackswap.hardware -p slackswap.models -p slackswap.planners -p slackswap.evaluate
SOURCES := $(shell find hardware models planners evaluate -type f -not -path '*/__pycache__/*')
PIP_QUIET := --quiet --disable-pip-version-check
# The tests see the installed wheel, never the folders beside them.
PYTEST := -m pytest -p no:cacheprovider

.PHONY: help shootout test test-torch lint types tests benchmarks docs notebooks record clean

help:
	@echo "make shootout     set up, run the planner shootout on the built-in inputs"
	@echo "make test         set up, build and install the wheel, lint, check types, run the tests"
	@echo "make test-torch   the tests that need PyTorch (installs $(TORCH))"
	@echo "make benchmarks   timings, as ratios in one run"
	@echo "make docs         build the documentation into build/site"
	@echo "make notebooks    run the notebooks and render them as HTML (installs JupyterLab)"
	@echo "make record       record the small GPT trace again (installs $(TORCH))"
	@echo "make clean        remove environments, builds and caches"

shootout: $(VENV)/.installed
	$(VENV)/bin/slackswap shootout

$(VENV)/.installed: pyproject.toml $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install $(PIP_QUIET) .
	@touch $@

test: lint types tests

lint: $(TEST_VENV)/.installed
	$(TEST_VENV)/bin/ruff check .
	$(TEST_VENV)/bin/ruff format --check .

types: $(TEST_VENV)/.installed
	$(TEST_VENV)/bin/mypy $(PACKAGES)
	# Notebooks are written as their readers would write them; the tests run them.
	MYPYPATH=tests $(TEST_VENV)/bin/mypy tests benchmarks docs

tests: $(TEST_VENV)/.installed
	$(TEST_VENV)/bin/python $(PYTEST) -n auto -m "not torch"

$(TEST_VENV)/.requirements: pyproject.toml
	$(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/pip install $(PIP_QUIET) ".[dev]"
	@touch $@

$(TEST_VENV)/.installed: $(TEST_VENV)/.requirements $(SOURCES) README.md
	rm -rf dist
	$(TEST_VENV)/bin/python -m build --outdir dist . > dist.log 2>&1 || { cat dist.log; exit 1; }
	@rm -f dist.log
	$(TEST_VENV)/bin/pip install $(PIP_QUIET) --force-reinstall --no-deps dist/*.whl
	@touch $@

test-torch: $(TORCH_VENV)/.installed
	$(TORCH_VENV)/bin/python $(PYTEST) -m torch

$(TORCH_VENV)/.installed: $(TEST_VENV)/.installed
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/pip install $(PIP_QUIET) $(TORCH) "$$(ls dist/*.whl)[dev]"
	$(TORCH_VENV)/bin/pip install $(PIP_QUIET) --force-reinstall --no-deps dist/*.whl
	@touch $@

benchmarks: $(TEST_VENV)/.installed
	$(TEST_VENV)/bin/python benchmarks/event_model_speed.py
	$(TEST_VENV)/bin/python benchmarks/planning_time.py
	$(TEST_VENV)/bin/python benchmarks/genetic_search.py
	$(TEST_VENV)/bin/python benchmarks/certified_gaps.py
	$(TEST_VENV)/bin/python benchmarks/refined_gap.py
	$(TEST_VENV)/bin/python benchmarks/checkmate_proofs.py
	$(TEST_VENV)/bin/python benchmarks/trace_import.py
	$(TEST_VENV)/bin/python benchmarks/sweep_overhead.py

docs: $(TEST_VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(TEST_VENV)/bin/python -P -m mkdocs build --strict

notebooks: $(NOTEBOOK_VENV)/.installed
	mkdir -p build/notebooks
	for notebook in notebooks/*.py; do \
	  $(NOTEBOOK_VENV)/bin/jupytext --quiet --to ipynb --output - $$notebook \
	  | $(NOTEBOOK_VENV)/bin/jupyter nbconvert --log-level WARN --stdin --execute --to html \
	    --output "$$(basename $$notebook .py)" --output-dir build/notebooks || exit 1; \
	done
	@echo "notebooks are in build/notebooks"

$(NOTEBOOK_VENV)/.installed: pyproject.toml $(SOURCES)
	$(PYTHON) -m venv $(NOTEBOOK_VENV)
	$(NOTEBOOK_VENV)/bin/pip install $(PIP_QUIET) ".[plot,notebook]"
	@touch $@

record: $(TORCH_VENV)/.installed
	$(TORCH_VENV)/bin/python models/traces/recorded/record_small_gpt.py

clean:
	rm -rf $(VENV) $(TEST_VENV) $(TORCH_VENV) $(NOTEBOOK_VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
