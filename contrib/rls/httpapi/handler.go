package httpapi

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

//go:embed openapi.yaml
var openAPI []byte

// Options are the options of a handler. A nil *Options, and each zero field, means the default.
type Options struct {
	// MaxBody is the most bytes of a request's body: 1 kB … 16 MB; 0 means 64 kB. A longer body is
	// answered with 413.
	MaxBody int64

	// MaxUses is the most uses in one request: 1 … 1000; 0 means 16.
	MaxUses int

	// MaxReservations is the most reservations that are kept: 1 … 10 million; 0 means 100 000,
	// about 60 MB. If there are that many, /v1/reserve answers 503 and takes no tokens. With their
	// keys they are also bounded to 1 kB for each on average, 1 MB at least, and one to a 128th of
	// what is free, 64 kB at least.
	MaxReservations int

	// Key, if set, makes the limiter's key of that in a request.
	Key func(string) string

	// Settle is how long a reservation can be settled: 1 s … 1 d; 0 means 10 min. After that its
	// tokens are spent.
	Settle time.Duration
}

// fill checks the options, reports all problems at once, and fills in the defaults.
func fill(o *Options) (f Options, err error) {
	if o != nil {
		f = *o
	}
	return f, errors.Join(
		within("MaxBody", &f.MaxBody, 1<<10, 16<<20, 64<<10),
		within("MaxUses", &f.MaxUses, 1, 1000, 16),
		within("MaxReservations", &f.MaxReservations, 1, 10_000_000, 100_000),
		within("Settle", &f.Settle, time.Second, 24*time.Hour, 10*time.Minute))
}

func within[T int | int64 | time.Duration](name string, is *T, least, most, usual T) error {
	if *is == 0 {
		*is = usual
	}
	if *is < least || *is > most {
		return fmt.Errorf("httpapi: Options.%s is %v: must be %v to %v", name, *is, least, most)
	}
	return nil
}

// handler serves the API.
type handler struct {
	group        *tiered.Group
	options      Options
	reservations *reservations
}

// New returns a handler of the API for the policies of group, also for those that
// [tiered.Group.SetPolicies] adds later. The paths begin with /v1/. It may be used concurrently.
// Who may ask is for the caller to decide: put a check before it.
func New(group *tiered.Group, o *Options) (http.Handler, error) {
	f, err := fill(o)
	switch {
	case group == nil:
		err = errors.Join(errors.New("httpapi: the Group is nil: must be set"), err)
	case group.Stats().Format == "":
		err = errors.Join(errors.New("httpapi: the Group is zero: must be made by tiered.NewGroup"), err)
	}
	if err != nil {
		return nil, err
	}
	h := &handler{group: group, options: f, reservations: newReservations(f.MaxReservations, f.Settle)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/allow", h.allow)
	mux.HandleFunc("POST /v1/reserve", h.reserve)
	mux.HandleFunc("POST /v1/settle", h.settle)
	mux.HandleFunc("GET /v1/openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(openAPI)
	})
	return mux, nil
}

// take is the body of /v1/allow and /v1/reserve.
type take struct {
	Uses []struct {
		Policy string `json:"policy"`
		Key    string `json:"key"`
		Cost   *int64 `json:"cost"` // 1 if there is none
	} `json:"uses"`
}

// decision is the answer to it. Times are in seconds.
type decision struct {
	Allowed     bool    `json:"allowed"`
	Reason      string  `json:"reason"`
	Policy      string  `json:"policy"` // that decided
	Burst       int64   `json:"burst"`
	Remaining   int64   `json:"remaining"`
	RetryAfter  float64 `json:"retry_after"`
	ResetAfter  float64 `json:"reset_after"`
	Reservation string  `json:"reservation,omitempty"`
}

// correction is the body of /v1/settle.
type correction struct {
	Reservation string  `json:"reservation"`
	Actual      []int64 `json:"actual"`
}

// problem is the answer to a request that cannot be decided.
type problem struct {
	Error string `json:"error"`
}

func (h *handler) allow(w http.ResponseWriter, r *http.Request) {
	if uses, _, ok := h.uses(w, r); ok {
		answer(w, tiered.All(uses...).Allow(r.Context()), "")
	}
}

func (h *handler) reserve(w http.ResponseWriter, r *http.Request) {
	uses, size, ok := h.uses(w, r)
	if !ok {
		return
	}
	// A place is taken first: tokens that were taken without one would have to go back.
	id, ok := h.reservations.open(time.Now(), len(uses), size)
	if !ok {
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "there is no room for a reservation of %d bytes: others must be settled first", size)
		return
	}
	t := tiered.All(uses...).Reserve(r.Context())
	if !t.Allowed {
		h.reservations.remove(id)
		id = ""
	} else {
		h.reservations.keep(id, t)
	}
	answer(w, t.Decision, id)
}

func (h *handler) settle(w http.ResponseWriter, r *http.Request) {
	var c correction
	if !h.read(w, r, &c) {
		return
	}
	switch i := slices.IndexFunc(c.Actual, func(n int64) bool { return n < 0 }); {
	case len(c.Actual) == 0:
		refuse(w, http.StatusBadRequest, "actual is empty: must have a number of tokens for each use")
		return
	case i >= 0:
		refuse(w, http.StatusBadRequest, "actual[%d] is %d: must be 0 or more", i, c.Actual[i])
		return
	}
	t, uses := h.reservations.take(time.Now(), c.Reservation, len(c.Actual))
	switch uses {
	case len(c.Actual):
	case 0:
		refuse(w, http.StatusNotFound, "the reservation is not here: it was settled, is older than %v, or is another replica's",
			h.options.Settle)
		return
	default:
		refuse(w, http.StatusBadRequest, "actual has %d numbers: must have %d, one for each use", len(c.Actual), uses)
		return
	}
	t.Settle(c.Actual...)
	w.WriteHeader(http.StatusNoContent)
}

// uses reads what a request asks for. If it cannot, it answers the request and reports false. size
// is what a reservation of them keeps, in bytes.
func (h *handler) uses(w http.ResponseWriter, r *http.Request) (uses []tiered.Use, size int, ok bool) {
	var body take
	if !h.read(w, r, &body) {
		return nil, 0, false
	}
	if n := len(body.Uses); n < 1 || n > h.options.MaxUses {
		refuse(w, http.StatusBadRequest, "there are %d uses: must be 1 to %d", n, h.options.MaxUses)
		return nil, 0, false
	}
	var problems []string
	uses, size = make([]tiered.Use, len(body.Uses)), reservationBytes
	for i, u := range body.Uses {
		cost := int64(1)
		if u.Cost != nil {
			cost = *u.Cost
		}
		if cost < 1 {
			problems = append(problems, fmt.Sprintf("uses[%d].cost is %d: must be 1 or more", i, cost))
		}
		if n := len(u.Key); n < 1 || n > defaults.MaxKeyLength {
			problems = append(problems, fmt.Sprintf("uses[%d].key has %d bytes: must have 1 to %d", i, n, defaults.MaxKeyLength))
		}
		l, known := h.group.Limiter(u.Policy)
		if !known {
			problems = append(problems, fmt.Sprintf("uses[%d].policy is %.64q: must be the name of a policy", i, u.Policy))
			continue
		}
		if h.options.Key != nil {
			u.Key = h.options.Key(u.Key)
		}
		uses[i], size = l.For(u.Key).N(cost), size+useBytes+len(u.Key)
	}
	if problems != nil {
		refuse(w, http.StatusBadRequest, "%s", strings.Join(problems, "; "))
		return nil, 0, false
	}
	return uses, size, true
}

// read reads a body that is one JSON object with known fields. If it cannot, it answers the request
// and reports false.
func (h *handler) read(w http.ResponseWriter, r *http.Request, body any) bool {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.options.MaxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		refuse(w, http.StatusRequestEntityTooLarge, "the body is too long: must be at most %d bytes", h.options.MaxBody)
		return false
	}
	if err == nil {
		err = decode(text, body)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "the body is not the JSON that is expected: %s", plain(err))
	}
	return err == nil
}

// decode reads one JSON object. What encoding/json would make one key of is refused: text that is
// not UTF-8, half a surrogate pair, and a field that is there twice, whatever its letters' case. So
// is null, which it would make 0 of.
func decode(text []byte, body any) error {
	if !utf8.Valid(text) {
		return errors.New("not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(body); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is more after the object")
	}
	if halfPair(text) {
		return errors.New("half a surrogate pair")
	}
	return checkFields(text)
}

// halfPair reports whether JSON has an escape of half a surrogate pair. A backslash is only in
// strings.
func halfPair(text []byte) bool {
	for {
		i := bytes.IndexByte(text, '\\')
		if i < 0 {
			return false
		}
		first := escaped(text[i:])
		text = text[i+2:]
		if utf16.IsSurrogate(first) {
			if utf16.DecodeRune(first, escaped(text[4:])) == utf8.RuneError {
				return true
			}
			text = text[10:]
		}
	}
}

// escaped returns the character of an escape like \u00e9, or -1 if text begins with something else.
func escaped(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// fields are the names that objects may have.
var fields = []string{"uses", "policy", "key", "cost", "reservation", "actual"}

// frame is an object or a list that is being read.
type frame struct {
	seen  []string // the fields of an object, the last of which is being read
	list  bool
	n     int  // values of a list that have begun
	value bool // of a field comes next
}

// path names the value that is being read, as in uses[0].cost.
func path(stack []frame) string {
	text := ""
	for _, f := range stack[1:] { // the first one is the body
		if f.list {
			text += fmt.Sprintf("[%d]", f.n-1)
		} else {
			text += "." + f.seen[len(f.seen)-1]
		}
	}
	return cmp.Or(strings.TrimPrefix(text, "."), "it")
}

// checkFields reports a field of JSON that is there twice, or is not spelled as fields has it, and
// a value that is null.
func checkFields(text []byte) error {
	stack := []frame{{list: true}}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if err != nil { // io.EOF: decode has read it all
			return nil
		}
		top := &stack[len(stack)-1]
		if name, ok := token.(string); ok && !top.list && !top.value {
			switch {
			case !slices.Contains(fields, name):
				return fmt.Errorf("unknown field %.64q", name)
			case slices.Contains(top.seen, name):
				return fmt.Errorf("field %q is there twice", name)
			}
			top.seen, top.value = append(top.seen, name), true
			continue
		}
		top.value = false
		if end := token == json.Delim(']') || token == json.Delim('}'); !end {
			top.n++
		}
		switch token {
		case nil:
			return fmt.Errorf("%s is null: must have a value", path(stack))
		case json.Delim('{'), json.Delim('['):
			stack = append(stack, frame{list: token == json.Delim('[')})
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:len(stack)-1]
		}
	}
}

// plain says what is wrong with a body. It does not repeat the body, which has keys in it.
func plain(err error) string {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("syntax error at byte %d", e.Offset)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("%s is a %s: must be a %v", e.Field, strings.Fields(e.Value)[0], e.Type)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

func answer(w http.ResponseWriter, d tiered.Decision, reservation string) {
	httplimit.WriteHeaders(w.Header(), d)
	write(w, httplimit.Status(d), decision{
		Allowed: d.Allowed, Reason: d.Reason.String(), Policy: d.Policy, Burst: d.Burst, Remaining: d.Remaining,
		RetryAfter: d.RetryAfter.Seconds(), ResetAfter: d.ResetAfter.Seconds(), Reservation: reservation,
	})
}

func refuse(w http.ResponseWriter, status int, format string, args ...any) {
	write(w, status, problem{fmt.Sprintf(format, args...)})
}

func write(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil { // numbers and valid text: cannot be
		slog.LogAttrs(context.Background(), slog.LevelError, "httpapi: an answer cannot be written", slog.Any("error", err))
		status, text = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // the client may be gone
}
