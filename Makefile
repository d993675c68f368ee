# `make` alone lists the targets. `make run` and `make test` each set everything up first.

.DEFAULT_GOAL := help

EXTRAS := dev
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready-$(EXTRAS)
PYTHONS := $(PYTHON) python3.11 python3 python3.12 python3.13

say = @printf '\n==> %s\n'

.PHONY: help setup run test lint style types imports unit format reproduce bench soak lock clean

help:
	@echo 'make run      the whole story: contracts, private training, ledger, audit, a report page'
	@echo 'make test     everything that must hold: style, types, import contracts, tests, doctests'
	@echo 'make lint     the quick half of make test: style, types, import contracts'
	@echo 'make format   rewrite the code in the house style'
	@echo 'make reproduce  draw the figures, tables and page of the paper from the stored results'
	@echo 'make bench    timings against other ways of computing the same'
	@echo 'make soak     kill training and clients hundreds of times, resume them (results in results/soak/); larger searches'
	@echo 'make lock     write the lock files of deployments: versions and hashes of all that campaigns need'
	@echo 'make setup    only build the virtual environment $(VENV)'
	@echo 'make clean    remove $(VENV), caches and out/'
	@echo
	@echo 'Each target sets up what it needs. Python 3.11 or newer must be there; name one with PYTHON=/path/to/python.'

# The stamp goes first and comes back last: after an interruption the environment is built afresh, never reused half-made.
$(READY): pyproject.toml constraints.txt
	@python=; for p in $(PYTHONS); do \
	  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { python=$$p; break; }; \
	done; \
	if [ -z "$$python" ]; then \
	  echo 'jsam needs Python 3.11 or newer and found none: install it, or name it, as in make PYTHON=/path/to/python3.11' >&2; \
	  exit 1; \
	fi; \
	if ls $(VENV)/ready-* >/dev/null 2>&1 && $(BIN)/python -c '' 2>/dev/null; then \
	  printf '\n==> %s\n' 'Updating the virtual environment $(VENV): its pins have changed'; \
	  rm -f $(VENV)/ready-*; \
	else \
	  printf '\n==> %s\n' "Making the virtual environment $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv --clear $(VENV); \
	fi
	$(say) 'Installing jsam-fl[$(EXTRAS)] with the versions of constraints.txt (a minute or two, this once)'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

setup: $(READY)

run: $(READY)
	$(say) 'The whole story: contracts for 100 clients, private training under them, the ledger and its audit'
	@$(BIN)/jsam demo

test: lint unit
	$(say) 'All checks passed'

lint: style types imports

style: $(READY)
	$(say) 'Style (ruff)'
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(READY)
	$(say) 'Types (mypy --strict)'
	@$(BIN)/mypy

imports: $(READY)
	$(say) 'Import contracts (import-linter)'
	@PYTHONPATH=. $(BIN)/lint-imports --no-logo

# One BLAS thread a worker, or the workers fight over the cores. Bytecode is kept, or each of the many processes that
# tests start compiles jsam again.
unit: $(READY)
	$(say) 'Tests and doctests (pytest, $(WORKERS) at a time)'
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist worksteal

format: $(READY)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

reproduce: $(READY)
	$(say) 'Figures, tables and the page of the paper, from the stored results (python -m reproduction run makes new ones)'
	@$(BIN)/python -m reproduction render

bench: $(READY)
	$(say) 'Timings (correctness is the business of make test)'
	@$(BIN)/python -m benchmarks
	@$(BIN)/python -m benchmarks.training_cpu
	@$(BIN)/python -m benchmarks.sums
	@$(BIN)/python -m benchmarks.sensitivity
	@$(BIN)/python -m benchmarks.flower_campaign
	@$(BIN)/python -m benchmarks.flower_end_to_end
	@$(BIN)/python -m benchmarks.reply_times

soak: $(READY)
	$(say) 'Optimality, payments under caps and truthfulness, on all instances'
	@JSAM_FULL=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -q \
	  tests/mechanism/test_allocation.py tests/mechanism/test_payments_caps.py tests/mechanism/test_truthfulness.py
	$(say) 'Killing training at random moments and resuming it, 100 times'
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak.kill_and_resume --kills 100
	$(say) "Killing a client that answers at random moments, 500 times"
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak.client_ledger_kills --kills 500
	$(say) "Killing clients and the server of a real federation at random moments, 50 times"
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak.federation_kills --kills 50 --server-kills 5

lock: $(READY)
	$(say) 'Lock files of jsam-fl[flower] from the versions of constraints.txt (this asks the package index)'
	@$(BIN)/python .ci/lock.py

clean:
	rm -rf $(VENV) out build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
