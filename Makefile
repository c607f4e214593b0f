# Everything that a contributor or a CI runs. `make` alone lists the targets.

# Inputs per fuzz target: some two seconds each. A count and not "2s": up to Go 1.26 a run that a clock ends fails now
# and then with "context deadline exceeded" and no input to show for it (golang/go#75804).
FUZZTIME ?= 10000x
RACECOUNT ?= 3
SOAK ?= 10m
ROUNDS ?= 5
SEEDS ?= 1000
SEED ?= 1
FAULTS ?= .
ENGINES ?= .

# The race detector needs a C compiler. Where there is none the tests run without it, and say so.
RACE ?= $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)

.DEFAULT_GOAL := help
.PHONY: help demo check test test-long guarded race fuzz bench ratios growth hot-key tuning exact steady proof mutants swarm soak speed engines faults browser screenshots redis chromium

help: ## list the targets
	@awk 'BEGIN {FS = ":[^#]*## "} /^[a-z][a-z-]*:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## rehearse an outage of Redis in the three fail modes, a minute of virtual time: under half a minute
	@mkdir -p build
	go run ./cmd/tiersim run outage outage-open outage-closed --engine lua --html build/demo.html

check: ## formatting, go vet and the short tests: before each commit, under two minutes
	@files=$$(gofmt -l .); test -z "$$files" || { echo "gofmt would change:"; echo "$$files"; exit 1; }
	go vet ./...
	go test -short ./...
	cd benchmarks && go vet ./... && go test -short ./...
	cd examples/routers && go vet ./... && go test ./...

# Packages whose tests take real time, with real processes: one after the other, so that they have the machine for themselves.
REALTIME := ./failover ./internal/engines ./internal/faults ./remote ./sim ./tiered

# Packages in which nothing runs beside anything else, or only what the tests of others run too: not for the race detector,
# under which they take minutes.
RACEFREE := ./internal/adversary ./internal/legal ./internal/tune

# The adversary plays a part of its schedules here, and all of them in `make proof`; so are the plans.
PROOF := ./internal/adversary ./internal/legal

test: redis ## before a pull request: the short tests under the race detector, and the promise on a real Redis with real processes
	@test -n "$(RACE)" || echo "cgo is off or there is no C compiler: testing without the race detector"
	go test $(RACE) -short -timeout 10m $$(go list ./... | grep -vxF "$$(go list $(RACEFREE))")
	go test -short -timeout 10m $(PROOF)
	go test -timeout 10m .

# The race detector slows everything down, so what takes real time (-short leaves it out) runs without it. Then some two seconds
# of each fuzz target.
test-long: redis ## what make test leaves out: real time, real faults, the guarded user, fuzzing; CI runs both
	go test -p 1 -timeout 10m $(REALTIME)
	go test -timeout 10m $$(go list ./... | grep -vxF "$$(go list . $(REALTIME) $(PROOF))")
	$(MAKE) --no-print-directory guarded fuzz

# The packages whose stores talk to a real Redis.
guarded: redis ## the tests against Redis as the user of docs/operations.md, by unix socket and RESP2: half a minute
	TIERED_TEST_GUARDED=1 go test -short -timeout 5m ./remote .
	TIERED_TEST_GUARDED=1 go test -short -timeout 5m -run 'Hostile|TLS|FarFromRedis|LostDoubled|ScriptFlush|Foreign|Flood' ./tiered

race: redis ## the short tests, RACECOUNT times on 1, 2 and 4 processors: a hunt for races
	go test -race -short -count=$(RACECOUNT) -cpu=1,2,4 -timeout 30m ./...

fuzz: ## every fuzz target, FUZZTIME (10000x) inputs each; or for as long, as in 1m
	@list=$$(go test -list '^Fuzz' ./...) || { echo "$$list"; exit 1; }; \
	echo "$$list" | awk '/^Fuzz/ {f[++n] = $$1} /^ok/ {for (i = 1; i <= n; i++) print $$2, f[i]; n = 0}' | \
	while read -r package target; do \
		echo "go test -run '^$$' -fuzz '^$$target\$$' -fuzztime $(FUZZTIME) $$package"; \
		go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null || exit 1; \
	done

# ROUNDS times all of the benchmarks, one round after the other.
bench: redis ## beside the peers: docs/bench, and from it docs/performance.md and the README: five minutes
	cd benchmarks && go run ./cmd/bench -rounds $(ROUNDS)

ratios: redis ## every claim about speed, measured against something in the same run: under three minutes
	cd benchmarks && go run ./cmd/ratios

growth: ## how the cost grows with processes, keys and lease size: writes docs/performance.md, under four minutes
	go test -count=1 -timeout 20m -v -run '^TestGrowth$$' ./tiered -args -growth $(CURDIR)/docs/performance.md

hot-key: ## what shards of one key are worth: writes docs/performance.md, two minutes
	go test -count=1 -timeout 20m -v -run '^TestHotKey$$' ./tiered -args -hot-key $(CURDIR)/docs/performance.md

tuning: ## what tiersim tune advises for five services: writes docs/tuning.md, some two minutes
	go test -count=1 -timeout 20m -v -run '^TestServices$$' ./internal/tune -args -write $(CURDIR)/docs/tuning.md

exact: redis ## the bound: many processes, one limit, never more than burst + rate * time
	go test -count=1 -v -run 'TestExact' .

steady: redis ## how much of the limit is used, and how rarely Redis is asked, under steady load: two minutes of a quiet machine
	go test -count=1 -v -run 'TestSteady' .
	go test -count=1 -v -run 'TestSteady' ./internal/fleet -args -steady

# PLANS is how many plans of the whole library are played: a third of an hour for 50000.
PLANS ?= 10000

proof: redis ## the bound under an adversary who owns every message, what each broken assumption costs, and PLANS legal plans
	go test -count=1 -timeout 20m -v -run 'TestSchedules|TestEverySmallSchedule|TestWhatBrokenAssumptionsCost' ./internal/adversary
	go test -count=1 -timeout 30m -v -run 'TestPlans' ./internal/legal -args -plans $(PLANS)

mutants: redis ## break the rules of the protocol, one at a time, and see a test of each fail: under five minutes
	go test -count=1 -timeout 20m -v -run TestMutants ./internal/mutants -args -mutants

speed: ## how fast the simulator is, and that the same seed is the same run, twenty times on each engine: five minutes
	go test -count=1 -timeout 20m -v -run 'TestSpeed|TestSameSeedSameRun' ./sim -args -long

# ENGINES is a regular expression: make engines ENGINES='kill|crash' plays only those, and leaves the rest of the table.
engines: redis ## the library on the three engines side by side, one with real processes: writes docs/engines.md, a quarter of an hour
	go test -count=1 -timeout 10m -run '^TestLive' ./sim -args -long
	go test -count=1 -timeout 40m -v -run '^TestEngines$$' ./internal/engines -args -write $(CURDIR)/docs/engines.md -only '$(ENGINES)'

# Another SEED than 1 is other scenarios: a nightly run takes the date.
swarm: ## SEEDS (1000) random scenarios with random faults, from SEED (1) on: three minutes; failures go to sim/testdata/seeds
	go run ./cmd/tiersim swarm --seeds $(SEEDS) --seed $(SEED) --write sim/testdata/seeds

soak: ## random schedules of the lease protocol's messages for SOAK (10m); a failure prints its seed, shrunk
	go test -count=1 -timeout 0 -v -run 'TestSoak$$' ./internal/adversary -soak $(SOAK)

# FAULTS is a regular expression: make faults FAULTS='Sentinel|Cluster'.
faults: redis ## everything that can happen to Redis, the network, the processes and the callers, for real: nine minutes
	go test -count=1 -timeout 20m -v -run '^TestFaults$$' ./internal/faults -args -faults '$(FAULTS)'

browser: chromium ## the simulator's web pages in chromium: drawn, readable, and nothing fetched; under two minutes
	cd browser && go vet ./... && go test -count=1 -timeout 10m ./...

# What the pages of the documents say that the pictures are of.
screenshots: chromium ## docs/images: what tiersim run, sweep and tune draw; half a minute
	@mkdir -p build
	go run ./cmd/tiersim run outage --json build/run.json >build/run.txt
	go run ./cmd/tiersim sweep blackhole --json build/sweep.json >build/sweep.txt || true # some cells break an expectation
	go run ./cmd/tiersim tune --rate 50/s --processes 10 --demand 1.2 --over 0 --shortfall 70% --calls 200/s --json build/tune.json >build/tune.txt
	cd browser && go run ./cmd/screenshots -out $(CURDIR)/docs/images \
		-report $(CURDIR)/build/run.json -sweep $(CURDIR)/build/sweep.json -search $(CURDIR)/build/tune.json

chromium: # makes sure that there is a chromium to start
	@sh scripts/install-chromium.sh

redis: # makes sure that there is a redis-server to start
	@sh scripts/install-redis.sh

GOLANGCI_LINT ?= github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# The modules below have the same configuration: golangci-lint finds it in a parent directory.
.PHONY: lint
lint: ## golangci-lint over all modules: two to three minutes, and two more when the Go toolchain builds it for the first time
	@failed=0; for module in . benchmarks examples/routers browser; do \
		echo "golangci-lint run: $$module"; \
		(cd $$module && go run $(GOLANGCI_LINT) run) || failed=1; \
	done; exit $$failed
