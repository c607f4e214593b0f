package httplimit

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestNilNeverPanics(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "p", tiered.PerHour(1))
	limit, err := ByIP(l)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() (refused bool){
		"ByIP":         func() bool { _, err := ByIP(nil); return err != nil },
		"ByHeader":     func() bool { _, err := ByHeader(new(tiered.Limiter), "X-User"); return err != nil },
		"Settle":       func() bool { return Settle(nil, nil) != nil }, //nolint:staticcheck // that it does not panic
		"Preflight":    func() bool { return !Preflight(nil) },
		"WriteHeaders": func() bool { WriteHeaders(nil, tiered.Decision{Reason: tiered.Limited, Burst: 1}); return true },
		"WriteRefusal": func() bool { WriteRefusal(nil, tiered.Decision{}); return true },
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
	for _, k := range []Key{
		{},
		KeyFunc(nil), JoinKeys(), JoinKeys(Key{}), Key{}.Hashed(), Key{}.Prefix(0, 0), Header(""), Credential(""),
		Cookie(""), PathValue(""), HeaderIP(""), TrustedHops(0), ForwardedFor(), Forwarded(),
	} {
		if _, err := New([]Rule{{Limiter: l, Key: k, Missing: Refuse}}, nil); err == nil {
			t.Errorf("%+v is accepted", k)
		}
	}
}
