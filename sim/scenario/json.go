package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
)

// ParseJSON reads a scenario from the JSON that encoding/json makes of one, at most 512 KiB. Unknown names are
// errors. If the JSON is broken or a value has the wrong type, it reports the first such error and the byte that it
// is at. Otherwise it reports all that is wrong, as [Errors], each with its path. It never panics. Faults may be in
// any order, as in [Parse].
func ParseJSON(data []byte) (*Scenario, error) {
	if err := (place{}).atMost("the JSON", len(data), "bytes long", maxJSON); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	s := &Scenario{}
	err := d.Decode(s)
	if err == nil {
		if _, err = d.Token(); err == nil {
			err = errors.New("there is more after it")
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		text := strings.TrimPrefix(err.Error(), "json: ")
		return nil, Errors{{Text: says("the JSON", "broken"+where(err, len(data)), text)}}
	}
	c := newChecker(place{})
	c.scenario(s)
	s = s.Clone() // without empty lists
	s.sortFaults()
	if err := c.verdict(s, "bytes of text", place{}); err != nil {
		return nil, err
	}
	return s, nil
}

// where returns the place of an error in JSON of so many bytes, if it is known.
func where(err error, end int) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return " at byte " + formatWhole(syntax.Offset)
	case errors.As(err, &kind):
		return " at byte " + formatWhole(kind.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return " at byte " + strconv.Itoa(end)
	}
	return ""
}
