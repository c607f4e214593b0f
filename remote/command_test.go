package remote

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

// numbersOf makes the value that go-redis decodes a list of integers to.
func numbersOf(n ...int64) []any {
	list := make([]any, len(n))
	for i, x := range n {
		list[i] = x
	}
	return list
}

func TestDecodeReply(t *testing.T) {
	got, err := decodeReply(numbersOf(1, 2, -3, -1, 5, 6, 7, 8, 9, 10))
	want := Reply{
		Code: Denied, Grant: 2, Level: -3, Retry: -1, Active: 5, TTLLeft: 6, Now: 7, Epoch: 8, Flags: 9, Overflow: 10,
	}
	if err != nil || got != want {
		t.Errorf("decoded %+v, %v", got, err)
	}
	mixed := numbersOf(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	mixed[4] = "0"
	for _, val := range []any{
		nil, "OK", int64(0), []any{}, numbersOf(0, 0, 0, 0, 0, 0, 0, 0, 0), numbersOf(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), mixed,
		numbersOf(6, 0, 0, 0, 0, 0, 0, 0, 0, 0), numbersOf(-1, 0, 0, 0, 0, 0, 0, 0, 0, 0), map[any]any{int64(1): int64(1)},
		errors.New("an error in a list"), []any{nil, nil, nil, nil, nil, nil, nil, nil, nil, nil},
	} {
		if r, err := decodeReply(val); !errors.Is(err, errShape) || r != (Reply{}) {
			t.Errorf("decodeReply(%v) = %+v, %v", val, r, err)
		}
	}
	if c, err := decodeCensus(numbersOf(3, 4)); err != nil || c != (Census{Processes: 3, Now: 4}) {
		t.Errorf("decoded %+v, %v", c, err)
	}
	if c, err := decodeCensus(numbersOf(3)); !errors.Is(err, errShape) || c != (Census{}) {
		t.Errorf("decoded %+v, %v", c, err)
	}
}

// FuzzDecodeReply: whatever a server or a proxy sends is a reply with those numbers or an error, never a panic.
func FuzzDecodeReply(f *testing.F) {
	f.Add("0 1 2 3 4 5 6 7 8 9")
	f.Add("0 1 2 3 4 5 6 7 8 nine")
	f.Add("5 0 0 0 0 0 0 0 0 0 0")
	f.Add("")
	f.Fuzz(func(t *testing.T, words string) {
		var list []any
		whole := true
		for word := range strings.FieldsSeq(words) {
			n, err := strconv.ParseInt(word, 10, 64)
			switch {
			case err == nil:
				list = append(list, n)
			case len(word)%3 == 0:
				list, whole = append(list, word), false
			case len(word)%3 == 1:
				list, whole = append(list, nil), false
			default:
				list, whole = append(list, []any{word}), false
			}
		}
		r, err := decodeReply(list)
		if good := whole && len(list) == 10 && list[0].(int64) >= 0 && list[0].(int64) <= 5; good != (err == nil) {
			t.Fatalf("decodeReply(%v) = %+v, %v", list, r, err)
		}
		if err == nil && (int64(r.Code) != list[0] || r.Grant != list[1] || r.Overflow != list[9]) {
			t.Fatalf("decodeReply(%v) = %+v", list, r)
		}
	})
}
