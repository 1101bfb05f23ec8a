# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# What is imported is compiled then, and kept: a tenth of what is installed.
unexport PYTHONDONTWRITEBYTECODE
# Oracles and peers. They ask for torchvision but run without it, hence --no-deps.
PEERS := backpack-for-pytorch laplace-torch curvlinops-for-pytorch asdfghjkl unfoldNd linear_operator ivon-opt
CODE := src tests benchmarks examples docs/hooks.py docs/notebooks.py docs/images

.PHONY: demo test test-slow lint format bench docs clean

demo: $(VENV)/.run
	$(BIN)/lapae demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 3 --dist worksteal

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/pyright

format: $(VENV)/.dev
	$(BIN)/ruff check --fix-only --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

# The guide and the API reference, into site/index.html. Any broken link fails.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build

bench: $(VENV)/.dev
	$(BIN)/lapae bench

# A stamp file per step, so that a second call does nothing.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps $(PEERS)
	@touch $(VENV)/.run $@

$(VENV)/.docs: $(VENV)/.run
	$(PIP) -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) site build dist *.egg-info src/*.egg-info .pytest_cache .ruff_cache
