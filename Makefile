# `make` alone lists the targets.

FUZZTIME ?= 20s

# Tests that need what set-up brings fail without it instead of being skipped.
MLRBFN_REQUIRE ?= setup,python
export MLRBFN_REQUIRE

.PHONY: help setup build test test-all counted emulated lint race demo bench fuzz vulnerabilities export-check python test-python wheels container deb release store clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s%s\n", $$1, $$2 }' Makefile

setup:  ## bring onnxruntime, Python packages and the default backbone (once)
	@scripts/setup

build:  ## build the program into bin/ (needs Go and gcc, nothing else)
	@echo 'building bin/mlrbfn, the first time in some minutes; extract, train and detect are links to it'
	@go build -o bin/ ./cmd/mlrbfn && cd bin && for name in extract train detect; do ln -sf mlrbfn $$name; done

# Counts the tests that ran and those that were skipped, over all runs.
count = $(CURDIR)/.setup/counted $(CURDIR)/.setup/counts

# Tests link in half the time without debugging tables, and lint has vetted them.
quick = -vet=off -ldflags=-w

# All runs take place, even if one fails. scripts/ is a module of its own.
test: lint counted  ## check the sources and run the tests, in three minutes
	@echo 'building and running the tests of all packages: each says when it is done'; \
	rm -f .setup/counts; status=0; \
	$(count) go test $(quick) -short ./... || status=1; \
	(cd scripts && $(count) go test $(quick) -short ./...) || status=1; \
	$(count); exit $$status

test-all: lint counted  ## run all tests: also kills by the hundred, hostile files, other kernels, emulators
	@echo 'building and running all tests: each package says when it is done'; \
	rm -f .setup/counts; status=0; \
	$(count) go test $(quick) -timeout 30m ./... || status=1; \
	(cd scripts && $(count) go test $(quick) ./...) || status=1; \
	echo 'the tests of what has assembly, without it:'; \
	$(count) go test $(quick) -tags noasm ./head/... ./internal/kernels ./internal/linalg ./posthoc ./internal/jpeg ./extractor/preprocess || status=1; \
	$(MAKE) --no-print-directory emulated || status=1; \
	$(count); exit $$status

counted:
	@mkdir -p .setup
	@go -C scripts build -o ../.setup/counted ./counted

# The kernels are named, because under QEMU a test cannot start the program again
# with other kernels. What calls onnxruntime runs on an emulated Haswell, which has
# AVX2 and lacks VNNI. Our own kernels run without assembly there, because QEMU 7.2
# emulates AVX2 with faults. Only graphs of a few operations are fast enough, and
# TestScoreAll and TestOpenOOD are too slow.
emulated: counted  ## run short tests on an emulated arm64 and an emulated Haswell
	@status=0; \
	if emulator=$$(command -v qemu-aarch64-static || command -v qemu-aarch64); then \
	  echo 'on an emulated arm64:'; \
	  export GOARCH=arm64 CGO_ENABLED=0; \
	  MLRBFN_KERNELS=neon $(count) go test $(quick) -short -run ^Test -skip '^Test(ScoreAll|OpenOOD)$$' -exec "$$emulator" \
	    ./internal/kernels ./internal/linalg ./head/... ./posthoc || status=1; \
	  MLRBFN_KERNELS=go $(count) go test $(quick) -short -run ^TestGolden -exec "$$emulator" ./head/... || status=1; \
	  unset GOARCH CGO_ENABLED; \
	else \
	  $(count) missing 'the tests on an emulated arm64, as qemu-aarch64 is not installed (Debian: qemu-user)'; \
	fi; \
	if [ "$$(go env GOHOSTARCH)" != amd64 ]; then \
	  $(count) missing 'the tests on an emulated Haswell, as this machine is not x86-64'; \
	elif emulator=$$(command -v qemu-x86_64-static || command -v qemu-x86_64); then \
	  echo 'on an emulated Haswell:'; \
	  MLRBFN_KERNELS=go $(count) go test $(quick) -tags noasm -short -timeout 5m -exec "$$emulator -cpu Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-rtm,-invpcid" \
	    -run '^Test(Exports|OpenModel|ExtractBoundsBatches|ExtractNames|BatchesThatMix|Fingerprint|Products|Probe)' \
	    -skip 'TestBatchesThatMixImagesAreNotMade/dynamically_quantised' ./extractor || status=1; \
	else \
	  $(count) missing 'the tests on an emulated Haswell, as qemu-x86_64 is not installed (Debian: qemu-user)'; \
	fi; exit $$status

# Names in the sources that codespell takes for mistakes.
spelt = fpr,atleast,atmost,paeth,plantext,testin,trian,openin,teachin,headerr,caf,eachother

lint: setup  ## check formatting, spelling and the sources
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go -C scripts vet ./...
	GOARCH=arm64 go vet ./internal/kernels
	@echo 'building staticcheck'
	@go build -o .setup/staticcheck honnef.co/go/tools/cmd/staticcheck
	.setup/staticcheck ./...
	cd scripts && ../.setup/staticcheck ./...
	git ls-files '*.go' '*.md' '*.py' | xargs env PYTHONPATH=.setup/python python3 -m codespell_lib --ignore-words-list $(spelt) --ignore-regex "want's"

race: setup  ## run the short tests under the race detector
	go test $(quick) -race -short ./...

store: setup  ## bring an object store and test buckets and tars against it
	@scripts/store
	MLRBFN_REQUIRE=setup,python,store go test $(quick) -count 1 ./images ./pipeline
	MLRBFN_REQUIRE=store go test $(quick) -count 1 -run InBucket ./features ./internal/parts ./internal/command ./pipeline

demo: setup build  ## run the whole chain on real images, in under three minutes
	@bin/mlrbfn demo --out demo

bench: setup  ## run the benchmarks
	go test -run '^$$' -bench . -benchmem ./...

python:  ## build the Python package's shared library and program into python/
	scripts/test_python build

test-python: setup  ## test the Python package, with scikit-learn's own checks
	scripts/test_python

wheels: setup  ## make the Python wheels of four platforms in dist/ and try this machine's in a fresh environment
	@python3 scripts/fetch.py packages --requirements scripts/requirements-wheels.txt --into .setup/wheel-tools --dependencies
	@rm -rf dist
	PYTHONPATH=.setup/wheel-tools python3 scripts/wheels.py --into dist $(if $(WHEELS),--only $(WHEELS))
	PYTHONPATH=.setup/wheel-tools python3 -m twine check --strict dist/*.whl
	PYTHONPATH=.setup/wheel-tools python3 -m check_wheel_contents dist/*.whl
	@if [ -e dist/mlrbfn-*_$$(uname -m).whl ]; then scripts/test_wheel dist/mlrbfn-*_$$(uname -m).whl; fi

container: setup  ## build the container image with buildah, and try it
	@scripts/container

deb: setup  ## make the .deb in dist/, and try it in a clean Debian
	scripts/run stage --into .setup/stage
	@scripts/deb .setup/stage dist
	@scripts/test_deb "dist/mlrbfn_$$(cat internal/version/VERSION)-1_$$(go env GOARCH).deb"

release: setup  ## make wheels, archives, .deb and image with checksums, SBOM and changes in dist/
	@scripts/release

# With the database on the network, or else a version of it that is pinned.
vulnerabilities:  ## look for known vulnerabilities in what the programs call
	@scripts/vulnerabilities

# Elsewhere property tests draw the same cases in every run (internal/testenv).
fuzz: setup  ## draw other cases for property tests, then run each fuzz target for FUZZTIME
	go test -short -count 1 $$(go list -f '{{range .TestImports}}{{if eq . "pgregory.net/rapid"}}{{$$.ImportPath}}{{end}}{{end}}{{range .XTestImports}}{{if eq . "pgregory.net/rapid"}}{{$$.ImportPath}}{{end}}{{end}}' ./...) -rapid.seed 0
	@set -e; for package in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
	  done; \
	done

# This is not part of CI: PyTorch takes gigabytes, and all exports take half an hour
# of processor time. Run it every night, and after changes to the exporters, the
# preprocessing or the models that are accepted. EXPORTS=short takes the smallest
# model of each library.
EXPORTS ?= all
export-check: setup  ## export CLIP, DINOv2, ResNet and others with random weights and prove it
	@scripts/export_model --self-test $(EXPORTS)

clean:  ## remove what set-up, building and the demonstration made
	rm -rf .setup bin demo dist python/bin python/mlrbfn/libmlrbfn.* models/efficientnet-lite0/model.onnx
