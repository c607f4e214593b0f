package bench_test

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// theirTests says of each test of envoyproxy/ratelimit where its behavior is tested here, or why it
// is not. A word with Test is a test of this module, and quoted is the name of a row of package
// behavior, which both services are asked.
var theirTests = map[string]string{
	"config TestBasicConfig": `"a limit", "a value with a limit of its own", "descriptors within descriptors", ` +
		`"what is not in the configuration", "unlimited"`,
	"config TestDomainMerge":                                          `"a domain in two files"; TestMerge`,
	"config TestConfigLimitOverride":                                  `"a limit that comes with the request", "a limit that comes with the request, and that of the rule"`,
	"config TestEmptyDomain":                                          "TestMistakes",
	"config TestDuplicateDomain":                                      "TestMistakes",
	"config TestEmptyKey":                                             "TestMistakes",
	"config TestDuplicateKey":                                         "TestMistakes",
	"config TestDuplicateKeyDomainMerge":                              "TestMistakes",
	"config TestBadLimitUnit":                                         "TestMistakes",
	"config TestReplacesSelf":                                         "TestMistakes",
	"config TestReplacesEmpty":                                        "TestMistakes",
	"config TestBadYaml":                                              "TestMistakes",
	"config TestMisspelledKey":                                        "TestMistakes",
	"config TestNonStringKey":                                         "TestMistakes",
	"config TestNonMapList":                                           "TestMistakes",
	"config TestUnlimitedWithRateLimitUnit":                           "TestMistakes",
	"config TestShadowModeConfig":                                     `"shadow mode", "a shadow rule does not hide another one"`,
	"config TestWildcardConfig":                                       `"wildcards", "asterisks that are not at the end, and a wildcard before a value of its own"`,
	"config TestDetailedMetric":                                       perValue,
	"config TestValueToMetric_":                                       perValue,
	"config TestShareThreshold":                                       `"a wildcard whose values share the limit"`,
	"config TestWildcardStatsBehavior":                                perValue,
	"stats TestEscapingInvalidChartersInMetricName":                   "a policy's name has only characters that a metric may have: TestPolicyNamesDiffer",
	"metrics TestMetricsInterceptor":                                  "calls are not counted by their gRPC method",
	"integration Test_mTLS":                                           "TestMutualTLS",
	"integration TestBasicConfig":                                     `"a limit", "refused hits"; one Redis, and no local cache to be set`,
	"integration TestXdsProvider":                                     xds,
	"integration TestBasicConfig_ExtraTags":                           "statsd is not served",
	"integration TestBasicTLSConfig":                                  "TestSettings; the connection is that of remote.Open, which has its own tests",
	"integration TestBasicAuthConfig":                                 "TestSettings; the connection is that of remote.Open, which has its own tests",
	"integration TestBasicReloadConfig":                               "TestLife, TestNewConfiguration",
	"integration TestBasicConfigMemcache":                             memcached,
	"integration TestConfigMemcacheWithMaxIdleConns":                  memcached,
	"integration TestMultiNodeMemcache":                               memcached,
	"integration TestReloadGRPCServerCerts":                           "TestMutualTLS, TestWrongTLS",
	"integration TestShareThreshold":                                  `"a wildcard whose values share the limit"`,
	"limiter TestGenerateCacheKeys":                                   `"keys and values with the separators of both", "one descriptor twice"; TestPolicyNamesDiffer`,
	"limiter TestOverLimitWithLocalCache":                             "a known refusal needs no cache: it is part of the limiter",
	"limiter TestNoOverLimitWithLocalCache":                           "a known refusal needs no cache: it is part of the limiter",
	"limiter TestGetResponseStatus":                                   `"a limit", "a limit of nothing", "hits", "shadow mode"`,
	"memcached Test":                                                  memcached,
	"provider TestXdsProvider":                                        xds,
	"redis TestNewClientImpl":                                         "TestSettings; the client is go-redis",
	"redis TestDoCmd":                                                 "the client is go-redis",
	"redis TestPipeDo":                                                "the client is go-redis",
	"redis TestPoolOnEmptyBehavior":                                   "the client is go-redis",
	"redis TestRedis":                                                 `"hits", "several descriptors", "one descriptor twice", "a limit that comes with the request"`,
	"redis TestOverLimitWithLocalCache":                               `"refused hits"; TestCostsKnownAfterwards`,
	"redis TestNearLimit":                                             "near the limit is counted by the limiter, in tokens",
	"redis TestRedisWithJitter":                                       "a key lives until its window ends: there is nothing to spread",
	"redis TestRedisTracer":                                           "there is no tracing",
	"redis TestOverLimitWithStopCacheKeyIncrementWhenOverlimitConfig": `"one is over", "refused hits"`,
	"server TestHealthCheck":                                          "TestReadiness, TestDrain",
	"server TestHealthyWithAtLeastOneConfigLoaded":                    "TestLife; it is always so",
	"server TestGrpcHealth":                                           "TestDrain, TestReadiness",
	"server TestJsonHandler":                                          "TestArguments, TestLife",
	"service TestService":                                             "TestLife, TestBeforeTheConfiguration, TestNewConfiguration",
	"service TestServiceGlobalShadowMode":                             `"shadow mode for all"`,
	"service TestRuleShadowMode":                                      `"shadow mode"`,
	"service TestMixedRuleShadowMode":                                 `"a shadow rule does not hide another one"`,
	"service TestServiceWithCustomRatelimitHeaders":                   `"headers of other names"`,
	"service TestServiceWithDefaultRatelimitHeaders":                  `"headers"; TestHeaders`,
	"service TestEmptyDomain":                                         "TestBadRequests",
	"service TestEmptyDescriptors":                                    "TestBadRequests",
	"service TestCacheError":                                          "TestWithoutRedis, TestRedisFailsUnderLoad",
	"service TestInitialLoadError":                                    "TestBeforeTheConfiguration",
	"service TestUnlimited":                                           `"unlimited", "limits that replace others"`,
	"service TestServiceTracer":                                       "there is no tracing",
	"service TestServiceHealthStatus":                                 "TestDrain, TestReadiness",
	"service TestServiceGlobalQuotaMode":                              `"quota mode for all"`,
	"service TestServiceQuotaModeOnly":                                `"quota mode"`,
	"service TestServiceQuotaModeWithMetadata":                        `"metadata"; TestMetadataTellsTheDecision`,
	"service TestServiceQuotaModeWithShadowMode":                      `"shadow mode for all"`,
	"service TestServicePerDescriptorQuotaMode":                       `"quota mode"`,
	"srv Test":                       memcached,
	"utils TestMaskCredentialsInUrl": "TestSettings; errors of package remote contain no password",
}

const (
	perValue  = "no metric has the value of a descriptor"
	xds       = "the configuration is in files only"
	memcached = "memcached is not used"
)

// What theirTests names here exists, and it leaves out none of their tests. A test is found by the
// longest beginning of its name.
func TestTheirTests(t *testing.T) {
	here := map[string]bool{}
	found := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	read := func(path string) string {
		text := fatal.Get(os.ReadFile(path))(t)
		return string(text)
	}
	each := func(root string, do func(path string)) {
		fatal.If(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, "_test.go") {
				do(path)
			}
			return err
		}))
	}
	each("..", func(path string) {
		for _, m := range found.FindAllStringSubmatch(read(path), -1) {
			here[m[1]] = true
		}
	})
	for _, r := range behavior.Rows {
		here[r.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(theirTests)) {
		for _, m := range regexp.MustCompile(`"([^"]+)"|\b(Test\w+)`).FindAllStringSubmatch(theirTests[name], -1) {
			if !here[m[1]+m[2]] {
				t.Errorf("%s: there is no %q here", name, m[1]+m[2])
			}
		}
	}
	if os.Getenv("TIERED_TEST_RLS_BENCH") == "" {
		return // their module need not be there
	}
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/ratelimit")
	list.Dir = "theirs"
	dir := fatal.Get(list.Output())(t)
	used, tests := map[string]bool{}, 0
	root := filepath.Join(strings.TrimSpace(string(dir)), "test")
	each(root, func(path string) {
		for _, m := range found.FindAllStringSubmatch(read(path), -1) {
			tests++
			test, best := filepath.Base(filepath.Dir(path))+" "+m[1], ""
			for name := range theirTests {
				if strings.HasPrefix(test, name) && len(name) > len(best) {
					best = name
				}
			}
			if used[best] = true; best == "" {
				t.Errorf("nothing is said of %s", test)
			}
		}
	})
	if len(used) < len(theirTests) || tests < 100 {
		t.Errorf("%d of %d lines are used, by %d tests", len(used), len(theirTests), tests)
	}
}
