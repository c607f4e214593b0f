package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

func TestNilNeverPanics(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "p", tiered.PerHour(1))
	limit := fatal.Get(httplimit.ByIP(l))(t)
	for name, f := range map[string]func() (refused bool){
		"ByIP":      func() bool { _, err := httplimit.ByIP(nil); return err != nil },
		"ByHeader":  func() bool { _, err := httplimit.ByHeader(new(tiered.Limiter), "X-User"); return err != nil },
		"Settle":    func() bool { return httplimit.Settle(nil, nil) != nil }, //nolint:staticcheck // that it does not panic
		"Preflight": func() bool { return !httplimit.Preflight(nil) },
		"WriteHeaders": func() bool {
			httplimit.WriteHeaders(nil, tiered.Decision{Reason: tiered.Limited, Burst: 1})
			return true
		},
		"WriteRefusal": func() bool { httplimit.WriteRefusal(nil, tiered.Decision{}); return true },
		"handler": func() bool {
			w := httptest.NewRecorder()
			limit(nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			return w.Code == http.StatusNotFound
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !f() {
				t.Error("nil is not refused")
			}
		})
	}
	for _, k := range []httplimit.Key{
		{},
		httplimit.KeyFunc(nil), httplimit.JoinKeys(), httplimit.JoinKeys(httplimit.Key{}), httplimit.Key{}.Hashed(), httplimit.Key{}.Prefix(0, 0), httplimit.Header(""), httplimit.Credential(""),
		httplimit.Cookie(""), httplimit.PathValue(""), httplimit.HeaderIP("X-Real-IP"), httplimit.HeaderIP("", proxies...),
		httplimit.TrustedHops(0), httplimit.TrustedHops(33), httplimit.ForwardedFor(), httplimit.Forwarded(),
		httplimit.ForwardedFor(netip.Prefix{}), httplimit.Credential("a:b"), httplimit.JoinKeys(httplimit.RemoteIP(), httplimit.Key{}),
		httplimit.RemoteIP().Prefix(0, 64), httplimit.RemoteIP().Prefix(33, 64), httplimit.RemoteIP().Prefix(24, 0),
		httplimit.RemoteIP().Prefix(24, 129), httplimit.Method().Prefix(24, 56), httplimit.ForwardedFor().Prefix(24, 56),
		httplimit.JoinKeys(httplimit.Header("")),
	} {
		if _, err := httplimit.New([]httplimit.Rule{{Limiter: l, Key: k, Missing: httplimit.Refuse}}, nil); err == nil {
			t.Errorf("%+v is accepted", k)
		}
	}
}
