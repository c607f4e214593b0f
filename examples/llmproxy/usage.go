package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// longestAnswer bounds what is kept of an answer in one piece, or of one event of a stream.
const longestAnswer = 8 << 20

// usage is what answers say that they have cost. Each protocol has names of its own, and a stream
// says more in later events, so the greatest of each number counts.
type usage struct {
	found  bool
	failed bool // the answer is an error

	total         int64 // Chat Completions and Responses: cached tokens are in it
	input, output int64
	cached        int64 // of total: read from the cache of prompts
	read, created int64 // Messages: read from the cache, and written to it; beside input
}

// said is where the protocols have it.
type said struct {
	Type     string          `json:"type"`
	Error    json.RawMessage `json:"error"`
	Usage    *counts         `json:"usage"`
	Response struct {
		Status string  `json:"status"`
		Usage  *counts `json:"usage"`
	} `json:"response"` // in the events of Responses
	Message struct {
		Usage *counts `json:"usage"`
	} `json:"message"` // in the first event of Messages
	Choices []json.RawMessage `json:"choices"`
}

type counts struct {
	Total      int64 `json:"total_tokens"`
	Prompt     int64 `json:"prompt_tokens"` // Chat Completions
	Completion int64 `json:"completion_tokens"`
	Input      int64 `json:"input_tokens"` // Responses and Messages
	Output     int64 `json:"output_tokens"`
	Read       int64 `json:"cache_read_input_tokens"` // Messages
	Created    int64 `json:"cache_creation_input_tokens"`
	OfPrompt   struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	OfInput struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

// look reads an answer, or an event of one. It reports whether the event has nothing but the usage,
// as the last one of Chat Completions.
func (u *usage) look(text []byte) (onlyUsage bool) {
	var s said
	if json.Unmarshal(text, &s) != nil {
		return false
	}
	u.failed = u.failed || s.Type == "error" || s.Type == "response.failed" || len(s.Error) > 0 && string(s.Error) != "null"
	for _, c := range []*counts{s.Usage, s.Response.Usage, s.Message.Usage} {
		if c == nil || *c == (counts{}) {
			continue
		}
		u.found = true
		u.total = max(u.total, c.Total)
		u.input, u.output = max(u.input, c.Input, c.Prompt), max(u.output, c.Output, c.Completion)
		u.cached = max(u.cached, c.OfPrompt.Cached, c.OfInput.Cached)
		u.read, u.created = max(u.read, c.Read), max(u.created, c.Created)
	}
	return s.Usage != nil && s.Choices != nil && len(s.Choices) == 0
}

// cost is what an answer has cost.
func (u *usage) cost(cachedFree bool) int64 {
	n := u.total
	if n == 0 {
		n = u.input + u.created + u.output
		if !cachedFree {
			n += u.read
		}
	}
	if cachedFree {
		n -= u.cached
	}
	return max(n, 0)
}

// whole reads along with an answer in one piece.
type whole struct {
	io.ReadCloser
	text  []byte
	over  bool
	ended func(usage)
}

func (w *whole) Read(b []byte) (int, error) {
	n, err := w.ReadCloser.Read(b)
	if len(w.text)+n <= longestAnswer { // else it is nothing that tells a cost
		w.text = append(w.text, b[:n]...)
	}
	if errors.Is(err, io.EOF) && !w.over {
		w.over = true
		var events stream // some services do not say that they stream
		if events.u.look(w.text); !json.Valid(w.text) {
			events.take(w.text)
			events.endLine()
			events.endEvent()
		}
		w.ended(events.u)
	}
	return n, err
}

// stream reads along with server-sent events: see
// https://html.spec.whatwg.org/multipage/server-sent-events.html. It passes each event on when that
// is complete. Lines end with LF, CR LF or CR, and the data of an event may have several.
type stream struct {
	io.ReadCloser
	u         usage
	dropUsage bool // the client did not ask for the event that has the usage only
	ended     func(usage)

	ready []byte // goes to the client
	event []byte // the bytes of the present event
	line  []byte // of its present line
	data  []byte // of its lines so far
	cr    bool   // the last byte was a CR
	long  bool   // the event is too long to look at: its bytes were passed on
	over  bool
}

func (s *stream) Read(b []byte) (int, error) {
	for len(s.ready) == 0 && !s.over {
		var room [4096]byte
		n, err := s.ReadCloser.Read(room[:])
		s.take(room[:n])
		switch {
		case errors.Is(err, io.EOF):
			s.endLine()
			s.endEvent() // a stream that ends without its last blank line has the event all the same
			s.over = true
			s.ended(s.u)
		case err != nil:
			s.ready = append(s.ready, s.event...)
			s.event = nil
			if len(s.ready) == 0 {
				return 0, err
			}
		}
	}
	if len(s.ready) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}

func (s *stream) take(text []byte) {
	for _, c := range text {
		s.event = append(s.event, c)
		switch {
		case c == '\n' && s.cr: // of CR LF
		case c == '\n' || c == '\r':
			if blank := len(s.line) == 0; blank {
				s.endEvent()
			} else {
				s.endLine()
			}
		case len(s.line)+len(s.data) < longestAnswer:
			s.line = append(s.line, c)
		default:
			s.long = true
		}
		s.cr = c == '\r'
	}
	if s.long {
		s.ready, s.event = append(s.ready, s.event...), s.event[:0]
	}
}

// endLine keeps the data of a line. A field's value may have a space before it.
func (s *stream) endLine() {
	name, value, _ := bytes.Cut(bytes.TrimPrefix(s.line, []byte("\ufeff")), []byte(":"))
	if string(name) == "data" {
		s.data = append(append(s.data, bytes.TrimPrefix(value, []byte(" "))...), '\n')
	}
	s.line = s.line[:0]
}

// endEvent looks at an event, and passes it on.
func (s *stream) endEvent() {
	if only := !s.long && s.u.look(s.data); !only || !s.dropUsage {
		s.ready = append(s.ready, s.event...)
	}
	s.event, s.line, s.data, s.long = s.event[:0], s.line[:0], s.data[:0], false
}
