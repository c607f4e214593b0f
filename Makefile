# Everything that a contributor or a CI runs. `make` alone lists the targets.

# A program under the race detector sleeps for a second at its end, for races that its last goroutines may still have. Ours
# waits for its goroutines.
export GORACE ?= atexit_sleep_ms=0

# The race detector needs a C compiler. Without one the tests run without it, and say so.
RACE ?= $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)
RACE := $(RACE)

# What make test and make test-long build without it is built as the Dockerfile of contrib/rls does it, whose program a test
# needs: so each package is compiled in one way less. The race detector needs cgo.
test test-long: export CGO_ENABLED := 0
test test-long: export GOFLAGS := $(shell go env GOFLAGS) -trimpath
RACING := $(if $(RACE),CGO_ENABLED=1)

# The tests of rapid draw the same each time, so that a commit is green or red whoever runs it. 0 draws at random, as go test
# alone does and `make hunt`.
export RAPID_SEED ?= 1

# Ten times what the slowest package takes on a quiet machine. go test ends a package after ten minutes otherwise, whose machine may
# only be busy.
TIMEOUT := 30m

# Install what tests start, if it is missing.
REDIS := sh scripts/install-redis.sh
CHROMIUM := sh scripts/install-chromium.sh
PROMETHEUS := sh scripts/install-prometheus.sh

# The Envoy of contrib/rls' tests, which make test-long fetches. make test-long TIERED_TEST_ENVOY= goes without one.
TIERED_TEST_ENVOY ?= $(CURDIR)/build/envoy
ENVOY := sh scripts/install-envoy.sh "$(TIERED_TEST_ENVOY)"

# The oldest and the newest redis-server and a Valkey, which make test-long fetches. make test-long TIERED_TEST_REDIS= goes without them.
TIERED_TEST_REDIS ?= $(CURDIR)/build/redis
REDIS_VERSIONS := sh scripts/install-redis-versions.sh "$(TIERED_TEST_REDIS)"

.DEFAULT_GOAL := help
.PHONY: help demo check test test-long exact proof faults steady ratios rls-bench gateway bench mutants try-release lint pages hunt

##@ Everyday

help: ## list the targets
	@awk 'BEGIN {FS = ":[^#]*## "} /^##@ / {print "\n" substr($$0, 5)} /^[a-z][a-z-]*:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## rehearse an outage of Redis in the three fail modes, a minute of virtual time: five seconds when built
	@mkdir -p build
	go run ./cmd/tiersim run outage outage-open outage-closed --html build/demo.html

check: ## formatting, go vet and the short tests: before each commit, under two minutes
	@files=$$(gofmt -l .); test -z "$$files" || { echo "gofmt would change:"; echo "$$files"; exit 1; }
	go vet ./...
	go test -short -timeout $(TIMEOUT) ./...
	cd benchmarks && go vet ./... && go test -short -timeout $(TIMEOUT) ./...
	for module in contrib/*/; do (cd $$module && go vet ./... && go test -short -timeout $(TIMEOUT) ./...) || exit 1; done

# Packages whose tests take real time, with real processes. They run one after the other, so that each has the machine.
REALTIME := ./failover ./internal/test/rig/faults ./remote ./tiered

# Packages that a service runs concurrently. The race detector watches them, and the others in `make hunt HUNT=race`: it makes
# virtual time 15 times as slow.
RACED := ./tiered/... ./remote ./failover ./local ./lua ./internal/dispatch ./internal/engine ./internal/test/rig/watch

# $(call except,PATTERNS) is all packages but these and the acceptance tests in the root.
except = $$(go list ./... | grep -vxF "$$(go list . $(1))")

# Packages whose tests do more without -short: they ask for it, or rapid does, which draws five times as much. The others
# would only do again what make test did. The adversary plays a part of its schedules in make test, and all of them in
# make proof; so do the plans.
LONGER = $$(grep -rlE --include='*_test.go' 'testing\.Short\(\)|pgregory\.net/rapid' cmd internal local lua sim | \
	xargs -n 1 dirname | sort -u | sed 's|^|./|' | grep -vxE './internal/test/(proof/(adversary.*|legal)|rig/faults)')

# Adapters that start no goroutine of their own. The race detector watches them in `make hunt HUNT=race`: it has all of
# their frameworks compiled once more.
ADAPTERS := contrib/echolimit contrib/fasthttplimit contrib/fiberlimit contrib/ginlimit
MODULES := $(filter-out $(ADAPTERS),$(patsubst %/,%,$(wildcard contrib/*/)))

# -vet=off: make check has vetted, and make lint does.
test: ## before a pull request: the short tests, under the race detector what services run, and the promise on a real Redis
	@$(REDIS)
	@test -n "$(RACE)" || echo "cgo is off or there is no C compiler: testing without the race detector"
	$(RACING) go test -vet=off $(RACE) -short -timeout $(TIMEOUT) $(RACED)
	go test -vet=off -short -timeout $(TIMEOUT) $(call except,$(RACED))
	go test -vet=off -short -timeout $(TIMEOUT) -run '^TestFleet' ./tiered
	go test -vet=off -timeout $(TIMEOUT) -parallel 3 -skip '^TestQuotas' .

# What takes real time runs without the race detector, which slows everything down. So do tests that build a program and start
# it, because the detector would watch them and not the program: in contrib/rls they are skipped with it. The GUARDED lines are
# the stores' tests as the user of docs/redis.md, by unix socket and RESP2.
test-long: ## what make test leaves out: real time, real faults, the contrib modules, a user with few rights, lint; CI runs both
	@$(REDIS)
	go test -vet=off -p 1 -timeout $(TIMEOUT) $(REALTIME)
	go test -vet=off -timeout $(TIMEOUT) -run '^TestQuotas' .
	go test -vet=off -timeout $(TIMEOUT) $(LONGER)
	@$(PROMETHEUS) || echo "promtool is not there: the alerts of contrib/prometheus are tested without it"
	@$(ENVOY)
	for module in $(MODULES); do (cd $$module && $(RACING) TIERED_TEST_ENVOY="$(TIERED_TEST_ENVOY)" go test -vet=off $(RACE) -timeout $(TIMEOUT) ./...) || exit 1; done
	cd contrib/rls && TIERED_TEST_ENVOY="$(TIERED_TEST_ENVOY)" go test -vet=off -timeout $(TIMEOUT) ./cmd/tieredd ./bench
	for module in contrib/grpclimit contrib/rls; do (cd $$module && go test -vet=off -run Allocat .) || exit 1; done
	for module in $(ADAPTERS) examples/services; do (cd $$module && go test -vet=off -timeout $(TIMEOUT) ./...) || exit 1; done
	TIERED_TEST_GUARDED=1 go test -vet=off -short -timeout $(TIMEOUT) ./remote .
	TIERED_TEST_GUARDED=1 go test -vet=off -short -timeout $(TIMEOUT) -run 'Hostile|TLS|FarFromRedis|LostDoubled|ScriptFlush|Foreign|Flood' ./tiered
	@$(REDIS_VERSIONS) || echo "other versions of Redis are not there: only the redis-server in PATH is tested"
	$(on-each-redis)
	$(MAKE) --no-print-directory lint

# What Redis answers differs by version: the classes of its errors, the scripts, the rights of docs/redis.md, the bound.
define on-each-redis
@[ -z "$(TIERED_TEST_REDIS)" ] || for dir in $(TIERED_TEST_REDIS)/*/; do \
	[ -x "$$dir/redis-server" ] || continue; \
	"$$dir/redis-server" --version; \
	PATH="$$dir:$$PATH" go test -vet=off -count=1 -short -timeout $(TIMEOUT) ./failover && \
		PATH="$$dir:$$PATH" go test -vet=off -count=1 -timeout $(TIMEOUT) -parallel 3 -run 'TestExact|TestNothingStaysBehind' . && \
		PATH="$$dir:$$PATH" TIERED_TEST_GUARDED=1 go test -vet=off -count=1 -short -timeout $(TIMEOUT) ./remote || exit 1; \
done
endef

##@ Claims: the figures of the README

exact: ## the bound: many processes, one limit, never more than burst + rate * time
	@$(REDIS)
	go test -count=1 -v -run 'TestExact' .

# PLANS is how many plans of the whole library are played: 10000 take four minutes.
PLANS ?= 10000

schedules = go test -count=1 -timeout 20m -v -run 'TestSchedules|TestEverySmallSchedule|TestWhatBrokenAssumptionsCost' ./internal/test/proof/adversary/...
plans = go test -count=1 -timeout 60m -v -run 'TestPlans' ./internal/test/proof/legal -args -plans

proof: ## the bound under an adversary who owns every message, what each broken assumption costs, and PLANS legal plans
	@$(REDIS)
	$(schedules)
	$(plans) $(PLANS)

# FAULTS is a regular expression: make faults FAULTS='Sentinel|Cluster'.
FAULTS ?= .

faults: ## everything that can happen to Redis, the network, the processes and the callers, for real: a quarter of an hour
	@$(REDIS)
	go test -count=1 -timeout 20m -v -run '^TestFaults$$|FleetThatGrows' ./internal/test/rig/faults -args -faults '$(FAULTS)'

steady: ## how much of the limit is used, and how rarely Redis is asked, under steady load: two minutes of a quiet machine
	@$(REDIS)
	go test -count=1 -v -run 'TestSteady' .
	go test -count=1 -v -run 'TestSteady' ./internal/test/rig/fleet -args -steady

ratios: ## every claim about speed, measured against something in the same run: under fourteen minutes; writes the table of the README
	@$(REDIS)
	cd benchmarks && go run ./cmd/ratios

rls-bench: ## the service for Envoy beside envoyproxy/ratelimit: same answers, what they cost, behind a real Envoy; nine minutes
	@$(REDIS)
	@$(ENVOY)
	cd contrib/rls && TIERED_TEST_RLS_BENCH=1 TIERED_TEST_ENVOY="$(TIERED_TEST_ENVOY)" go test -count=1 -timeout 20m -v \
		-run 'TestTheirTests|TestPanels|TestBehaviorOfBoth|TestRatios|TestThroughEnvoy|TestSharesThroughEnvoy' ./bench

# RECORD=1 writes what Envoy Gateway sends into contrib/rls/cmd/tieredd/testdata, which the tests without it play.
gateway: ## tieredd under a real Envoy Gateway, which it builds once into the user's cache: half a minute, and fifteen to build
	@$(REDIS)
	@$(ENVOY)
	gateway=$$(sh scripts/install-gateway.sh) && cd contrib/rls && TIERED_TEST_RECORD=$(RECORD) TIERED_TEST_GATEWAY="$$gateway" \
		TIERED_TEST_ENVOY="$(TIERED_TEST_ENVOY)" go test -count=1 -timeout 20m -v -run '^TestGateway' ./cmd/tieredd

# All of the benchmarks run ROUNDS times, one round after the other.
ROUNDS ?= 5

bench: ## beside the peers: writes docs/bench, and from it docs/internals/performance.md: five minutes
	@$(REDIS)
	cd benchmarks && go run ./cmd/bench -rounds $(ROUNDS)

##@ Releases

mutants: ## break the rules of the protocol, one at a time, and see a test of each fail: seven minutes
	@$(REDIS)
	go test -count=1 -timeout 20m -v -run TestMutants ./internal/test/proof/mutants -args -mutants

try-release: ## fetch and build the modules of HEAD as a user will after their release: two to five minutes
	@sh scripts/try-release.sh

GOLANGCI_LINT ?= github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# The modules below have the same configuration: golangci-lint finds it in a parent directory.
lint: ## golangci-lint over all modules: two to three minutes, and two more when the Go toolchain builds it for the first time
	@failed=0; for module in . benchmarks contrib/* examples/services; do \
		echo "golangci-lint run: $$module"; \
		(cd $$module && go run $(GOLANGCI_LINT) run) || failed=1; \
	done; exit $$failed

# envoy    contrib/rls/bench/README.md: the service and envoyproxy/ratelimit behind a real Envoy; five minutes
# images   docs/images: the page of tiersim run, light, dark and on a phone, and the drawing of the fail modes; half a minute
# fail-modes  docs/images/fail-modes.svg alone, which needs no browser; the same bytes each time
# browser  writes pictures into build only: looks at pages of runs and at the debug page in chromium; under two minutes
PAGES := envoy images fail-modes browser

pages: ## write one page of the documents, or look at those of the simulator: make pages PAGE=images
	$(or $(page-$(PAGE)),$(error PAGE is one of $(PAGES)))

define page-envoy
@$(REDIS)
@$(ENVOY)
cd contrib/rls && TIERED_TEST_RLS_BENCH=1 TIERED_TEST_ENVOY="$(TIERED_TEST_ENVOY)" go test -count=1 -timeout 20m -v \
	-run '^TestThroughEnvoy$$' ./bench -args -page $(CURDIR)/contrib/rls/bench/README.md
endef

define page-images
@$(CHROMIUM)
@mkdir -p build
go run ./cmd/tiersim run outage --html build/report.html >build/report.txt
sh scripts/look.sh build/report.html docs/images/report 2600 3350
$(fail-modes)
endef

fail-modes = go run ./cmd/tiersim sweep fail-modes --html build/fail-modes.html --svg docs/images/fail-modes.svg
page-fail-modes = $(fail-modes)

define page-browser
@$(CHROMIUM)
@mkdir -p build
for page in outage everything key-flood steady; do \
	go run ./cmd/tiersim run $$page --html build/page-$$page.html >build/page-$$page.txt || exit 1; \
done
go run ./cmd/tiersim sweep fail-modes --html build/page-fail-modes.html >build/page-fail-modes.txt
go test -count=1 -run '^TestPage$$' ./tiered/debugpage -args -write $(CURDIR)/build/page-debug.html
for page in outage everything key-flood steady fail-modes debug; do \
	sh scripts/look.sh build/page-$$page.html build/page-$$page || exit 1; \
done
endef

# answers    200 000 random uses of the library, for what callers are told: six minutes
# draws      every test of rapid with DRAWS other draws: a quarter of an hour
# fuzz       every fuzz target, FUZZTIME inputs each, or for as long, as in FUZZTIME=1m
# gremlins   mutants of all Go code of one PACKAGE: an operator or a condition is another one, and its short tests must fail.
#            It names those that lived; some of them change nothing that a test could see
# other-go   the tests of the library with OTHER_GO, the supported version beside that of go.mod (docs/compatibility.md)
# plans      50 000 legal plans of the whole library: a third of an hour
# race       the short tests of all packages, and those of the adapters, under the race detector, RACECOUNT times on 1, 2 and 4
#            processors
# schedules  all schedules of the adversary: six minutes
# soak       random schedules of the protocol's messages for SOAK; a failure prints its seed
# speed      how fast the simulator is, and that the same seed is the same run: five minutes
HUNTS := answers draws fuzz gremlins other-go plans race schedules soak speed

# A count and not a time is the default: up to Go 1.26 a run that a clock ends fails now and then with "context deadline
# exceeded" and no input to show for it (golang/go#75804). 10000 inputs take two seconds.
FUZZTIME ?= 10000x
DRAWS ?= 2000
RACECOUNT ?= 3
SOAK ?= 10m
PACKAGE ?= ./failover
OTHER_GO := go1.27.1


GREMLINS ?= github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0

hunt: export RAPID_SEED = 0
hunt: ## look for mistakes for longer than the tests do: make hunt HUNT=fuzz
	$(or $(hunt-$(HUNT)),$(error HUNT is one of $(HUNTS)))

define hunt-fuzz
@list=$$(go test -list '^Fuzz' ./...) || { echo "$$list"; exit 1; }; \
	echo "$$list" | awk '/^Fuzz/ {f[++n] = $$1} /^ok/ {for (i = 1; i <= n; i++) print $$2, f[i]; n = 0}' | \
	while read -r package target; do \
		echo "go test -run '^$$' -fuzz '^$$target\$$' -fuzztime $(FUZZTIME) $$package"; \
		go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null || exit 1; \
	done
endef

hunt-answers = go test -count=1 -timeout 30m -v -run 'TestAnswers$$' ./internal/test/proof/answers -args -sequences 200000

define hunt-draws
@$(REDIS)
@for package in $$(grep -rl --include='*_test.go' 'rapid\.Check(' . | xargs -n 1 dirname | sort -u); do \
	tests=$$(awk '/^func Test/ {split($$2, f, "(")} /rapid\.Check\(/ {print f[1]}' $$package/*_test.go | sort -u | paste -sd '|' -); \
	echo "go test -run '^($$tests)\$$' $$package -rapid.checks $(DRAWS)"; \
	go test -count=1 -timeout 60m -run "^($$tests)\$$" $$package -rapid.checks $(DRAWS) || exit 1; \
done
endef

define hunt-race
@$(REDIS)
go test -race -short -count=$(RACECOUNT) -cpu=1,2,4 -timeout 30m ./...
for module in $(ADAPTERS); do (cd $$module && go test -race -count=$(RACECOUNT) -cpu=1,2,4 ./...) || exit 1; done
endef

# -short is not a flag of gremlins. -count=1 keeps cached results out of its timeout (gremlins#267).
hunt-gremlins = GOFLAGS='-short -count=1' go run $(GREMLINS) unleash $(PACKAGE) --workers 2 --timeout-coefficient 10 -S lt

define hunt-other-go
GOTOOLCHAIN=$(OTHER_GO) go vet ./...
GOTOOLCHAIN=$(OTHER_GO) go test -short -timeout $(TIMEOUT) ./lua ./internal/model ./local ./failover ./internal/dispatch ./remote ./tiered/...
endef

define hunt-plans
@$(REDIS)
$(plans) 50000
endef

define hunt-schedules
@$(REDIS)
$(schedules)
endef

hunt-soak = go test -count=1 -timeout 0 -v -run 'TestSoak$$' ./internal/test/proof/adversary -soak $(SOAK)
hunt-speed = go test -count=1 -timeout 20m -v -run 'TestSameSeedSameRun' -bench BenchmarkRun -benchtime 1x ./sim -args -long
