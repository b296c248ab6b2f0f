# The front door. CMake presets do the work; each target sets up what it needs first.
.DEFAULT_GOAL := help
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
PREFIX ?= /usr/local
JOBS := $(shell nproc 2>/dev/null || echo 2)
BUILD := cmake --build build --parallel $(JOBS)

.PHONY: help demo build test bench bench-mpi microbench format lint install soak clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## build the command line and show ragged gathers and their gradients on 4 ranks
	@scripts/setup demo
	@scripts/configure
	@$(BUILD) --target tessera_cli
	@build/tessera demo

build: ## build the library, the command line and the examples (release)
	@scripts/setup build
	@scripts/configure examples
	@$(BUILD)

test: ## run every test: release, examples, an outside project, ASan and UBSan, TSan, fuzzing, the Python package, the model (STAGES="release asan" for some)
	@scripts/setup test
	@scripts/test $(STAGES)

soak: ## run the long versions of the tests: release, ASan and UBSan, TSan
	@scripts/setup test
	@scripts/test --soak $(STAGES)

bench: ## time every collective beside MPI, Gloo and memcpy; writes bench/results.md
	@scripts/setup bench
	@scripts/configure
	@$(BUILD) --target tessera_cli bench_players
	@scripts/bench

bench-mpi: ## time an all_gather between hosts beside the MPI that carries it; writes bench/results-mpi.md
	@scripts/setup bench
	@scripts/configure
	@$(BUILD) --target tessera_cli bench_players
	@scripts/bench mpi

microbench: ## time single calls beside their limit, on threads (ARGS="--benchmark_filter=Gather" to choose)
	@scripts/setup microbench
	@scripts/configure bench
	@$(BUILD) --target tessera_bench
	@build/tessera_bench $(ARGS)

format: ## lay out the sources with clang-format
	@scripts/setup format
	@scripts/format

lint: ## check the layout, and run clang-tidy on what changed (ALL=1 for every source)
	@scripts/setup lint
	@scripts/configure tests examples
	@scripts/format --check
	@scripts/lint $(if $(ALL),--all)

install: ## install the library and the command line (PREFIX=/usr/local)
	@scripts/setup build
	@scripts/configure
	@cmake build -DCMAKE_INSTALL_PREFIX="$(PREFIX)" >/dev/null
	@$(BUILD) --target tessera tessera_cli
	@cmake --install build --prefix "$(PREFIX)"

clean: ## remove what was built
	rm -rf build build-dev build-asan build-tsan build-pytorch
