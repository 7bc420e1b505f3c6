# make demo      a real program in less than half of the memory it needs
# make test      what has to pass after each change: 10 minutes on two cores, from nothing built
# make test-all  everything that has to pass: that, and what takes longer
# make           ramfold and ramfold-bench
# make install   installs them, manual pages and completions, into PREFIX (/usr/local)

CARGO ?= cargo
PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Their tests run optimised programs too.
PROGRAMS := ramfold ramfold-bench ramfold-torture
# What `make test` deals with.
MOST := --workspace --exclude ramfold-bench --exclude ramfold-torture

.PHONY: all build demo test test-all lint install clean

all: build

build:
	scripts/setup build
	$(CARGO) build --release -p ramfold -p ramfold-bench

demo:
	scripts/setup demo
	$(CARGO) build --release --quiet -p ramfold
	scripts/demo

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(MOST) --all-targets --quiet -- -D warnings
	scripts/links

test:
	scripts/setup test
	@echo "== make test: rustfmt, clippy, links of documents, and tests. Left to make test-all: tests"
	@echo "== that are 'ignored, slow', ramfold-bench, ramfold-torture, optimised programs, examples"
	@echo "== in documentation, dependencies, the oldest Rust, AArch64, Miri, fuzzing, and programs"
	@echo "== and test suites of other projects."
	$(MAKE) lint
	$(CARGO) test $(MOST) --tests

test-all: test
	scripts/setup test-all
	@echo "== licences, sources, versions and known vulnerabilities of dependencies"
	scripts/deny
	@echo "== clippy for ramfold-bench, ramfold-torture, and the agent as it is preloaded"
	$(CARGO) clippy -p ramfold-bench -p ramfold-torture --all-targets --quiet -- -D warnings
	$(CARGO) clippy -p ramfold-pager --lib --features preload --quiet -- -D warnings
	@echo "== the oldest Rust"
	scripts/oldest-rust
	@echo "== examples in documentation"
	$(CARGO) test $(MOST) --doc --quiet
	@echo "== tests of $(PROGRAMS), optimised; the slow ones one at a time"
	$(CARGO) test --profile tested $(patsubst %,-p %,$(PROGRAMS)) -- --skip in_guests::
	$(CARGO) test --profile tested $(patsubst %,-p %,$(PROGRAMS)) -- \
		--ignored --test-threads=1 --skip in_guests::
	@echo "== programs in guests, two at a time"
	# All packages again: for one by itself its dependencies would be built once more.
	$(CARGO) test --profile tested $(patsubst %,-p %,$(PROGRAMS)) --test block_guest in_guests:: \
		-- --include-ignored --test-threads=2
	@echo "== codecs on AArch64"
	scripts/cross
	@echo "== codecs under Miri"
	scripts/miri
	@echo "== fuzzing, 3 seconds for each target"
	# Optimised fully, the targets take longer to build than they run here.
	CARGO_PROFILE_RELEASE_OPT_LEVEL=1 scripts/fuzz 3
	@echo "== programs that trust their file system, on a mount"
	scripts/programs $(TARGET)/tested/ramfold --short
	@echo "== programs that grow fast, in control groups"
	scripts/hard-cap $(TARGET)/tested/ramfold --short
	@echo "== test suites of other projects"
	scripts/suites $(TARGET)/tested/ramfold --short --jobs 2

# As root there is often no toolchain (sudo): what `make` built before is installed then.
install:
	@if command -v $(CARGO) >/dev/null; then $(MAKE) build; \
	elif [ ! -x $(TARGET)/release/ramfold ]; then \
		echo "nothing is built yet: run make first" >&2; exit 1; \
	fi
	install -D -m 0755 $(TARGET)/release/ramfold $(DESTDIR)$(PREFIX)/bin/ramfold
	install -D -m 0755 $(TARGET)/release/ramfold-bench $(DESTDIR)$(PREFIX)/bin/ramfold-bench
	$(TARGET)/release/ramfold manual $(DESTDIR)$(PREFIX)

clean:
	$(CARGO) clean
