package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/httpapi"
	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is the API over a store in memory.
type service struct {
	http.Handler
	group *tiered.Group
	store *remote.Memory
}

func serve(t testing.TB, o *httpapi.Options) service {
	t.Helper()
	store := remote.NewMemory()
	g := fatal.Get(tiered.NewGroup(store, &tiered.Options{Processes: 1, Logger: slog.New(slog.DiscardHandler)}))(t)
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	for _, p := range []tiered.Policy{
		{Name: "user", Limit: tiered.PerHour(10)},
		{Name: "team", Limit: tiered.PerHour(15)},
		{Name: "pay", Limit: tiered.PerHour(10), FailMode: tiered.FailClosed},
	} {
		fatal.Get(g.NewLimiter(p))(t)
	}
	h := fatal.Get(httpapi.New(g, o))(t)
	return service{h, g, store}
}

// decision and problem are the bodies of answers.
type decision struct {
	Allowed     bool
	Reason      string
	Policy      string
	Burst       int64
	Remaining   int64
	RetryAfter  float64 `json:"retry_after"`
	ResetAfter  float64 `json:"reset_after"`
	Reservation string
}

type problem struct{ Error string }

// reply is what the API answered.
type reply struct {
	decision
	problem
	status int
	header http.Header
}

// post sends a body to a path.
func (s service) post(path, body string) (r reply) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	r.status, r.header = w.Code, w.Header()
	if text := w.Body.Bytes(); len(text) > 0 {
		if err := errors.Join(json.Unmarshal(text, &r.decision), json.Unmarshal(text, &r.problem)); err != nil {
			panic(err)
		}
	}
	return r
}

func use(policy, key string, cost int) string {
	return fmt.Sprintf(`{"policy":%q,"key":%q,"cost":%d}`, policy, key, cost)
}

func uses(all ...string) string { return `{"uses":[` + strings.Join(all, ",") + `]}` }

func TestAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, nil)
		if r := s.post("/v1/allow", `{"uses":[{"policy":"user","key":"ann"}]}`); r.status != 200 || !r.Allowed ||
			r.Policy != "user" || r.Reason != "granted" || r.Burst != 10 || r.Remaining != 9 {
			t.Errorf("%+v", r)
		}
		// All or nothing: the team has 15, the user 9.
		if r := s.post("/v1/allow", uses(use("team", "red", 10), use("user", "ann", 10))); r.status != 429 || r.Allowed ||
			r.Policy != "user" || r.RetryAfter != 360 || r.header.Get("Retry-After") != "360" {
			t.Errorf("%+v", r)
		}
		time.Sleep(time.Second) // the tokens of the team are back
		if r := s.post("/v1/allow", uses(use("team", "red", 15))); r.status != 200 {
			t.Errorf("%+v", r)
		}
		if r := s.post("/v1/allow", uses(use("user", "bob", 11))); r.status != 429 || r.Reason != "exceeds burst" ||
			r.RetryAfter != 0 || r.header.Get("Retry-After") != "" {
			t.Errorf("%+v", r)
		}
		s.store.Fail(errors.New("connection refused"))
		if r := s.post("/v1/allow", uses(use("pay", "ann", 1))); r.status != 503 || r.Reason != "unavailable" {
			t.Errorf("%+v", r)
		}
	})
}

func TestReserveAndSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &httpapi.Options{Settle: time.Minute})
		left := func(policy, key string) int64 {
			time.Sleep(time.Second) // what is given back is on its way
			l, _ := s.group.Limiter(policy)
			return l.Peek(t.Context(), key).Remaining
		}
		r := s.post("/v1/reserve", uses(use("user", "ann", 4), use("team", "red", 4)))
		if r.status != 200 || r.Reservation == "" || left("user", "ann") != 6 {
			t.Fatalf("%+v", r)
		}
		for _, wrong := range []string{"[0]", "[0,0,7]"} {
			if c := s.post("/v1/settle", `{"reservation":"`+r.Reservation+`","actual":`+wrong+`}`); c.status != 400 ||
				!strings.Contains(c.Error, "must have 2, one for each use") {
				t.Errorf("%+v", c)
			}
		}
		if c := s.post("/v1/settle", `{"reservation":"`+r.Reservation+`","actual":[1,6]}`); c.status != 204 {
			t.Errorf("%+v", c)
		}
		if ann, red := left("user", "ann"), left("team", "red"); ann != 9 || red != 9 {
			t.Errorf("ann has %d, want 9; red has %d, want 9", ann, red)
		}
		again := s.post("/v1/settle", `{"reservation":"`+r.Reservation+`","actual":[0,0]}`)
		if again.status != 404 || left("user", "ann") != 9 {
			t.Errorf("%+v", again)
		}

		// One that is too old is spent.
		r = s.post("/v1/reserve", uses(use("user", "bob", 4)))
		time.Sleep(time.Minute)
		if c := s.post("/v1/settle", `{"reservation":"`+r.Reservation+`","actual":[0]}`); c.status != 404 || left("user", "bob") != 6 {
			t.Errorf("%+v, bob has %d", c, left("user", "bob"))
		}
		if r = s.post("/v1/reserve", uses(use("user", "bob", 9))); r.status != 429 || r.Reservation != "" {
			t.Errorf("%+v", r)
		}
	})
}

// The memory for reservations is bounded, and who finds no place takes no tokens.
func TestTooManyReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &httpapi.Options{MaxReservations: 3, Settle: time.Minute})
		for i := range 5 {
			r := s.post("/v1/reserve", uses(use("user", "ann", 1)))
			if want := map[bool]int{true: 200, false: 503}[i < 3]; r.status != want {
				t.Errorf("reservation %d: %+v", i, r)
			}
		}
		l, _ := s.group.Limiter("user")
		if n := l.Peek(t.Context(), "ann").Remaining; n != 7 {
			t.Errorf("%d left, want 7", n)
		}
		s.post("/v1/reserve", uses(use("user", "bob", 11))) // refused: keeps no place
		time.Sleep(time.Minute)
		for i := range 3 {
			if r := s.post("/v1/reserve", uses(use("user", "ann", 1))); r.status != 200 {
				t.Errorf("reservation %d after a minute: %+v", i, r)
			}
		}
	})
}

// The keys of reservations are bounded in bytes, so that few requests cannot fill the memory. A
// small one finds room beside large ones, and the room comes back.
func TestLargeReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := httpapi.OpenReservations(100_000, time.Minute)
		for step := range 3 {
			kept, largest := 0, 0
			for _, size := range []int{1 << 20, 700_000, httpapi.LeastPart, 600} {
				for open(size) {
					kept, largest = kept+size, max(largest, size)
				}
				if size > httpapi.LeastPart && kept > 16<<20 {
					t.Errorf("%d bytes are taken by reservations of %d", kept, size)
				}
			}
			if kept > 100_000*httpapi.RoomBytes || largest != 700_000 {
				t.Errorf("step %d: %d bytes are kept, the largest has %d", step, kept, largest)
			}
			time.Sleep(time.Minute)
		}
		if !httpapi.OpenReservations(1, time.Minute)(httpapi.LargestUse) {
			t.Error("a key of the greatest length finds no room")
		}
	})
}

// Two keys never become one, and no field counts that is not the only one of its name.
func TestKeysStayApart(t *testing.T) {
	body := func(key string) string { return `{"uses":[{"policy":"user","key":"` + key + `"}]}` }
	for _, c := range []struct {
		body string
		want string // of the error; "" is admitted
	}{
		{body(`\ud800`), "half a surrogate pair"},
		{body(`\udc00`), "half a surrogate pair"},
		{body(`\uD800x\uDC00`), "half a surrogate pair"},
		{body(`\ud800\ud800\udc00`), "half a surrogate pair"},
		{body(`\ud800\u0041`), "half a surrogate pair"},
		{body(`\ud800\\udc00`), "half a surrogate pair"},
		{body(`a\\ud800`), ""}, // a backslash and letters
		{body(`\\\ud83d\ude00\"`), ""},
		{body(`\ud83d\ude00\ud83d\ude00`), ""},
		{body(`\ufffd\u0000\n`), ""},
		{`{"uses":[{"policy":"user","key":"a","key":"b"}]}`, `field "key" is there twice`},
		{`{"uses":[{"policy":"user","key":"a","Key":"b"}]}`, `unknown field "Key"`},
		{`{"uses":[{"policy":"user","\u212aey":"b"}]}`, "unknown field"}, // a letter that folds to k
		{`{"uses":[],"uses":[{"policy":"user","key":"a"}]}`, `field "uses" is there twice`},
		{`{"uses":[{"policy":"user","key":"key"},{"policy":"user","key":"key"}]}`, ""},
	} {
		s := serve(t, nil)
		if r := s.post("/v1/allow", c.body); (r.status == 200) != (c.want == "") || c.want != "" && r.status != 400 ||
			!strings.Contains(r.Error, c.want) {
			t.Errorf("%s: %d %q, want %q", c.body, r.status, r.Error, c.want)
		}
	}
}

// Each byte in a key, as it is or escaped, counts as the character that it is in JSON, or the
// request is refused with 400.
func TestEachByteInAKey(t *testing.T) {
	s := serve(t, nil)
	post := func(key string) int {
		return s.post("/v1/allow", `{"uses":[{"policy":"user","key":"`+key+`","cost":10}]}`).status
	}
	for b := range 256 {
		plain := b >= ' ' && b < 0x80 && b != '"' && b != '\\' // as it is in JSON
		raw, escaped := post(string([]byte{'k', byte(b)})), post(fmt.Sprintf(`k\u00%02x`, b))
		want := [2]int{400, 200}
		if plain {
			want = [2]int{200, 429} // the escape is the same key, of which all is taken
		}
		if raw != want[0] || escaped != want[1] {
			t.Errorf("byte %#x: %d, and escaped %d; want %v", b, raw, escaped, want)
		}
	}
}

func TestBadRequests(t *testing.T) {
	long := strings.Repeat("k", defaults.MaxKeyLength+1)
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"allow", ``, 400, "EOF"},
		{"allow", `{"uses":[`, 400, "unexpected EOF"},
		{"allow", `{"uses":[}`, 400, "syntax error at byte 10"},
		{"allow", `{"uses":"secret"}`, 400, "uses is a string"},
		{"allow", `{"uses":[{"policy":"user","key":"ann","cost":1.5}]}`, 400, "cost is a number: must be a int64"},
		{"allow", `{"uses":[{"policy":"user","key":"ann","cost":1e30}]}`, 400, "cost is a number"},
		{"allow", `{"uses":[{"policy":"user","key":"ann","cost":-1}]}`, 400, "uses[0].cost is -1: must be 1 or more"},
		{"reserve", `{"uses":[{"policy":"user","key":"ann","cost":-1}]}`, 400, "uses[0].cost is -1: must be 1 or more"},
		{"allow", `{"used":[]}`, 400, `unknown field "used"`},
		{"allow", `{"uses":[]}`, 400, "there are 0 uses: must be 1 to 2"},
		{"allow", uses(use("user", "a", 1), use("user", "b", 1), use("user", "c", 1)), 400, "there are 3 uses: must be 1 to 2"},
		{"allow", uses(use("users", "", 0)), 400, `uses[0].cost is 0: must be 1 or more; uses[0].key has 0 bytes: ` +
			`must have 1 to 65536; uses[0].policy is "users": must be the name of a policy`},
		{"reserve", uses(use("user", long, 1)), 400, "uses[0].key has 65537 bytes"},
		{"allow", uses(use("user", "a", 1)) + "{}", 400, "there is more after the object"},
		{"allow", "{\"uses\":[{\"policy\":\"user\",\"key\":\"secret\xff\"}]}", 400, "not UTF-8"},
		{"allow", `{"uses":[{"policy":"user","key":"` + strings.Repeat("secret", 12_000) + `"}]}`, 413, "at most 70000 bytes"},
		{"allow", "null", 400, "it is null: must have a value"},
		{"allow", `{"uses":null}`, 400, "uses is null"},
		{"allow", `{"uses":[{"policy":"user","key":"a"},null]}`, 400, "uses[1] is null"},
		{"allow", `{"uses":[{"policy":null,"key":"a"}]}`, 400, "uses[0].policy is null"},
		{"allow", `{"uses":[{"policy":"user","key":null}]}`, 400, "uses[0].key is null"},
		{"reserve", `{"uses":[{"policy":"user","key":"a","cost":1},{"policy":"user","key":"b","cost":null}]}`, 400, "uses[1].cost is null"},
		{"settle", `{"reservation":null,"actual":[1]}`, 400, "reservation is null"},
		{"settle", `{"reservation":"x","actual":null}`, 400, "actual is null"},
		{"settle", `{"reservation":"x","actual":[1,2,null]}`, 400, "actual[2] is null"},
		{"settle", `{"actual":[1]}`, 404, "the reservation is not here"},
		{"settle", `{"reservation":"x"}`, 400, "actual is empty"},
		{"settle", `{"reservation":"x","actual":[1,-1]}`, 400, "actual[1] is -1: must be 0 or more"},
		{"settle", `{"reservation":"x","actual":[1]}`, 404, "the reservation is not here"},
	} {
		s := serve(t, &httpapi.Options{MaxBody: 70_000, MaxUses: 2})
		r := s.post("/v1/"+c.path, c.body)
		if r.status != c.status || !strings.Contains(r.Error, c.want) || strings.Contains(r.Error, "secret") {
			t.Errorf("%s %.60s: %d %q, want %d %q", c.path, c.body, r.status, r.Error, c.status, c.want)
		}
	}
}

func TestBadOptions(t *testing.T) {
	if _, err := httpapi.New(new(tiered.Group), nil); err == nil {
		t.Error("a zero Group is accepted")
	}
	_, err := httpapi.New(nil, &httpapi.Options{MaxBody: 1, MaxUses: -1, MaxReservations: 1 << 30, Settle: time.Millisecond})
	for _, want := range []string{
		"the Group is nil: must be set", "MaxBody is 1: must be 1024 to 16777216", "MaxUses is -1", "MaxReservations is 1073741824",
		"Settle is 1ms: must be 1s to 24h0m0s",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: lacks %q", err, want)
		}
	}
}

// Requests and answers are those of openapi.yaml, by a validator that others keep.
func TestOpenAPI(t *testing.T) {
	s := serve(t, nil)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/openapi.yaml", nil))
	doc, err := openapi3.NewLoader().LoadFromData(w.Body.Bytes())
	if err == nil {
		err = doc.Validate(t.Context())
	}
	var router routers.Router
	if err == nil {
		router, err = gorillamux.NewRouter(doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	kept := s.post("/v1/reserve", uses(use("user", "bob", 1))).Reservation
	s.store.Fail(nil)
	for _, c := range []struct {
		path, body string
		status     int
		valid      bool // by the description of requests
	}{
		{"/v1/allow", uses(use("user", "ann", 10)), 200, true},
		{"/v1/allow", uses(use("user", "ann", 1)), 429, true},
		{"/v1/allow", uses(use("nobody", "ann", 1)), 400, true},
		{"/v1/allow", uses(use("user", "", 1)), 400, false},
		{"/v1/allow", uses(), 400, false},
		{"/v1/allow", `{"uses":[{"policy":"user","key":"` + strings.Repeat("x", 1<<17) + `"}]}`, 413, true},
		{"/v1/reserve", uses(use("team", "red", 1), use("user", "cho", 1)), 200, true},
		{"/v1/settle", `{"reservation":"` + kept + `","actual":[0]}`, 204, true},
		{"/v1/settle", `{"reservation":"` + kept + `","actual":[0]}`, 404, true},
		{"/v1/settle", `{"reservation":"x","actual":[]}`, 400, false},
	} {
		r := httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body))
		r.Header.Set("Content-Type", "application/json")
		route, params, err := router.FindRoute(r)
		if err != nil {
			t.Fatal(err)
		}
		in := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route}
		if err := openapi3filter.ValidateRequest(t.Context(), in); (err == nil) != c.valid {
			t.Errorf("%s %.60s: %v", c.path, c.body, err)
		}
		r = httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		out := &openapi3filter.ResponseValidationInput{
			RequestValidationInput: in, Status: w.Code, Header: w.Header(), Body: io.NopCloser(w.Body),
		}
		if err := openapi3filter.ValidateResponse(t.Context(), out); err != nil || w.Code != c.status {
			t.Errorf("%s %.60s: %d, want %d; %v", c.path, c.body, w.Code, c.status, err)
		}
	}
}

// Many callers together take what there is and settle each reservation once.
func TestConcurrentCallers(t *testing.T) {
	s := serve(t, nil)
	var work sync.WaitGroup
	var mu sync.Mutex
	admitted, settled := 0, 0
	for range 8 {
		work.Go(func() {
			for range 10 {
				r := s.post("/v1/reserve", uses(use("user", "ann", 1)))
				if r.status != 200 {
					continue
				}
				var twice sync.WaitGroup
				for range 2 {
					twice.Go(func() {
						c := s.post("/v1/settle", `{"reservation":"`+r.Reservation+`","actual":[1]}`)
						mu.Lock()
						defer mu.Unlock()
						if c.status == 204 {
							settled++
						}
					})
				}
				twice.Wait()
				mu.Lock()
				admitted++
				mu.Unlock()
			}
		})
	}
	work.Wait()
	if admitted != 10 || settled != 10 {
		t.Errorf("%d admitted and %d settled, want 10 of a burst of 10", admitted, settled)
	}
}

// Whatever the body is, the handler answers with a status that openapi.yaml has.
func FuzzAllow(f *testing.F) {
	f.Add(uses(use("user", "ann", 1)))
	f.Add(`{"uses":[{"policy":"user","key":"\u0000\ud800"}]}`)
	f.Add(`{"uses":null}`)
	f.Add(`{"uses":[{"policy":"user","key":"\\\ud83d\ude00"}],"uses":[[]]}`)
	s := serve(f, nil)
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/v1/allow", "/v1/reserve", "/v1/settle"} {
			switch r := s.post(path, body); r.status {
			case 200, 204, 400, 404, 413, 429, 503:
			default:
				t.Errorf("%s %q: %+v", path, body, r)
			}
		}
	})
}
