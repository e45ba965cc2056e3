# Thin: every target is one command. `make` alone lists them.
STACK ?= cu121
BASE ?= debian
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: image
image: tools host-tools ## compose the default stack (STACK=cu121, BASE=debian, PYTHON_TREE=) into dist/, and start it
	$(BIN)/verlstack build $(STACK) --base $(BASE) $(if $(PYTHON_TREE),--python-tree $(PYTHON_TREE))
	$(BIN)/verlstack prove $(STACK)

.PHONY: smoke
smoke: tools ## run the smoke tests inside the image of STACK that `make image` made (GPUS=all on GPUs)
	$(BIN)/nox -s smoke -- $(STACK) $(if $(GPUS),--gpus $(GPUS))

.PHONY: test
test: tools host-tools ## everything that proves the main things in minutes
	$(BIN)/nox -s lint types unit integration

.PHONY: test-full
test-full: tools host-tools ## the real default stack, twice, and in a real engine
	$(BIN)/nox -s full

.PHONY: lock
lock: tools ## renew the lock of STACK after a change in constraints/stacks.toml
	$(BIN)/verlstack lock $(STACK)

.PHONY: lock-tools
lock-tools: tools ## renew constraints/tools.txt from tools.in
	$(BIN)/uv pip compile constraints/tools.in --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-header --upgrade --quiet -o constraints/tools.txt

.PHONY: bench
bench: tools host-tools ## compare with a plain BuildKit build of the same closure (needs root, 30 GB, 13 minutes)
	$(BIN)/python benchmarks/compose_vs_buildkit.py

.PHONY: engine
engine: ## start a private Docker engine on Debian 12 or 13 (root); it says how to use it
	docker/engine.sh start

.PHONY: engine-stop
engine-stop: ## stop it; its images stay in /var/lib/verlstack-engine
	docker/engine.sh stop

.PHONY: tools
tools: .venv/ready ## .venv with the tools of constraints/tools.txt

.venv/ready: constraints/tools.txt pyproject.toml docker/tools.sh
	docker/tools.sh

.PHONY: host-tools
host-tools: ## Debian packages that the base bootstrap needs
	@docker/host-tools.sh >/dev/null

.PHONY: clean
clean: ## remove dist/ and .venv; the cache stays (~/.cache/verlstack)
	rm -rf dist .venv .nox
