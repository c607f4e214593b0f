package remote_test

import (
	"errors"
	"math"
	"math/big"
	"math/bits"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
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
	got, ok := remote.DecodeReply(lua.TokenBucket, numbersOf(1, 2, -3, -1, 5, 6, 7, 8, 9, 10))
	want := lua.Reply{
		Code: lua.Denied, Grant: 2, Level: -3, Retry: -1, Active: 5, TTLLeft: 6, Now: 7, Epoch: 8, Flags: 9,
		Overflow: 10,
	}
	if !ok || got != want {
		t.Errorf("decoded %+v, %t", got, ok)
	}
	if got, ok = remote.DecodeReply(lua.TokenBucket, numbersOf(1, 2, -3, -1, 5, 6, 7, 8, 9, 10, 11)); !ok ||
		got.Forgiven != 11 {
		t.Errorf("decoded %+v, %t", got, ok)
	}
	mixed := numbersOf(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	mixed[4] = "0"
	for _, val := range []any{
		nil, "OK", int64(0),
		[]any{},
		numbersOf(0, 0, 0, 0, 0, 0, 0, 0, 0), numbersOf(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), mixed,
		numbersOf(6, 0, 0, 0, 0, 0, 0, 0, 0, 0), numbersOf(-1, 0, 0, 0, 0, 0, 0, 0, 0, 0),
		map[any]any{int64(1): int64(1)},
		errors.New("an error in a list"),
		[]any{nil, nil, nil, nil, nil, nil, nil, nil, nil, nil},
	} {
		if r, ok := remote.DecodeReply(lua.TokenBucket, val); ok || r != (lua.Reply{}) {
			t.Errorf("DecodeReply(%v) = %+v, %t", val, r, ok)
		}
	}
	if c, err := remote.DecodeCensus(numbersOf(3, 4, 2), 0); err != nil ||
		!reflect.DeepEqual(c, remote.Census{Processes: 3, Now: 4, Silent: 2}) {
		t.Errorf("decoded %+v, %v", c, err)
	}
	two := remote.Census{Processes: 3, Now: 4, Silent: 2, Policies: []remote.PolicyCensus{{5, 6, 7, 2, 3}, {8, 9, 10, 0, 6}}}
	if c, err := remote.DecodeCensus(numbersOf(3, 4, 2, 5, 6, 7, 2, 3, 8, 9, 10, 0, 6), 2); err != nil || !reflect.DeepEqual(c, two) {
		t.Errorf("decoded %+v, %v", c, err)
	}
	for _, val := range [][]any{
		numbersOf(3), numbersOf(3, 4, 2), numbersOf(3, 4, 2, 5, 6, 7, 8), numbersOf(3, 4, 2, 5, 6, 7, 8, 9, 10),
		numbersOf(3, 4, 2, 5, 6, 7, 2, 7),
	} {
		if c, err := remote.DecodeCensus(val, 1); !errors.Is(err, remote.ErrShape) || !reflect.DeepEqual(c,
			remote.Census{}) {
			t.Errorf("decoded %+v, %v", c, err)
		}
	}
}

// FuzzDecodeReply: whatever go-redis makes of what a server or a proxy sends is a reply with those
// very numbers, or an error; never a panic. shape says of what types the list is, one letter each;
// see valueOf.
func FuzzDecodeReply(f *testing.F) {
	f.Add("iiiiiiiiii", int64(0))
	f.Add("iiiiiiiiii", int64(5))
	f.Add("iiiiiiiiii", int64(6))
	f.Add("iiiiiiiiii", int64(-1))
	f.Add("iii", int64(3))
	f.Add("iiiiii", int64(0))
	f.Add("iiiiii", int64(3))
	f.Add("iiiiii", int64(5))
	for _, letter := range valueLetters {
		f.Add("iiiii"+string(letter)+"iiii", int64(1))
		f.Add(string(letter)+"i", int64(1))
	}
	f.Add("iiiiiiiii", int64(0))
	f.Add("iiiiiiiiiii", int64(0))
	f.Add("iiiiiiiiiin", int64(0))
	f.Add("iiiiiiiiiiiiii", int64(0))
	f.Add("iiiiiiiiiiii", int64(0))
	f.Add("", int64(0))
	f.Fuzz(func(t *testing.T, shape string, first int64) {
		list, numbers, ints := make([]any, 0, len(shape)), make([]int64, 0, len(shape)), true
		for i, letter := range []byte(shape) {
			n := bits.RotateLeft64(uint64(first), 7*i) + uint64(i) // whatever; the first as it is, for it is the code
			x := valueOf(letter, int64(n))
			_, number := x.(int64)
			list, numbers, ints = append(list, x), append(numbers, int64(n)), ints && number
		}
		r, ok := remote.DecodeReply(lua.TokenBucket, list)
		if good := ints && (len(list) == 10 || len(list) == 11 || len(list) == 14) && first >= 0 && first <= 5; good != ok || !ok &&
			r != (lua.Reply{}) {
			t.Fatalf("DecodeReply(%v) = %+v, %t", list, r, ok)
		}
		if ok {
			got := []int64{
				int64(r.Code), r.Grant, r.Level, r.Retry, r.Active, r.TTLLeft, r.Now, r.Epoch, int64(r.Flags),
				r.Overflow, r.Forgiven, r.Governs.Cap, r.Governs.Tokens, r.Governs.Period,
			}[:len(numbers)]
			if !slices.Equal(got, numbers) {
				t.Fatalf("DecodeReply(%v) = %+v", list, r)
			}
		}
		policies := max(len(list)-3, 0) / 5
		c, err := remote.DecodeCensus(list, policies)
		got := []int64{c.Processes, c.Now, c.Silent}
		for _, p := range c.Policies {
			got = append(got, p.Processes, p.OtherServices, p.OtherLimits, p.SharedAlike, int64(p.Used))
		}
		whole := ints && len(list) == 3+5*policies && slices.Min(numbers) >= 0 && slices.Max(numbers) < lua.Whole
		for i := 7; whole && i < len(list); i += 5 {
			whole = numbers[i] <= lua.MostShared
		}
		switch {
		case err != nil && (!errors.Is(err, remote.ErrShape) || !reflect.DeepEqual(c, remote.Census{})),
			err == nil && !slices.Equal(got, numbers),
			whole != (err == nil):
			t.Fatalf("decodeCensus(%v, %d) = %+v, %v", list, policies, c, err)
		}
		p, ok := lua.DecodePoll(list)
		if good := ints && len(list) == 6 && (first == 0 || first == 3 || first == 4); good != ok {
			t.Fatalf("DecodePoll(%v) = %+v, %t", list, p, ok)
		}
		if fields := []int64{int64(p.Code), p.Grant, p.Epoch, p.Members, int64(p.Flags), p.Now}; ok &&
			!slices.Equal(fields, numbers) {
			t.Fatalf("DecodePoll(%v) = %+v", list, p)
		}
	})
}

// valueLetters are the types of [valueOf].
const valueLetters = "isdnfFbgelmju"

// valueOf makes a value of n, of the type that a letter stands for: all that go-redis decodes, and
// some that it does not.
func valueOf(letter byte, n int64) any {
	switch letter {
	case 's':
		return "three"
	case 'd':
		return strconv.FormatInt(n, 10)
	case 'n':
		return nil
	case 'f':
		return float64(n)
	case 'F':
		return math.NaN()
	case 'b':
		return n > 0
	case 'g':
		return big.NewInt(n)
	case 'e':
		return replyError("ERR in a list")
	case 'l':
		return []any{n}
	case 'm':
		return map[any]any{n: n}
	case 'j':
		return int(n)
	case 'u':
		return uint64(n)
	default:
		return n
	}
}
