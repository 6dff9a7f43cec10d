# `make` alone lists the targets.

FUZZTIME ?= 20s

# Tests that need what set-up brings fail without it instead of being skipped.
MLRBFN_REQUIRE ?= setup,python
export MLRBFN_REQUIRE

.PHONY: help setup build test emulated lint race demo bench fuzz export-check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s%s\n", $$1, $$2 }' Makefile

setup:  ## bring onnxruntime, Python packages and the default backbone (once)
	@scripts/setup

build:  ## build the programs into bin/ (needs Go and gcc, nothing else)
	go build -o bin/ ./cmd/...

test: setup lint  ## check the sources and run the tests
	go test ./...
	go test -tags noasm ./head ./internal/kernels ./internal/symmetric ./posthoc ./internal/jpeg ./extractor/preprocess
	@$(MAKE) --no-print-directory emulated

# The sets of kernels are named, as under QEMU a test cannot start the program anew
# with another one.
emulated:  ## run the short tests of the training kernels on an emulated arm64
	@emulator=$$(command -v qemu-aarch64-static || command -v qemu-aarch64) || \
	  { echo 'qemu-aarch64 is not installed: the tests on an emulated arm64 are skipped'; exit 0; }; \
	export GOARCH=arm64 CGO_ENABLED=0; set -ex; \
	MLRBFN_KERNELS=neon go test -short -run ^Test -skip '^Test(ScoreAll|OpenOOD)$$' -exec "$$emulator" \
	  ./internal/kernels ./internal/symmetric ./conditioning ./head ./posthoc; \
	MLRBFN_KERNELS=go go test -short -run ^TestGolden -exec "$$emulator" ./head

lint:
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	GOARCH=arm64 go vet ./internal/kernels
	go tool staticcheck ./...

race: setup  ## run the short tests under the race detector
	go test -race -short ./...

demo:  ## run the whole chain on real images, in under three minutes
	@scripts/demo

bench: setup  ## run the benchmarks
	go test -run '^$$' -bench . -benchmem ./...

fuzz: setup  ## run each fuzz target for FUZZTIME
	@set -e; for package in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
	  done; \
	done

# No part of CI, which must do without PyTorch: its packages are gigabytes, and
# all exports take half an hour of processor time. For a nightly run, and after changes to the
# exporters, the preprocessing or what models are accepted; EXPORTS=short takes the
# smallest of each library.
EXPORTS ?= all
export-check: setup  ## export CLIP, DINOv2, ResNet and others with random weights and prove it
	@scripts/export_model --self-test $(EXPORTS)

clean:  ## remove what set-up, building and the demonstration made
	rm -rf .setup bin demo models/efficientnet-lite0/model.onnx
