package main_test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// model is a server that speaks the three protocols as their references say, with 10 tokens of
// input, 4 of them cached, and 100 of output. A request says by the field X-Test what goes wrong.
type model struct{ t *testing.T }

// request is what the protocols have in common.
type request struct {
	Stream        bool `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var asked request
	if err != nil || r.Method == http.MethodPost && json.Unmarshal(body, &asked) != nil {
		m.t.Errorf("the model got %q, %v", body, err)
	}
	test := r.Header.Get("X-Test")
	var out io.Writer = w
	switch {
	case test == "503":
		http.Error(w, `{"error":{"message":"overloaded"}}`, http.StatusServiceUnavailable)
		return
	case test == "400":
		http.Error(w, `{"error":{"message":"bad"}}`, http.StatusBadRequest)
		return
	case test == "br":
		w.Header().Set("Content-Encoding", "br")
		_, _ = w.Write([]byte{0x8b, 2, 0x80})
		return
	case strings.Contains(r.Header.Get("Accept-Encoding"), "gzip"):
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		out = z
	}
	w.Header().Set("Content-Type", "application/json")
	if asked.Stream {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	}
	if test == "text/plain" {
		w.Header().Set("Content-Type", test)
	}
	usage := test != "no usage"
	switch path := r.URL.Path; {
	case path == "/v1/models":
		fmt.Fprint(out, `{"object":"list","data":[]}`)
	case test == "other format":
		fmt.Fprint(out, `{"done":true,"eval_count":100}`+"\n")
	case path == "/v1/chat/completions" && asked.Stream:
		chat(out, test, usage && asked.StreamOptions.IncludeUsage)
	case path == "/v1/responses" && asked.Stream:
		responses(out, test, usage)
	case path == "/v1/messages" && asked.Stream:
		messages(out, test, usage)
	default:
		text := map[string]string{
			"/v1/chat/completions": `"usage":{"prompt_tokens":10,"completion_tokens":100,"total_tokens":110,"prompt_tokens_details":{"cached_tokens":4}}`,
			"/v1/responses":        `"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":100,"total_tokens":110}`,
			"/v1/messages":         `"usage":{"input_tokens":5,"cache_creation_input_tokens":1,"cache_read_input_tokens":4,"output_tokens":100}`,
		}[path]
		if !usage {
			text = `"usage":null`
		}
		fmt.Fprintf(out, "{\n \"id\": \"x\", %s}\n", text)
	}
}

// chat streams chunks, each with a null usage, and the usage in a last one without choices.
func chat(out io.Writer, test string, usage bool) {
	fmt.Fprint(out, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hel\"}}],\"usage\":null}\n\n")
	if test == "failed" {
		fmt.Fprint(out, "data: {\"error\":{\"message\":\"overloaded\"}}\n\n")
		return
	}
	fmt.Fprint(out, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"}}],\"usage\":null}\n\n")
	if usage {
		fmt.Fprint(out, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":100,\"total_tokens\":110,"+
			"\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n")
	}
	fmt.Fprint(out, "data: [DONE]\n\n")
}

// responses streams events with CR LF and data in two lines, and the usage in the last one.
func responses(out io.Writer, test string, usage bool) {
	event := func(name, rest string) {
		fmt.Fprintf(out, "event: %s\r\ndata: {\"type\":\"%s\"\r\ndata: %s}\r\n\r\n", name, name, rest)
	}
	event("response.created", `,"response":{"status":"in_progress","usage":null}`)
	event("response.output_text.delta", `,"delta":"hello"`)
	if test == "failed" {
		event("error", `,"error":{"code":"server_error"}`)
		event("response.failed", `,"response":{"status":"failed","usage":null}`)
		return
	}
	text := `null`
	if usage {
		text = `{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":100,"total_tokens":110}`
	}
	event("response.completed", `,"response":{"status":"completed","usage":`+text+`}`)
}

// messages streams events that say the input first, and the output so far in the end. One has its
// data in two lines, with a comment between them, and all lines end with CR.
func messages(out io.Writer, test string, usage bool) {
	start, end := "", ""
	if usage {
		start = `,"usage":{"input_tokens":5,"cache_creation_input_tokens":1,"cache_read_input_tokens":4,"output_tokens":1}`
		end = `,"usage":{"output_tokens":100}`
	}
	fmt.Fprintf(out, "\ufeffevent: message_start\rdata: {\"type\":\"message_start\",\r: a comment\rdata: \"message\":{\"role\":\"assistant\"%s}}\r\r", start)
	fmt.Fprint(out, "event: ping\rdata: {\"type\":\"ping\"}\r\r")
	if test == "failed" {
		fmt.Fprint(out, "event: error\rdata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\r\r")
		return
	}
	fmt.Fprintf(out, "event: message_delta\rdata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}%s}\r\r", end)
	fmt.Fprint(out, "event: message_stop\rdata: {\"type\":\"message_stop\"}") // and no blank line
}
