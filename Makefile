# Kombi's build. `make` makes dist/kombi, the one file; `make help` lists the rest.

.DEFAULT_GOAL := all
SHELL := /bin/sh
.DELETE_ON_ERROR:

# The one set of flags for every build, test and check: with any other set the
# compiler would build the 2,000 upstream packages again.
TAGS := netgo,osusergo,sqlite_omit_load_extension,grpcnotrace,no_btrfs,no_devmapper,no_zfs
export GOFLAGS := -buildvcs=false -trimpath -tags=$(TAGS)
# Go is often installed outside of root's PATH.
export PATH := $(PATH):/usr/local/go/bin

GO ?= go
# zstd level of the payload: quick here, the smallest file in `make dist`.
LEVEL ?= 9
MAX_MIB := 75

BUILD := build
DIST := dist
STATIC := -s -w -extldflags -static
# make evaluates this once, when a stamped program is linked.
STAMP = $(eval STAMP := $(shell scripts/ldflags.sh))$(STAMP)

# Programs in the payload. kombi is first: it takes longest to unpack.
PROGRAMS := kombi containerd-shim-runc-v2 runc kombi-cni crictl pause shim
PAYLOAD := $(PROGRAMS:%=$(BUILD)/%)

.PHONY: all
all: deps $(DIST)/kombi ## install what the build needs, then build dist/kombi (default)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: deps
deps: ## install the build's own packages (as root), or say what to install
	@scripts/deps.sh build

.PHONY: env
env: # for a shell: eval "$(make -s env)"
	@echo "export GOFLAGS='$(GOFLAGS)'"

# ---- the programs. Go's own cache decides what is to be done, so they are
# always asked for; files that did not change keep the next step from running.

.PHONY: FORCE
FORCE:

$(BUILD)/kombi: FORCE
	@scripts/build.sh $@ ./cmd/kombi "$(STATIC) $(STAMP)"

$(BUILD)/runc: FORCE
	@CGO_ENABLED=1 MODULE=tools/runc scripts/build.sh $@ github.com/opencontainers/runc "$(STATIC)" -tags=$(TAGS),seccomp

$(BUILD)/containerd-shim-runc-v2: FORCE
	@CGO_ENABLED=0 scripts/build.sh $@ github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2 "-s -w $(STAMP)"

$(BUILD)/kombi-cni: FORCE
	@CGO_ENABLED=0 scripts/build.sh $@ ./cmd/kombi-cni "-s -w $(STAMP)"

$(BUILD)/crictl: FORCE
	@scripts/build.sh $@ sigs.k8s.io/cri-tools/cmd/crictl "$(STATIC) $(STAMP)"

$(BUILD)/launcher: FORCE
	@CGO_ENABLED=0 scripts/build.sh $@ ./cmd/launcher "-s -w"

$(BUILD)/pack: FORCE
	@CGO_ENABLED=0 scripts/build.sh $@ ./scripts/pack "-s -w"

$(BUILD)/pause: cmd/pause/pause.c cmd/include/syscall.h
$(BUILD)/shim: cmd/shim/shim.c cmd/include/syscall.h
$(BUILD)/pause $(BUILD)/shim:
	@mkdir -p $(@D)
	$(CC) -Os -Wall -Wextra -Werror -static -nostdlib -ffreestanding -fno-stack-protector \
		-fno-asynchronous-unwind-tables -fno-pie -no-pie -Wl,--build-id=none -Wl,-z,noexecstack,-z,noseparate-code -s -o $@ $<
	@scripts/check-static.sh $@

$(DIST)/kombi: $(PAYLOAD) $(BUILD)/launcher $(BUILD)/pack Makefile
	@mkdir -p $(@D)
	@$(BUILD)/pack -o $@ -launcher $(BUILD)/launcher -level $(LEVEL) -limit $(MAX_MIB) -cache $(BUILD)/frames $(PAYLOAD)
	@scripts/check-static.sh $@

.PHONY: dist
dist: deps ## the release: dist/kombi at the highest compression, and dist/SHA256SUMS
	@$(MAKE) --no-print-directory -W Makefile LEVEL=19 $(DIST)/kombi
	@cp install.sh $(DIST)/install.sh
	@cd $(DIST) && sha256sum kombi install.sh > SHA256SUMS && cat SHA256SUMS

.PHONY: check-size
check-size: $(DIST)/kombi ## fail when dist/kombi is over its size limit or not static
	@scripts/check-size.sh $(DIST)/kombi $(MAX_MIB)
	@scripts/check-static.sh $(DIST)/kombi $(PAYLOAD)

# ---- generated code

.PHONY: generate
generate: ## generate committed code again (needs clang)
	@scripts/deps.sh generate
	@scripts/generate.sh

.PHONY: check-generate
check-generate: ## fail when committed generated code is not what `make generate` gives
	@scripts/deps.sh generate
	@scripts/check-generate.sh

# ---- checks

.PHONY: fmt
fmt: ## format all Go code
	@gofmt -w $$(scripts/gofiles.sh)

.PHONY: check-fmt
check-fmt: ## fail when a file is not formatted
	@bad=$$(gofmt -l $$(scripts/gofiles.sh)); [ -z "$$bad" ] || { echo "not formatted, run 'make fmt':"; echo "$$bad"; exit 1; }

.PHONY: vet
vet: ## go vet
	$(GO) vet ./...

.PHONY: lint
lint: ## golangci-lint, built from the module in tools/
	@scripts/lint.sh

.PHONY: check-arm64
check-arm64: ## compile the Go parts for arm64
	@scripts/check-arm64.sh

# ---- tests

# TESTFLAGS adds to go test: make test-unit TESTFLAGS='-run Prune ./pkg/payload'.
TESTFLAGS ?=

.PHONY: test
test: all ## all tests: unit, integration and end to end (installs what they need, as root)
	@scripts/deps.sh test
	@scripts/test.sh all $(TESTFLAGS)

.PHONY: test-unit
test-unit: ## the tests beside the code
	@scripts/test.sh unit $(TESTFLAGS)

.PHONY: test-e2e
test-e2e: all ## the tests below tests/, with dist/kombi
	@scripts/deps.sh test
	@scripts/test.sh e2e $(TESTFLAGS)

.PHONY: bench
bench: all ## measure start, memory, CPU and writes; compare with separate processes
	@scripts/deps.sh test
	@scripts/bench.sh

# The official suite; docs/conformance.md explains these.
FOCUS ?= \[Conformance\]
SKIP ?=
NODES ?= 1
PROCS ?= 4
TIMEOUT ?= 2h
.PHONY: conformance
conformance: export FOCUS := $(FOCUS)
conformance: export SKIP := $(SKIP)
conformance: all ## run specs of the official suite: FOCUS='regex' SKIP='regex' NODES=1
	@scripts/deps.sh test
	@scripts/build.sh $(BUILD)/conformance/conformance ./tests/conformance "$(STATIC)"
	@$(BUILD)/conformance/conformance --focus "$$FOCUS" --skip "$$SKIP" --nodes $(NODES) --procs $(PROCS) --timeout $(TIMEOUT)

# ---- this machine

.PHONY: install
install: ## build and install on this machine (root)
	@./install.sh

.PHONY: uninstall
uninstall: ## remove Kombi from this machine (root)
	@kombi uninstall

.PHONY: clean
clean: ## remove what the build made here; Go's cache stays
	rm -rf $(BUILD) $(DIST)
