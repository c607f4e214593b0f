package rls_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// anyValues are values of a descriptor that a client may bring about, each only once: every byte
// alone and in a text, texts that are no UTF-8, and very long ones that differ in their last byte.
func anyValues() (all []string) {
	all = append(all, "", "ann", "Ann", "ann ", `"ann\xe9"`, "ann\ufffd", "\xff\xfe", "caf\xc3", "\xc0\xaf", "\xed\xa0\x80",
		"\xf5\x80\x80\x80", "\xf0\x9f\x98", "\xf0\x9f\x98\x80", "e\u0301", "\u00e9\u00e9", "\u202eann", "7:ann", strings.Repeat("\xff", 300))
	for b := range 256 {
		all = append(all, string([]byte{byte(b)}), string([]byte{'a', byte(b), 'z'}))
	}
	for _, n := range []int{60 << 10, defaults.MaxKeyLength, 200 << 10} {
		for _, end := range []string{"a", "b", "\xfe", "\xff"} {
			all = append(all, strings.Repeat("x", n)+end)
		}
	}
	return all
}

// request returns the bytes of a request, whose text need not be UTF-8.
func request(domain string, values ...string) (text []byte) {
	field := func(to []byte, number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
	}
	text = field(nil, 1, []byte(domain))
	for _, value := range values {
		entry := field(field(nil, 1, []byte("user")), 2, []byte(value))
		text = field(text, 2, field(nil, 1, entry))
	}
	return text
}

// Whatever the bytes of a value are, the call is decided, and the value counts by itself: two
// values never become one. Neither the log nor a text of the answer has a byte of it that cannot be
// printed.
func TestAnyValueIsCounted(t *testing.T) {
	var log bytes.Buffer
	s := newService(t, remote.NewMemory(), behavior.Config, &rls.Options{
		Metadata: true, Headers: &rls.DefaultHeaders, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	conn := connect(t, s)
	seen := map[string]bool{}
	for _, value := range anyValues() {
		if seen[value] {
			continue
		}
		seen[value] = true
		var got strings.Builder
		for range 4 {
			text, out := request("shop", value), []byte{}
			err := conn.Invoke(t.Context(), pb.RateLimitService_ShouldRateLimit_FullMethodName, &text, &out, grpc.ForceCodec(raw{}))
			var answer pb.RateLimitResponse
			if err == nil {
				err = proto.Unmarshal(out, &answer)
			}
			if err != nil {
				t.Errorf("%.40q: %v", value, err)
				break
			}
			fmt.Fprint(&got, answer.GetOverallCode(), " ")
			if entry := answer.GetDynamicMetadata().String(); !utf8.ValidString(entry) {
				t.Errorf("%.40q: the metadata is %.100q", value, entry)
			}
		}
		if want := "OK OK OK OVER_LIMIT "; got.String() != want {
			t.Errorf("%.40q: %s, want %s", value, got.String(), want)
		}
	}
	if log.Len() > 0 {
		t.Errorf("the log has %.200q", log.String())
	}
	t.Logf("%d values", len(seen))
}

// A message in which a text is no UTF-8 is otherwise read as any other: fields in any order and
// twice, and unknown ones.
func TestUnmarshal(t *testing.T) {
	full := behavior.Request("shop +7 | user=a path=/x +3 limit=5/2hour | user=b")
	full.Descriptors[1].IsNegativeHits = true
	text := fatal.Get(proto.Marshal(full))(t)
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 5)
	unknown = protowire.AppendBytes(protowire.AppendTag(unknown, 98, protowire.BytesType), []byte("\xff"))
	for name, text := range map[string][]byte{
		"as it is": text, "twice": append(bytes.Clone(text), text...), "unknown fields": append(unknown, text...), "nothing": nil,
		"in part": text[:len(text)/2],
	} {
		want, got := &pb.RateLimitRequest{}, &pb.RateLimitRequest{}
		wantErr, gotErr := proto.Unmarshal(text, want), rls.Unmarshal(text, got)
		if (wantErr == nil) != (gotErr == nil) || wantErr == nil && !proto.Equal(want, got) {
			t.Errorf("%s: %v, %v, want %v, %v", name, got, gotErr, want, wantErr)
		}
	}
}

// What a client can do to the form of a call is a decision, never an error: nothing is let through
// because of it. The log tells the operator, once.
func TestFormOfACallIsDecided(t *testing.T) {
	for _, c := range []struct {
		name, request, want string
		together            bool
		log                 string
	}{
		{"a descriptor of nothing", "shop | user=a | ", "OK | OK 2/3 | OK", false, ""},
		{"nothing but that", "shop | ", "OK | OK", false, ""},
		{"too many descriptors", "shop | user=a | user=b | user=c", "OVER | OVER | OVER | OVER", false, "descriptors=3"},
		{"too many entries", "shop | user=a b=c d=e | user=a", "OVER | OVER | OK 2/3", false, "entries=3"},
		{"together: none is taken", "shop | user=a b=c d=e | user=a", "OVER | OVER | OK 3/3", true, "entries=3"},
		{"an unknown unit", "shop | user=a limit=1/unknown", "OVER | OVER", false, "limit.unit is UNKNOWN"},
		{"no units", "shop | user=a limit=1/0day", "OVER | OVER", false, "limit.unit_multiplier is 0"},
		{"very many units", "shop | user=a limit=1/4294967295year", "OVER | OVER", false, "limit.unit_multiplier is 4294967295"},
		{"hits back to a window", "shop | user=a -", "OK | OK 3/3", false, "is_negative_hits"},
		{"more hits than any limit", "shop | user=a +9223372036854775808", "OVER | OVER 0/3", false, ""},
		{"the most hits of a request", "shop +4294967295 | user=a", "OVER | OVER 0/3", false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			s := newService(t, remote.NewMemory(), behavior.Config, &rls.Options{
				MaxDescriptors: 2, Together: c.together, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			text, negative := strings.CutSuffix(c.request, " -")
			r := behavior.Request(text)
			for _, d := range r.GetDescriptors() {
				d.IsNegativeHits = negative
			}
			answer, err := dial(t, s).ShouldRateLimit(t.Context(), r)
			if got := behavior.Show(answer); err != nil || got != c.want {
				t.Errorf("%s, %v, want %s", got, err, c.want)
			}
			fatal.Get(s.ShouldRateLimit(t.Context(), r))(t)
			lines := strings.Count(log.String(), "\n")
			if c.log == "" && lines > 0 || c.log != "" && (lines != 1 || !strings.Contains(log.String(), c.log)) {
				t.Errorf("the log has %q, want one line with %q", log.String(), c.log)
			}
		})
	}
	s := newService(t, remote.NewMemory(), behavior.Config, &rls.Options{MaxDescriptors: 2, Shadow: true, Logger: slog.New(slog.DiscardHandler)})
	answer, err := s.ShouldRateLimit(t.Context(), behavior.Request("shop | user=a | user=b | user=c"))
	if err != nil || answer.GetOverallCode() != pb.RateLimitResponse_OK {
		t.Errorf("in shadow mode: %v, %v", answer, err)
	}
	_, err = s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{nil}})
	if err != nil {
		t.Error(err)
	}
}
