# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The peers ask for torchvision but run without it: no warning of that.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-warn-conflicts
# Every package with its hash, wheels alone: nothing is resolved, built or run while it is installed.
LOCKED := $(PIP) --no-deps --require-hashes --only-binary :all: -r
# By version: a CPU build where the index has one, else one for CUDA with packages of its own. The rest is locked.
TORCH := torch==2.13.0
# What is imported is compiled then, and kept: a tenth of what is installed.
unexport PYTHONDONTWRITEBYTECODE
CODE := src tests benchmarks examples requirements docs/hooks.py docs/notebooks.py docs/images

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
	$(BIN)/pyright -p pyright.strict.json

format: $(VENV)/.dev
	$(BIN)/ruff check --fix-only --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

# The guide and the API reference, into site/index.html. Any broken link fails.
docs: $(VENV)/.dev
	$(BIN)/mkdocs build

bench: $(VENV)/.dev
	$(BIN)/lapae bench

# A stamp file per step, so that a second call does nothing.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.%: requirements/%.txt pyproject.toml | $(BIN)/python
	$(LOCKED) $<
	$(PIP) $(TORCH)
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $(VENV)/.run $@

clean:
	rm -rf $(VENV) site build dist *.egg-info src/*.egg-info .pytest_cache .ruff_cache
