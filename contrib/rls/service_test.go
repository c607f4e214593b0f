package rls_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newService returns a Service with a configuration. Its domain may go on in more files.
func newService(t testing.TB, store remote.Store, config string, o *rls.Options, more ...string) *rls.Service {
	t.Helper()
	s, _ := serviceOfGroup(t, store, config, o, more...)
	return s
}

func serviceOfGroup(
	t testing.TB, store remote.Store, config string, o *rls.Options, more ...string,
) (*rls.Service, *tiered.Group) {
	t.Helper()
	g := testgroup.New(t, store, &tiered.Options{Processes: 1, Logger: slog.New(slog.DiscardHandler), Budget: time.Second})
	s := fatal.Get(rls.New(g, o))(t)
	use(t, s, config, more...)
	_ = g.Ping(t.Context()) // as tieredd does before it is ready: Redis' clock has to be known. Some tests have no Redis
	return s, g
}

func use(t testing.TB, s *rls.Service, config string, more ...string) {
	t.Helper()
	files := []rls.File{{Name: "test.yaml", Text: []byte(config)}}
	for i, text := range more {
		files = append(files, rls.File{Name: fmt.Sprintf("more%d.yaml", i), Text: []byte(text), Merge: true})
	}
	c, err := rls.Parse(files...)
	if err == nil {
		err = s.Use(c)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// dial serves a Service on loopback and returns a client of it.
func dial(t *testing.T, s *rls.Service) pb.RateLimitServiceClient {
	t.Helper()
	return pb.NewRateLimitServiceClient(connect(t, s))
}

// connect serves a Service on loopback and returns a connection to it.
func connect(t *testing.T, s *rls.Service) *grpc.ClientConn {
	t.Helper()
	server := grpc.NewServer(rls.ServerOption())
	pb.RegisterRateLimitServiceServer(server, s)
	at := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(at)
	}()
	conn := fatal.Get(grpc.NewClient(at.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-done
	})
	return conn
}

func TestBehavior(t *testing.T) {
	for name, store := range map[string]func(*testing.T) remote.Store{
		"memory": func(*testing.T) remote.Store { return remote.NewMemory() },
		"redis":  func(t *testing.T) remote.Store { return remote.NewRedis(redistest.Start(t).StoreClient(), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			behavior.Test(t, false, func(t *testing.T, env string, texts []string) pb.RateLimitServiceClient {
				o, names := &rls.Options{}, rls.DefaultHeaders
				for word := range strings.FieldsSeq(env) {
					switch name, value, _ := strings.Cut(word, "="); name {
					case "QUOTA_MODE":
						o.Quota = true
					case "SHADOW_MODE":
						o.Shadow = true
					case "LIMIT_RESPONSE_HEADERS_ENABLED":
						o.Headers = &names
					case "LIMIT_LIMIT_HEADER":
						names.Limit = value
					case "LIMIT_REMAINING_HEADER":
						names.Remaining = value
					case "LIMIT_RESET_HEADER":
						names.Reset = value
					case "RESPONSE_DYNAMIC_METADATA":
						o.Metadata = true
					case "MERGE_DOMAIN_CONFIG": // newService does
					default:
						t.Fatalf("%s is not known here", name)
					}
				}
				return dial(t, newService(t, store(t), texts[0], o, texts[1:]...))
			})
		})
	}
}

// rows plays rows that are only of this service.
func rows(t *testing.T, s *rls.Service, steps ...[2]string) {
	t.Helper()
	fatal.If(t, (behavior.Row{Steps: steps}).Play(t.Context(), dial(t, s), false))
}

func TestTogether(t *testing.T) {
	rows(t, newService(t, remote.NewMemory(), behavior.Config, &rls.Options{Together: true}),
		[2]string{"shop | batch=a +10", "OK | OK 0/10"},
		[2]string{"shop | user=a | batch=a", "OVER | OK 3/3 | OVER 0/10"},
		[2]string{"shop | user=a | batch=b", "OK | OK 2/3 | OK 9/10"},
		[2]string{"shop | batch=c +30", "OVER | OVER 10/10"}, // also if the hits are known afterwards
		[2]string{"shop | batch=c", "OK | OK 9/10"},
	)
}

// A domain decides all descriptors together or each by itself, as its file says. The option is for
// the others.
func TestTogetherByDomain(t *testing.T) {
	for _, c := range []struct {
		file   string
		option bool
		left   string // of a limit of 2, after a request that another limit refuses
	}{
		{"", false, "1"},
		{"", true, "2"},
		{"tiered: {together: true}", false, "2"},
		{"tiered: {together: false}", true, "1"},
		{"tiered: {}", true, "2"},
	} {
		s := newService(t, remote.NewMemory(), `domain: d
`+c.file+`
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: b, rate_limit: {unit: year, requests_per_unit: 0}}
`, &rls.Options{Together: c.option})
		t.Run(c.file, func(t *testing.T) {
			rows(t, s, [2]string{"d | a=x | b=x", "OVER | OK " + c.left + "/2 | OVER 0/0"})
		})
	}
}

// A rule with quota_mode takes its hits unless another one refuses the request. It refuses if all
// that have it are over their limits.
func TestTogetherWithQuota(t *testing.T) {
	rows(t, newService(t, remote.NewMemory(), behavior.Config, &rls.Options{Together: true}),
		[2]string{"shop | quota2=x | user=x +2", "OK | OK 1/2 | OK 1/3"},
		[2]string{"shop | quota2=x | user=x +2", "OVER | OK 1/2 | OVER 1/3"},
		[2]string{"shop | quota2=x +2 | user=x", "OVER | OVER 0/2 | OK 0/3"},
		[2]string{"shop | quota2=y +3 | quota=y", "OK | OVER 0/2 | OK 0/1"},
		[2]string{"shop | quota2=y | quota=y", "OVER | OVER 0/2 | OVER 0/1"},
	)
	rows(t, newService(t, remote.NewMemory(), behavior.Config, &rls.Options{Together: true, Quota: true}),
		[2]string{"shop | nobody=a | user=a", "OK | OVER 0/0 | OK 2/3"},
	)
}

// With OnlyOver, a descriptor that is over its limit counts as it would alone, and the others do
// not. Rules in shadow mode and in quota mode hinder no other.
func TestOnlyOver(t *testing.T) {
	rows(t, newService(t, remote.NewMemory(), behavior.Config, &rls.Options{OnlyOver: true}),
		[2]string{"shop | batch=a | user=a", "OK | OK 9/10 | OK 2/3"},
		[2]string{"shop | batch=a | user=a +4", "OVER | OK 9/10 | OVER 0/3"}, // what was left of it is gone
		[2]string{"shop | batch=a | user=a", "OVER | OK 9/10 | OVER 0/3"},
		[2]string{"shop | batch=a | quota=a +2 | quota2=a", "OK | OK 8/10 | OVER 0/1 | OK 1/2"},
		[2]string{"shop | batch=a | tried=a +2", "OK | OK 7/10 | OK 0/1"},
		[2]string{"shop | batch=a +11 | quota2=a", "OVER | OVER 0/10 | OK 1/2"},
		[2]string{"shop | batch=a +0 | quota2=a +0", "OVER | OVER 0/10 | OK 1/2"},
	)
}

// Requests can ask for a bounded number of periods, because a policy stays for ever.
func TestOverridesAreBounded(t *testing.T) {
	s := newService(t, remote.NewMemory(), behavior.Config, nil)
	const most = 100
	for i := range most + 1 {
		want := "OK | OK 4/5"
		if i == most {
			want = "OVER | OVER"
		}
		answer, err := s.ShouldRateLimit(t.Context(), behavior.Request(fmt.Sprintf("shop | user=a limit=5/%dday", i+2)))
		if got := behavior.Show(answer); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%d: %s, %v", i, got, err)
		}
	}
	rows(t, s, [2]string{"shop | user=b limit=5/100day | user=b limit=5/day", "OK | OK 4/5×100 | OK 4/5"})
}

// A look at a limit that comes with the request is a look at that limit, whatever the key had
// before.
func TestLookAtOverride(t *testing.T) {
	rows(t, newService(t, remote.NewMemory(), behavior.Config, nil),
		[2]string{"shop | user=a limit=7/year +0", "OK | OK 7/7"},
		[2]string{"shop | user=a limit=7/year +3", "OK | OK 4/7"},
		[2]string{"shop | user=a limit=9/year +0", "OK | OK 6/9"},
		[2]string{"shop | user=a limit=2/year +0", "OVER | OVER 0/2"},
	)
}

// A gateway for language models asks with 0 hits when a request begins, and with the true cost when
// its stream is done. The cost counts though it is more than what is left: of a window up to its
// end, of a token bucket as a debt.
func TestCostsKnownAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, remote.NewMemory(), `domain: d
descriptors:
  - {key: window, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: kind, rate_limit: {unit: year, requests_per_unit: 100}, tiered: {count_refused: false}}
  - key: bucket
    rate_limit: {unit: minute, requests_per_unit: 60}
    tiered: {algorithm: token bucket, burst: 100, count_refused: true, max_debt: 300}
`, nil)
		ask := func(steps ...[2]string) {
			t.Helper()
			for i := range steps {
				if err := (behavior.Row{Steps: steps[i : i+1]}).Play(t.Context(), direct{s}, false); err != nil {
					t.Error(err)
				}
				time.Sleep(100 * time.Millisecond) // so that Redis hears of what was charged
			}
		}
		ask(
			[2]string{"d | window=x +0", "OK | OK 100/100"},
			[2]string{"d | window=x +130", "OVER | OVER 0/100"},
			[2]string{"d | window=x +0", "OVER | OVER 0/100"},
			[2]string{"d | window=x +1", "OVER | OVER 0/100"},
			[2]string{"d | kind=x +130", "OVER | OVER 100/100"},
			[2]string{"d | kind=x +0", "OK | OK 100/100"},
			[2]string{"d | bucket=x +1", "OK | OK 99/60"},
			[2]string{"d | bucket=y +1000000000000", "OVER | OVER 0/60"}, // the debt has an end
			[2]string{"d | bucket=x +160", "OVER | OVER 0/60"},           // the key has -61, and gets one a second
		)
		time.Sleep(60 * time.Second)
		ask([2]string{"d | bucket=x +0", "OVER | OVER 0/60"})
		time.Sleep(4 * time.Second)
		ask([2]string{"d | bucket=x +1", "OK | OK 2/60"})
	})
}

// direct is a client without a network, for tests in virtual time.
type direct struct{ *rls.Service }

func (d direct) ShouldRateLimit(
	ctx context.Context, r *pb.RateLimitRequest, _ ...grpc.CallOption,
) (*pb.RateLimitResponse, error) {
	return d.Service.ShouldRateLimit(ctx, r)
}

// A rule may have further limits. An answer is about the one that decides.
func TestAlso(t *testing.T) {
	s := newService(t, remote.NewMemory(), `domain: d
descriptors:
  - key: a
    rate_limit: {unit: day, requests_per_unit: 3, name: daily}
    tiered: {algorithm: sliding window, also: [{unit: month, requests_per_unit: 5}]}
`, nil)
	rows(t, s, [2]string{"d | a=x", "OK | OK 2/3"}, [2]string{"d | a=x", "OK | OK 1/3"})
	if all := s.Config().Policies(); len(all) != 1 || all[0].Name != "d.a.day-sliding-window-5-month" {
		t.Errorf("%+v", all)
	}
	const monthly = "d | a=y +4"
	s = newService(t, remote.NewMemory(), `domain: d
descriptors:
  - key: a
    rate_limit: {unit: hour, requests_per_unit: 9}
    tiered:
      algorithm: sliding window
      also: [{unit: month, requests_per_unit: 5}, {unit: day, requests_per_unit: 7}]
      count_refused: false
`, nil)
	rows(t, s, [2]string{monthly, "OK | OK 1/5"}, [2]string{monthly, "OVER | OVER 1/5"}, [2]string{"d | a=y", "OK | OK 0/5"})
}

func TestTokenBucket(t *testing.T) {
	const config = `domain: d
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1}, tiered: {algorithm: token bucket, burst: 5, count_refused: false}}
`
	s := newService(t, remote.NewMemory(), config, nil)
	rows(t, s, [2]string{"d | a=x +4", "OK | OK 1/1"}, [2]string{"d | a=x +2", "OVER | OVER 1/1"})
	for hits, want := range []string{"OK | OK 1/1", "OK | OK 2/1", "OK | OK 4/1"} { // 0 hits back are a look
		r := behavior.Request(fmt.Sprintf("d | a=x +%d", hits))
		r.Descriptors[0].IsNegativeHits = true
		if answer, err := s.ShouldRateLimit(t.Context(), r); err != nil || behavior.Show(answer) != want {
			t.Errorf("%d back: %v, %v, want %s", hits, behavior.Show(answer), err, want)
		}
	}
}

// The answer tells whole seconds. A bucket that takes longer to be full than a time.Duration can
// tell has the longest one left.
func TestFullAfterYears(t *testing.T) {
	for years, want := range map[int]int64{1: 4 * 365 * 24 * 3600, 100: math.MaxInt64/int64(time.Second) + 1} {
		s := newService(t, remote.NewMemory(), fmt.Sprintf("domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: year, "+
			"requests_per_unit: 1}\n  tiered: {algorithm: token bucket, unit_multiplier: %d, burst: 5}\n", years), nil)
		answer := fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request("d | a=x +4")))(t)
		if d := answer.GetStatuses()[0].GetDurationUntilReset(); d.GetSeconds() != want || d.GetNanos() != 0 {
			t.Errorf("%d years a token: full in %v, want %d s", years, d, want)
		}
	}
}

func TestHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(358*24*time.Hour - 100*time.Second) // the bubble begins 7 days after a year of 365 days
		s := newService(t, remote.NewMemory(), behavior.Config, &rls.Options{Headers: &rls.DefaultHeaders})
		answer := fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request("shop | batch=a | user=a | color=red")))(t)
		var all []string
		for _, h := range answer.GetResponseHeadersToAdd() {
			all = append(all, h.GetKey()+": "+h.GetValue())
		}
		if got := strings.Join(all, ", "); got != "RateLimit-Limit: 3, RateLimit-Remaining: 2, RateLimit-Reset: 100" {
			t.Error(got)
		}
		// The descriptor that refuses counts, although another one has fewer hits left.
		answer, err := s.ShouldRateLimit(t.Context(), behavior.Request("shop | batch=a +10 | user=a +2"))
		h := answer.GetResponseHeadersToAdd()
		if err != nil || len(h) != 3 || h[0].GetValue() != "10" || h[1].GetValue() != "0" {
			t.Errorf("%v, %v", h, err)
		}
	})
}

// What a rule counted stays while its place, unit and algorithm do. Calls go on during the change.
func TestNewConfiguration(t *testing.T) {
	const config = `domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: b, rate_limit: {unit: year, requests_per_unit: 3}}
`
	s := newService(t, remote.NewMemory(), config, nil)
	rows(t, s, [2]string{"d | a=x | b=x | c=x limit=3/year", "OK | OK 2/3 | OK 2/3 | OK 2/3"})
	use(t, s, strings.Replace(strings.Replace(config, "3}", "9}", 1),
		"b, rate_limit: {unit: year", "b, rate_limit: {unit: day", 1))
	rows(t, s, [2]string{"d | a=x | b=x | c=x limit=3/year", "OK | OK 7/9 | OK 2/3 | OK 1/3"})
	use(t, s, "domain: other")
	rows(t, s, [2]string{"d | a=x", "OK | OK"})
}

// A call that no client can bring about is refused with an error, and the log says it.
func TestBadRequests(t *testing.T) {
	var log bytes.Buffer
	s := newService(t, remote.NewMemory(), behavior.Config, &rls.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	client := dial(t, s)
	for _, c := range []struct{ name, request, want string }{
		{"nothing", "", "domain is empty: must be set"},
		{"no descriptors", "shop", "there are 0 descriptors: must be 1 or more"},
	} {
		for range 2 {
			answer, err := client.ShouldRateLimit(t.Context(), behavior.Request(c.request))
			if is := status.Convert(err); is.Code() != codes.InvalidArgument || is.Message() != c.want {
				t.Errorf("%s: %v, %v, want %s", c.name, answer, err, c.want)
			}
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 2 || strings.Count(log.String(), "InvalidArgument") != n {
		t.Errorf("want a line for each of the two kinds:\n%s", log.String())
	}
}

// A message that has the wrong form is refused. grpc-go answers it, with Internal.
func TestBadMessages(t *testing.T) {
	conn := connect(t, newService(t, remote.NewMemory(), behavior.Config, nil))
	for _, message := range []string{"\x0a\xff", "\x12\x03\x0a\xff\x01", "\xff", "\x12\x80", "\x18"} {
		text := []byte(message)
		err := conn.Invoke(t.Context(), pb.RateLimitService_ShouldRateLimit_FullMethodName, &text, new([]byte),
			grpc.ForceCodec(raw{}))
		if is := status.Convert(err); is.Code() != codes.Internal {
			t.Errorf("%q: %v", message, err)
		}
	}
}

// raw sends bytes as they are.
type raw struct{}

func (raw) Name() string                    { return "proto" }
func (raw) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = bytes.Clone(b); return nil }

// A call whose caller has given up takes nothing, also if the process could answer without Redis.
func TestExpiredCalls(t *testing.T) {
	for _, together := range []bool{false, true} {
		s := newService(t, remote.NewMemory(),
			"domain: d\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 1000}}]",
			&rls.Options{Together: together})
		r := behavior.Request("d | a=x")
		for range 100 { // so that it has a lease
			fatal.Get(s.ShouldRateLimit(t.Context(), r))(t)
		}
		expired, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		for range 100 {
			if answer, err := s.ShouldRateLimit(expired, r); status.Code(err) != codes.DeadlineExceeded {
				t.Fatal(answer, err)
			}
		}
		rows(t, s, [2]string{"d | a=x", "OK | OK 899/1000"})
	}
}

// A request may have as many descriptors as the option says, and each one counts.
func TestManyDescriptors(t *testing.T) {
	var same, others strings.Builder
	for i := range 1000 {
		same.WriteString(" | user=a")
		fmt.Fprintf(&others, " | user=b%d", i)
	}
	for _, together := range []bool{false, true} {
		s := newService(t, remote.NewMemory(), behavior.Config, &rls.Options{MaxDescriptors: 1000, Together: together})
		admitted := func(text string) (n int) {
			answer, err := s.ShouldRateLimit(t.Context(), behavior.Request("shop"+text))
			if err != nil || len(answer.GetStatuses()) != 1000 {
				t.Fatal(err)
			}
			for _, is := range answer.GetStatuses() {
				if is.GetCode() == pb.RateLimitResponse_OK {
					n++
				}
			}
			return n
		}
		if n := admitted(others.String()); n != 1000 {
			t.Errorf("together %t: %d of 1000 values are admitted", together, n)
		}
		if n := admitted(same.String()); !together && n != 3 || together && n == 1000 {
			t.Errorf("together %t: one value is admitted %d times, and its limit is 3", together, n)
		}
	}
}

// Without Redis the fail mode of a rule decides. A call whose caller is gone takes nothing.
func TestWithoutRedis(t *testing.T) {
	const config = `domain: d
descriptors:
  - {key: local, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: open, rate_limit: {unit: year, requests_per_unit: 3}, tiered: {fail_mode: fail-open}}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 3}, tiered: {fail_mode: fail-closed}}
`
	store := remote.NewMemory()
	s := newService(t, store, config, nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ShouldRateLimit(ended, behavior.Request("d | local=a")); status.Code(err) != codes.Canceled {
		t.Errorf("a caller that is gone: %v", err)
	}
	store.Fail(errors.New("connection refused"))
	for name, want := range map[string]string{
		"local": "OK OK OK OVER", "open": "OK OK OK OK", "closed": "Unavailable Unavailable Unavailable Unavailable",
	} {
		var got []string
		for range 4 {
			answer, err := s.ShouldRateLimit(t.Context(), behavior.Request("d | "+name+"=a"))
			switch {
			case err != nil:
				got = append(got, status.Code(err).String())
			case answer.GetOverallCode() == pb.RateLimitResponse_OK:
				got = append(got, "OK")
			default:
				got = append(got, "OVER")
			}
		}
		if all := strings.Join(got, " "); all != want {
			t.Errorf("%s: %s, want %s", name, all, want)
		}
	}
}

func TestBeforeTheConfiguration(t *testing.T) {
	g := testgroup.New(t, remote.NewMemory(), &tiered.Options{Processes: 1, Logger: slog.New(slog.DiscardHandler)})
	s := fatal.Get(rls.New(g, nil))(t)
	if _, err := s.ShouldRateLimit(t.Context(), behavior.Request("shop | user=a")); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if s.Use(nil) == nil {
		t.Error("a nil Config is used")
	}
	if _, err := rls.New(new(tiered.Group), nil); err == nil {
		t.Error("a zero Group is accepted")
	}
	_, err := rls.New(nil, &rls.Options{MaxDescriptors: -1, Headers: &rls.Headers{}})
	for _, want := range []string{"the Group is nil", "MaxDescriptors is -1: must be 1 to 10000", "must have three names"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: lacks %q", err, want)
		}
	}
}

// Two lists of values are never one key.
func FuzzJoin(f *testing.F) {
	f.Add("a", "b", "a:b", "")
	f.Add("a:", "b", "a", ":b")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		s := newService(t, remote.NewMemory(), "domain: d\ndescriptors: [{key: x, descriptors: "+
			"[{key: y, rate_limit: {unit: year, requests_per_unit: 1}}]}]\n", nil)
		for i, values := range [][2]string{{a, b}, {c, d}} {
			r := behavior.Request("d | x=x y=y")
			r.Descriptors[0].Entries[0].Value, r.Descriptors[0].Entries[1].Value = values[0], values[1]
			answer, err := s.ShouldRateLimit(t.Context(), r)
			if again := i > 0 && a == c && b == d; err != nil || (answer.GetOverallCode() == pb.RateLimitResponse_OK) == again {
				t.Errorf("%q, %q and %q, %q: %v, %v", a, b, c, d, answer, err)
			}
		}
	})
}

// Whatever a request is, it has an answer with a status for each descriptor, or an error that says
// what is wrong.
func FuzzShouldRateLimit(f *testing.F) {
	for _, text := range []string{
		"shop | user=a | user=vip | admin=x | color=red", "shop +4 | batch=e +0 | nobody=d", "shop | tenant=k route=/a1",
		"shop | cheap=m | dear=m | all=m", "shop | user=n limit=7/year | user=n limit=0/month +0", "other",
	} {
		r := behavior.Request(text)
		b := fatal.Get(proto.Marshal(r))(f)
		f.Add(b, true)
	}
	var services []*rls.Service
	for _, together := range []bool{false, true} {
		services = append(services, newService(f, remote.NewMemory(), behavior.Config,
			&rls.Options{Together: together, Headers: &rls.DefaultHeaders}))
	}
	f.Fuzz(func(t *testing.T, b []byte, together bool) {
		r := &pb.RateLimitRequest{}
		if proto.Unmarshal(b, r) != nil {
			return
		}
		s := services[0]
		if together {
			s = services[1]
		}
		answer, err := s.ShouldRateLimit(context.Background(), r)
		switch code := status.Code(err); {
		case code == codes.InvalidArgument && answer == nil:
		case err != nil || len(answer.GetStatuses()) != len(r.GetDescriptors()):
			t.Errorf("%v: %v, %v", r, answer, err)
		}
	})
}
