# `make demo` shows it; `make test` runs what this machine can run without virtual machines.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
GO ?= go
# Committed objects are built by clang 14; others differ in bytes, not in meaning.
CLANG ?= $(shell command -v clang-14 || echo clang)
FUZZTIME ?= 60s
COUNT ?= 10
SOAK ?= 10m
SEED ?=
VERSION ?= $(shell sed -n 's/^const release = "\(.*\)"/\1/p' cmd/smcgw/version.go)
# make install puts everything below DESTDIR; make package calls it with PREFIX=/usr.
DESTDIR ?=
DIST ?= dist
HW ?= bin/smcgw-hw
PREFIX ?= /usr/local
# Of what packages contain: the same commit makes the same bytes.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH
# Versions of packages begin with a digit and have no dash.
PACKAGE_VERSION ?= $(subst -,.,$(patsubst v%,%,$(VERSION)))
export BPF2GO_CC = $(CLANG)
CC_ARM64 ?= aarch64-linux-gnu-gcc
MUSL_GCC ?= musl-gcc
export SMCGW_BINARY = $(CURDIR)/bin/smcgw

ROOT := $(filter 0,$(shell id -u))
GENERATED = $(shell git ls-files '*_bpfel.go' '*_bpfel.o')
# Those that take longest first: at the end nothing would run beside them.
LONG = $(addprefix github.com/smcgw/smcgw/,ebpf lab/bench gateway/internal/conn gateway/internal/carrier netstack)
UNIT = $(LONG) $(filter-out $(LONG),$(shell $(GO) list ./... | grep -v /tests/))
# Tests wait for clocks and kernels more than they compute: twice as many as two processors run at a time.
PACKAGES_AT_ONCE = $(shell n=$$(nproc); echo $$((n < 4 ? 4 : n)))

.PHONY: help all build build-hw lib generate docs check-generate test unit arch e2e faults-sample guests root fuzz vet lint deadcode cover bench bench-quick gobench faults repeat soak interop proof suites demo man install install-lib install-docs package image test-packaging install-test-deps install-hw-deps install-bench-deps install-suites-deps clean

all: build build-hw lint test

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 20

# With its symbols (no -s), so that perf can name functions of a gateway that runs.
build: ## bin/smcgw, static and without RDMA adapters (see build-hw), and bin/smcgw-lab
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-w -X main.version=$(VERSION)" -o bin/ ./cmd/smcgw ./cmd/smcgw-lab
	@if command -v $(CC) >/dev/null; then $(MAKE) --no-print-directory bin/libsmcgw.so bin/smcgw-load; else echo "NOT BUILT without $(CC): bin/libsmcgw.so, the library for programs of this host, and bin/smcgw-load, which smcgw bench starts with it"; fi

LIB_C = $(wildcard inprocess/lib/*.c)
LIB_FILES = $(LIB_C) $(wildcard inprocess/lib/*.h) Makefile
LIB_FLAGS = -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -ftls-model=initial-exec
LIB_GLIBC = -include inprocess/lib/glibc.h $(LIB_C)

lib: bin/libsmcgw.so bin/smcgw-load ## bin/libsmcgw.so, which programs of this host are started with; for musl, and for arm64, where there is a compiler
	@if command -v $(MUSL_GCC) >/dev/null; then $(MAKE) --no-print-directory bin/libsmcgw-musl.so; else echo "NOT BUILT without $(MUSL_GCC): bin/libsmcgw-musl.so"; fi
	@if command -v $(CC_ARM64) >/dev/null; then $(MAKE) --no-print-directory bin/arm64/libsmcgw.so; else echo "NOT BUILT without $(CC_ARM64): bin/arm64/libsmcgw.so"; fi

bin/libsmcgw.so: $(LIB_FILES)
	@mkdir -p $(@D)
	$(CC) $(LIB_FLAGS) -o $@ $(LIB_GLIBC)

bin/smcgw-load: cmd/smcgw/internal/bench/program/load.c Makefile
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o $@ $<

# Suites have every connection promoted, so each process asks with its first call.
bin/suites/libsmcgw.so: $(LIB_FILES)
	@mkdir -p $(@D)
	$(CC) $(LIB_FLAGS) -DFIRST_CALLS=1 -o $@ $(LIB_GLIBC)

bin/arm64/libsmcgw.so: $(LIB_FILES)
	@mkdir -p $(@D)
	$(CC_ARM64) $(LIB_FLAGS) -o $@ $(LIB_GLIBC)

# musl has no headers of the kernel, and takes the compiler's own place for them away.
bin/libsmcgw-musl.so: $(LIB_FILES)
	@mkdir -p $(@D)/kernel && ln -sfn /usr/include/linux /usr/include/asm-generic "$$(d=/usr/include/$$($(CC) -print-multiarch)/asm; [ -d "$$d" ] && echo "$$d" || echo /usr/include/asm)" $(@D)/kernel/
	$(MUSL_GCC) $(LIB_FLAGS) -isystem $(@D)/kernel -o $@ $(LIB_C)

# cgo binds libibverbs, which is loaded at run time: only libc is needed there. Names are
# resolved as the static program does it.
build-hw: install-hw-deps ## bin/smcgw-hw: bin/smcgw that drives RDMA adapters, too; needs a C compiler and libibverbs-dev, and libc where it runs
	CGO_ENABLED=1 $(GO) build -trimpath -tags hw,netgo,osusergo -ldflags "-w -X main.version=$(VERSION)+hw" -o $(HW) ./cmd/smcgw

generate: ## eBPF objects and other generated code; needs clang 14 and libbpf-dev of Debian 12
	$(GO) generate ./...

docs: ## the pages of docs/reference, from the tables in the code
	$(GO) test -count=1 -run '^TestReference$$' ./negotiate ./gateway/config ./gateway/page ./cmd/smcgw -update

check-generate: generate ## generated code is what is committed
	git diff --exit-code --stat -- $(GENERATED)

test: install-test-deps vet unit arch e2e ## everything but the matrix of faults and virtual machines
ifeq ($(ROOT),)
	@echo "NOT RUN without root: the namespaces suites (tests/e2e, tests/monitoring), the eBPF programs (ebpf), the simulated hosts"
	@echo "NOT RUN without root: (lab/testnet), and single tests of gateway and verbs/shm. Try: sudo make test"
endif

# Tests have the binding of libibverbs where its headers are.
HW_TAGS = $(if $(shell ls /usr/include/infiniband/verbs.h 2>/dev/null),-tags hw)

# The race detector has every program sleep for a second before it exits, for races of goroutines that still run: the tests, which start
# themselves as programs hundreds of times, look for these.
#
# One goroutine does all that the packages of UNRACED and their tests do: the race detector finds nothing there, and makes them eight times as
# long.
#
# go vet is a step of test, for all packages at once.
UNRACED = $(addprefix github.com/smcgw/smcgw/,gateway/config gateway/internal/flow inprocess/scan negotiate/between negotiate/resolve rsocket/internal/resolution verbs/soft)
# So it is with this one, which is explored whole: without -shuffle go test knows its result from before if nothing of it has changed.
MODEL = github.com/smcgw/smcgw/inprocess/internal/model
unit: build ## race detector, random order
	GORACE='atexit_sleep_ms=0 $(GORACE)' $(GO) test $(HW_TAGS) -race -vet=off -shuffle=on -p $(PACKAGES_AT_ONCE) -timeout 15m $(filter-out $(UNRACED) $(MODEL),$(UNIT))
	$(GO) test -vet=off -shuffle=on $(UNRACED)
	$(GO) test -vet=off $(MODEL)

arch: ## the rules of the code base
	$(GO) test -count=1 -vet=off ./tests/arch

# Tests of the matrix of faults, in which a run draws some cells from a seed. make faults runs every cell.
DRAWN = ^TestFault
e2e: build ## whole gateways, as root between network namespaces
	$(SEEDED) $(GO) test -count=1 -vet=off -parallel 4 -timeout 25m -skip '$(DRAWN)' ./tests/e2e/... ./tests/inprocess ./tests/soak ./tests/monitoring

faults-sample: build ## a sample of the matrix of faults: SEED=7 repeats one
	$(SEEDED) $(GO) test -count=1 -vet=off -parallel 4 -timeout 15m -run '$(DRAWN)' ./tests/e2e

guests: install-test-deps ## rdma_rxe and the programs of rdma-core in a virtual machine, a sample of interop; needs root
	$(GO) test -count=1 -vet=off -timeout 15m -skip '^TestPackage$$' ./tests/interop/...

root: build ## the packages with tests that need root
	SMCGW_REQUIRE=root,bpf $(GO) test -count=1 -timeout 20m ./lab/... ./ebpf ./gateway/... ./verbs/shm ./tests/e2e/... ./tests/soak

fuzz: ## every fuzz test for FUZZTIME
	for p in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	    echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p; done; done

vet: ## go vet
	$(GO) vet ./...
	$(GO) vet $(HW_TAGS) ./verbs/hw/...

lint: vet ## golangci-lint as in .golangci.yml
	if command -v golangci-lint >/dev/null; then golangci-lint run; \
	else $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run; fi

deadcode: ## functions that no program reaches, but for those in .ci/deadcode.doors
	GO='$(GO)' .ci/deadcode

cover: build ## dist/cover.html
	mkdir -p dist
	$(GO) test -coverpkg=./... -coverprofile dist/cover.out $(UNIT)
	$(GO) tool cover -html dist/cover.out -o dist/cover.html
	$(GO) tool cover -func dist/cover.out | tail -n 1

bench: build install-bench-deps ## the tables of docs/BENCHMARKS.md, and everything measured in dist, in 40 minutes; needs root
	mkdir -p dist
	bin/smcgw-lab bench --json --congestion-control cubic --budget 25m --profile dist/profile >dist/bench-cubic.json
	bin/smcgw-lab bench --json --congestion-control bbr --budget 12m >dist/bench-bbr.json
	bin/smcgw-lab bench --page docs/BENCHMARKS.md dist/bench-cubic.json dist/bench-bbr.json

bench-quick: build install-bench-deps ## ratios of the aims in 10 minutes, with cubic and bbr; the last line is JSON; needs root
	bin/smcgw-lab bench --quick --ratios

gobench: ## Go benchmarks of every package
	$(GO) test -run '^$$' -bench . -benchmem ./...

# Tests with one of these words in their names are about faults, or draw a part of what they do.
FAULTS = Fault|Flood|BlackHole|Silence|Remembered|Kinds|Legs|Keeper|OverSoft|Dies|Dead|Death|Kill|Hostile|Loss|Lost|Box|Fallback|Broken|Stall|Fuzz|UnderLoad
# What a run with a seed passes on: SEED=7 repeats it.
SEEDED = $(if $(SEED),SMCGW_SEED=$(SEED))

faults: build install-test-deps ## the whole matrix of faults; all of what it says is in dist/faults.log
	mkdir -p dist
	$(SEEDED) SMCGW_FAULTS=all SMCGW_DATAGRAMS=all $(GO) test -p 1 -count=1 -v -timeout 0 -run '$(FAULTS)' ./tests/e2e/... $(UNIT) 2>&1 | \
	  tee dist/faults.log | grep --line-buffered -aE '^(ok|FAIL|panic|--- (FAIL|SKIP)|[[:space:]]+--- (FAIL|SKIP))|SMCGW_SEED=|flows=[0-9]+ '

repeat: build ## the whole end-to-end suite, COUNT times, by every carrier
	SMCGW_DATAGRAMS=all $(GO) test -count=$(COUNT) -shuffle=on -timeout 0 ./tests/e2e/...
	SMCGW_DATAGRAMS=all SMCGW_CARRIER=soft $(GO) test -count=$(COUNT) -shuffle=on -timeout 0 -skip 'TestOverSoft' ./tests/e2e

# PROOF is for how long each of it runs. In make test the model has 30 seconds, and sanitizers have 10.
PROOF = 10m
proof: lib ## the libraries against a model at random, and under sanitizers, for PROOF each
	$(SEEDED) SMCGW_INPROCESS=$(PROOF) $(GO) test -count=1 -v -timeout 0 -run '^(TestModel|TestCrowd|TestCrowdSanitized|TestSanitizers)$$' ./tests/inprocess
	$(SEEDED) $(GO) test -count=1 -v -timeout 0 ./tests/inprocess/between

soak: build install-test-deps ## applications and faults from a seed for ten minutes, every byte checked: SOAK=60s SEED=7; needs root
	@$(GO) build -o bin/soak ./tests/soak
	@bin/soak -for $(SOAK) $(if $(SEED),-seed $(SEED))

interop: ## byte formats against the vectors of other implementations, and all of rdma-core with two kernels
	$(GO) test -count=1 -v -run 'Vector|Interop|Golden' ./negotiate ./rsocket ./verbs/...
	SMCGW_INTEROP=all $(GO) test -count=1 -v -timeout 180m ./tests/interop/...

# What they need: a program or file = the Debian package that has it.
SUITES_NEEDS = /usr/bin/python3.11=python3.11 /usr/lib/python3.11/test/test_socket.py=libpython3.11-testsuite gcc=gcc \
  redis-server=redis-server redis-cli=redis-tools tclsh8.6=tcl8.6 dpkg-source=dpkg-dev \
  /usr/lib/postgresql/15/bin/postgres=postgresql-15 /usr/lib/postgresql/15/lib/pgxs/src/test/regress/pg_regress=postgresql-client-15 \
  /usr/include/postgresql/15/server/postgres.h=postgresql-server-dev-15 \
  nginx=nginx-light /usr/sbin/apache2=apache2-bin curl=curl openssl=openssl sshd=openssh-server /usr/lib/openssh/sftp-server=openssh-sftp-server \
  ssh=openssh-client rsync=rsync memcached=memcached memccapable=libmemcached-tools mariadbd=mariadb-server mysqlslap=mariadb-client \
  mariadb-test=mariadb-test /usr/share/mysql/mysql-test/main/select.test=mariadb-test-data \
  javac=openjdk-17-jdk-headless node=nodejs stress-ng=stress-ng

suites: install-suites-deps ## suites of CPython, Redis, PostgreSQL and others with the library and natively: SUITES=python/; needs root
	SMCGW_SUITES=all $(GO) test -count=1 -v -timeout 24h -run '/$(SUITES)' ./tests/suites

demo: build ## programs of this host promoted; as root then four hosts, three gateways, ordinary programs
	if [ -n "$(ROOT)" ] || ! sudo -n true 2>/dev/null; then bin/smcgw-lab demo; else sudo -n bin/smcgw-lab demo; fi

# The pages are written by a test, which has man(1) look at them.
man: ## dist/man, the manual pages
	rm -rf $(DIST)/man && mkdir -p $(DIST)/man
	$(GO) test -count=1 -run '^TestManPages$$' ./cmd/smcgw -man '$(abspath $(DIST)/man)'

# Below /usr the zsh of Debian reads vendor-completions, that of others site-functions.
install: build-hw man ## the program with RDMA adapters, the library, unit, manual pages, completions and documents below DESTDIR and PREFIX (/usr/local)
	install -D -m 755 $(HW) '$(DESTDIR)$(PREFIX)/bin/smcgw'
	$(MAKE) --no-print-directory install-lib
	sed 's|"hostPath": "/usr/|"hostPath": "$(PREFIX)/|' packaging/cdi/smcgw.json | install -D -m 644 /dev/stdin '$(DESTDIR)/etc/cdi/smcgw.json'
	for unit in smcgw.service; do sed -E 's,/usr/(bin|share)/,$(PREFIX)/\1/,' packaging/systemd/$$unit | install -D -m 644 /dev/stdin '$(DESTDIR)$(PREFIX)/lib/systemd/system/'$$unit; done
	install -D -m 644 packaging/systemd/smcgw.sysusers.conf '$(DESTDIR)$(PREFIX)/lib/sysusers.d/smcgw.conf'
	install -D -m 644 packaging/systemd/smcgw.tmpfiles.conf '$(DESTDIR)$(PREFIX)/lib/tmpfiles.d/smcgw.conf'
	for page in $(DIST)/man/*.1; do gzip -9nc "$$page" | install -D -m 644 /dev/stdin '$(DESTDIR)$(PREFIX)/share/man/man1/'"$${page##*/}.gz"; done
	$(HW) completion bash | install -D -m 644 /dev/stdin '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/smcgw'
	for dir in site-functions vendor-completions; do $(HW) completion zsh | install -D -m 644 /dev/stdin '$(DESTDIR)$(PREFIX)/share/zsh/'$$dir/_smcgw; done
	$(HW) completion fish | install -D -m 644 /dev/stdin '$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/smcgw.fish'
	$(MAKE) --no-print-directory install-docs
	[ -e '$(DESTDIR)/etc/smcgw/smcgw.yaml' ] || sed 's|/usr/share/|$(PREFIX)/share/|' packaging/smcgw.yaml | install -D -m 644 /dev/stdin '$(DESTDIR)/etc/smcgw/smcgw.yaml'

# Links between the documents hold there, too: tests/arch looks at them.
# Containers of either libc are told of $$LIB/libsmcgw.so: glibc puts the directory of its libraries for the variable, which its
# builds call differently, and musl takes it as a name.
install-lib: LIBDIR = $(DESTDIR)$(PREFIX)/lib/smcgw
install-lib: lib ## the library below DESTDIR and PREFIX
	for lib in bin/libsmcgw.so bin/libsmcgw-musl.so; do [ ! -e $$lib ] || install -D -m 644 $$lib "$(LIBDIR)/$${lib##*/}"; done
	install -D -m 755 bin/smcgw-load "$(LIBDIR)/smcgw-load"
	for dir in lib lib64 "lib/$$($(CC) -print-multiarch)"; do mkdir -p "$(LIBDIR)/$$dir" && ln -sfnr '$(LIBDIR)/libsmcgw.so' "$(LIBDIR)/$$dir/libsmcgw.so"; done
	if [ -e '$(LIBDIR)/libsmcgw-musl.so' ]; then mkdir -p '$(LIBDIR)/$$LIB' && ln -sfnr '$(LIBDIR)/libsmcgw-musl.so' '$(LIBDIR)/$$LIB/libsmcgw.so'; fi

install-docs: DOCDIR = $(DESTDIR)$(PREFIX)/share/doc/smcgw
install-docs: ## the documents, alert rules, the dashboard and the chart below DESTDIR and PREFIX
	mkdir -p '$(DOCDIR)'
	cp -r --no-preserve=mode,ownership README.md CHANGELOG.md CONTRIBUTING.md LICENSE packaging/prometheus packaging/grafana '$(DOCDIR)/'
	mkdir -p '$(DOCDIR)/kubernetes'
	cp -r --no-preserve=mode,ownership packaging/kubernetes/chart packaging/kubernetes/examples '$(DOCDIR)/kubernetes/'
	cp -r --no-preserve=mode,ownership docs/*.md docs/operations docs/reference docs/design docs/protocol '$(DOCDIR)/'
	sed -i 's|](docs/|](|g' '$(DOCDIR)/README.md' '$(DOCDIR)/CHANGELOG.md' '$(DOCDIR)/CONTRIBUTING.md'
	install -D -m 644 LICENSE '$(DOCDIR)/copyright'

# The program needs the libc it was linked with, or a later one.
package: ## dist/*.deb and dist/*.rpm
	rm -rf $(DIST)/root $(DIST)/*.deb $(DIST)/*.rpm
	$(MAKE) --no-print-directory install DESTDIR='$(abspath $(DIST)/root)' PREFIX=/usr
	find '$(DIST)/root' -exec touch -h -d @$(SOURCE_DATE_EPOCH) {} +
	export DIST='$(DIST)' PACKAGE_VERSION='$(PACKAGE_VERSION)' PACKAGE_ARCH="$$($(GO) env GOARCH)" \
	  SOURCE_DATE="$$(date -u -d @$(SOURCE_DATE_EPOCH) +%FT%TZ)" \
	  GLIBC="$$(grep -aoE 'GLIBC_2\.[0-9]+' $(HW) | sort -uV | tail -n 1 | cut -d_ -f2)"; \
	for kind in deb rpm; do $(GO) tool -modfile=packaging/tools/go.mod nfpm package -f packaging/nfpm.yaml -p $$kind -t '$(DIST)/'; done

# The packages are installed in a Debian with systemd, in namespaces; the chart is checked by the libraries of Helm and Kubernetes, in modules of their own.
test-packaging: build ## packages on a Debian with systemd, the container image, and the chart against the API of Kubernetes
	cd packaging/tools && $(GO) test -count=1 ./...
	cd packaging/kubernetes && $(GO) test -count=1 ./...
	$(GO) test -count=1 -timeout 25m -run '^TestPackage$$' ./tests/interop

image: build ## dist/smcgw-image.tar, a container image of the static program for podman load, docker load, skopeo
	mkdir -p $(DIST)
	$(GO) run -C packaging/tools ./image -program '$(CURDIR)/bin/smcgw' -config '$(CURDIR)/packaging/smcgw.yaml' -tag 'localhost/smcgw:$(subst /,-,$(VERSION))' -out '$(abspath $(DIST))/smcgw-image.tar'

install-test-deps: ## programs the tests run, from Debian's packages; needs root
	@.ci/install-test-deps

install-hw-deps: ## what build-hw needs, from Debian's packages; needs root
	@SMCGW_NEEDS="gcc=gcc /usr/include/stdlib.h=libc6-dev /usr/include/infiniband/verbs.h=libibverbs-dev" .ci/install-test-deps

install-bench-deps: ## programs the comparisons run besides; needs root
	@.ci/install-bench-deps

install-suites-deps: ## programs and suites that `make suites` runs; needs root
	@SMCGW_NEEDS='$(SUITES_NEEDS)' .ci/install-test-deps

clean: ## results of builds
	rm -rf bin dist
	$(GO) clean -testcache
