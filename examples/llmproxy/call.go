package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"path"
	"slices"
	"strings"
)

const (
	longestBody   = 32 << 20 // images are in it
	defaultTokens = 1000     // of an answer, where the client names no maximum
	bytesPerToken = 4        // of English text, as a rule of thumb
	mediaTokens   = 1500     // of an image or another attachment
)

// call is what is known of a request before it is answered.
type call struct {
	api        string // which of the known ones, or "another"
	most       int64  // tokens that it may cost
	addedUsage bool   // the stream is to say its usage, for which the client did not ask
}

type callKey struct{}

func callOf(ctx context.Context) call {
	c, _ := ctx.Value(callKey{}).(call)
	return c
}

// asked is what a request says, in any of the protocols.
type asked struct {
	MaxTokens           int64           `json:"max_tokens"`            // Messages, and older clients of Chat Completions
	MaxCompletionTokens int64           `json:"max_completion_tokens"` // Chat Completions
	MaxOutputTokens     int64           `json:"max_output_tokens"`     // Responses
	N                   int64           `json:"n"`                     // answers, of Chat Completions
	Stream              bool            `json:"stream"`
	StreamOptions       map[string]any  `json:"stream_options"`
	Messages            json.RawMessage `json:"messages"`
}

// readCall reads what a request may cost, before its limits are asked. The body goes on as it came,
// but for a stream of Chat Completions: that says its usage only if somebody asks.
func readCall(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := call{api: "another"} // a path may have anything in it, so it is not logged
		if end := path.Base(r.URL.Path); slices.Contains([]string{"completions", "responses", "messages", "embeddings"}, end) {
			c.api = end
		}
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestBody))
			if err != nil {
				writeError(w, http.StatusRequestEntityTooLarge, "invalid_request_error", "The request cannot be read, or is too long.")
				return
			}
			var a asked
			_ = json.Unmarshal(body, &a) // the service will say what is wrong with it
			c.most = a.most(body)
			if a.Stream && strings.HasSuffix(r.URL.Path, "/chat/completions") && a.StreamOptions["include_usage"] != true {
				body, c.addedUsage = withUsage(body, a.StreamOptions)
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	})
}

// most is what a request may cost: its prompt, and the longest answers that it allows.
func (a *asked) most(body []byte) int64 {
	answer := max(a.MaxTokens, a.MaxCompletionTokens, a.MaxOutputTokens)
	if answer <= 0 {
		answer = defaultTokens
	}
	if n := max(a.N, 1); answer > math.MaxInt64/2/n {
		answer = math.MaxInt64 / 2 // is never admitted
	} else {
		answer *= n
	}
	return prompt(body) + answer
}

// prompt estimates the tokens of a request by its length. An attachment is in it as base64, whose
// length says little.
func prompt(body []byte) int64 {
	var v any
	if json.Unmarshal(body, &v) != nil {
		return int64(len(body))/bytesPerToken + 1
	}
	length, media := int64(len(body)), int64(0)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, one := range v {
				walk(one)
			}
		case map[string]any:
			kind, _ := v["type"].(string)
			for name, one := range v {
				if text, ok := one.(string); ok && (strings.HasPrefix(text, "data:") || name == "data" && kind != "text") {
					length, media = length-int64(len(text)), media+mediaTokens
					continue
				}
				walk(one)
			}
		}
	}
	walk(v)
	return max(length, 0)/bytesPerToken + media + 1
}

// withUsage asks for the usage of a stream. It reports false if it cannot.
func withUsage(body []byte, options map[string]any) ([]byte, bool) {
	var all map[string]json.RawMessage
	if json.Unmarshal(body, &all) != nil {
		return body, false
	}
	if options == nil {
		options = map[string]any{}
	}
	options["include_usage"] = true
	text, err := json.Marshal(options)
	if err != nil {
		return body, false
	}
	all["stream_options"] = text
	with, err := json.Marshal(all)
	if err != nil {
		return body, false
	}
	return with, true
}
