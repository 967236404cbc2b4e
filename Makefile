PROFILE ?= tiny
SEEDS ?= 5
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
ONLY ?=
ARMS ?=
BIN := .venv/bin
ASKED = --profile $(PROFILE) --seeds $(SEEDS) --jobs $(JOBS) $(if $(ONLY),--only $(ONLY)) $(EXTRA)
EXTRA = $(if $(ARMS),$(if $(filter-out all,$(ARMS)),$(error ARMS=$(ARMS): write ARMS=all, or nothing),--extra-arms))

.DEFAULT_GOAL := help
.PHONY: help setup reproduce status smoke test figures lab clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

setup: ## build or update .venv from the locks (PYTHON=path of a Python 3.11 or 3.12)
	@bash scripts/setup.sh

reproduce: setup ## run the notebooks of PROFILE=tiny for SEEDS=5, JOBS side by side (ONLY=part of a notebook's name; ARMS=all: the arms the paper lacks, too)
	@$(BIN)/rc reproduce $(ASKED)

status: setup ## say of each notebook whether reproduce would run it, why, and how long it takes (same variables)
	@$(BIN)/rc status $(ASKED)

smoke: setup ## run every notebook from scratch, a few steps each (minutes)
	@rm -rf runs/smoke
	@$(BIN)/rc reproduce --profile smoke --seeds 1 --jobs $(JOBS) --also 05_pretrain_tiny_base

test: setup ## lint, unit tests, doctests and every notebook at smoke
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/pytest

figures: setup ## rebuild the committed tables and figures from the records, without training
	@$(BIN)/rc figures --profile $(PROFILE)

lab: setup ## open JupyterLab on the notebooks
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

clean: ## remove runs/ (checkpoints, executed notebooks) and caches; keeps .venv and committed results
	rm -rf runs .pytest_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
