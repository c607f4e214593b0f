package scenario

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ParseJSON reads a scenario from the JSON that encoding/json makes of one, at most 512 KiB. It is strict:
// unknown and repeated names, null, and values of another type are errors. It reports all that is wrong at once, as
// [Errors], each with its path and offset; of broken JSON it says where only. It never panics. Faults may be in any
// order, as in [Parse].
func ParseJSON(data []byte) (*Scenario, error) {
	if err := (place{}).atMost("the JSON", len(data), "bytes long", maxJSON); err != nil {
		return nil, err
	}
	r := &reader{data: data, dec: json.NewDecoder(bytes.NewReader(data)), checker: newChecker(place{})}
	r.dec.UseNumber()
	r.name = func(path string) string { return cmp.Or(path, "the JSON") }
	var whole json.RawMessage
	if !utf8.Valid(data) {
		bad := bytes.IndexByte(bytes.ToValidUTF8(data, []byte{0xff}), 0xff) // it keeps what is before
		r.report(place{offset: int64(bad)}, "", "the JSON", "no UTF-8 from here", "must be UTF-8")
		return nil, r.errs
	}
	if syntax := (*json.SyntaxError)(nil); errors.As(json.Unmarshal(data, &whole), &syntax) {
		at := place{offset: max(0, syntax.Offset-1)}
		r.report(at, "", "the JSON", "broken here", "must be one object; "+syntax.Error())
		return nil, r.errs
	}
	s := &Scenario{}
	r.value(reflect.ValueOf(s).Elem(), "")
	r.scenario(s)
	s.sortFaults()
	if err := r.verdict(s, "bytes of text", place{}); err != nil {
		return nil, err
	}
	return s, nil
}

// reader walks through JSON along the types of a Scenario.
type reader struct {
	data []byte
	dec  *json.Decoder
	checker
}

// next is where the next token begins.
func (r *reader) next() int64 {
	at := r.dec.InputOffset()
	for at < int64(len(r.data)) && strings.IndexByte(" \t\r\n,:", r.data[at]) >= 0 {
		at++
	}
	return at
}

// raw is the JSON of the value that was just read, if it was one token.
func (r *reader) raw(from int64) string { return string(r.data[from:r.dec.InputOffset()]) }

var durationType = reflect.TypeFor[Duration]()

// token is the next one. There is no error: the JSON is sound.
func (r *reader) token() json.Token {
	t, _ := r.dec.Token()
	return t
}

// value reads one value into v. What does not fit is reported and passed over.
func (r *reader) value(v reflect.Value, path string) {
	at := r.next()
	r.at[path] = place{offset: at}
	token := r.token()
	rule := ""
	switch {
	case v.Type() == durationType:
		rule = `must be a duration in quotes, as in "1.5s"`
		if text, ok := token.(string); ok {
			if d, ok := parseDuration(text); ok {
				v.SetInt(int64(d))
				rule = ""
			}
		}
	case v.Kind() == reflect.Struct:
		if token == json.Delim('{') {
			r.object(v, path)
			return
		}
		rule = "must be an object"
	case v.Kind() == reflect.Slice:
		if token == json.Delim('[') {
			r.array(v, path)
			return
		}
		rule = "must be an array"
	case v.Kind() == reflect.String:
		text, ok := token.(string)
		if v.SetString(text); !ok {
			rule = "must be text in quotes"
		}
	case v.Kind() == reflect.Float64:
		number, _ := token.(json.Number)
		f, err := strconv.ParseFloat(number.String(), 64)
		if v.SetFloat(f); err != nil {
			v.SetFloat(0)
			rule = "must be a number"
		}
	default: // int, int64
		number, _ := token.(json.Number)
		n, err := strconv.ParseInt(number.String(), 10, v.Type().Bits())
		if v.SetInt(n); err != nil {
			v.SetInt(0)
			rule = "must be a whole number"
		}
	}
	if rule == "" {
		return
	}
	value := showRaw(r.raw(at))
	switch token {
	case json.Delim('{'):
		value = "an object"
	case json.Delim('['):
		value = "an array"
	}
	r.wrong(path, value, rule)
	r.lost[path] = true // and all in it
	r.pass(token)
}

// pass reads on to the end of the object or array that begins with token, if it is that.
func (r *reader) pass(token json.Token) {
	for depth := 0; ; token = r.token() {
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return
		}
	}
}

func (r *reader) object(v reflect.Value, path string) {
	list := tags(v.Type())
	seen := map[string]bool{}
	for r.dec.More() {
		at := r.next()
		name, _ := r.token().(string)
		i := slices.Index(list, name)
		below := join(path, name)
		rule, value := "", unknown
		if i < 0 {
			rule = "must be one of " + strings.Join(list, ", ") + meant(name, list)
		} else if seen[name] {
			rule, value = "must be there once", "there again"
		}
		if rule == "" {
			seen[name] = true
			r.value(v.Field(i), below)
			continue
		}
		r.report(place{offset: at}, below, join(path, show(name)), value, rule)
		r.pass(r.token())
	}
	r.token()
}

func (r *reader) array(v reflect.Value, path string) {
	all := reflect.MakeSlice(v.Type(), 0, 0)
	for i := 0; r.dec.More(); i++ {
		element := reflect.New(v.Type().Elem()).Elem()
		r.value(element, fmt.Sprintf("%s[%d]", path, i))
		all = reflect.Append(all, element)
	}
	if all.Len() > 0 {
		v.Set(all)
	}
	r.token()
}
