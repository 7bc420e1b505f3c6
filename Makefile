# make demo      a real program in less than half of the memory it needs
# make test      what has to pass after each change
# make test-all  everything that has to pass: that, and parts of other projects' test suites
# make           ramfold and ramfold-bench
# make install   installs them, manual pages and completions, into PREFIX (/usr/local)

CARGO ?= cargo
PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Their tests are for an optimised build, and one at a time.
SLOW := ramfold ramfold-bench ramfold-torture

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
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	# As it is preloaded: otherwise much of it is not used.
	$(CARGO) clippy -p ramfold-pager --lib --features preload --quiet -- -D warnings
	scripts/deny
	scripts/links
	scripts/oldest-rust

test:
	scripts/setup test
	$(MAKE) lint
	$(CARGO) test --workspace $(patsubst %,--exclude %,$(SLOW))
	scripts/cross
	scripts/miri
	# Optimised fully, the targets take longer to build than they run here.
	CARGO_PROFILE_RELEASE_OPT_LEVEL=1 scripts/fuzz 3
	$(CARGO) test --profile tested $(patsubst %,-p %,$(SLOW)) -- --test-threads=1
	scripts/programs $(TARGET)/tested/ramfold --short

test-all:
	scripts/setup test-all
	$(MAKE) test
	scripts/hard-cap $(TARGET)/tested/ramfold --short
	scripts/suites $(TARGET)/tested/ramfold --short --jobs 2

# As root there is often no toolchain (sudo): what `make` built before is installed then.
install:
	@if command -v $(CARGO) >/dev/null; then $(MAKE) build; \
	elif [ ! -x $(TARGET)/release/ramfold ]; then echo "nothing is built yet: run make first" >&2; exit 1; fi
	install -D -m 0755 $(TARGET)/release/ramfold $(DESTDIR)$(PREFIX)/bin/ramfold
	install -D -m 0755 $(TARGET)/release/ramfold-bench $(DESTDIR)$(PREFIX)/bin/ramfold-bench
	$(TARGET)/release/ramfold manual $(DESTDIR)$(PREFIX)

clean:
	$(CARGO) clean
