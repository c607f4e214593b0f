package report

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// With any input the memory is bounded. A key's true count lies between its figure and its figure
// plus Forgotten, and each key with more than a 64th of all refusals is listed.
func TestEvictedIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Evicted
		truth := map[string]int64{}
		total := int64(0)
		some := rapid.Custom(func(t *rapid.T) string { // some often, most once
			return fmt.Sprint(rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(0, 100_000)).Draw(t, "key"))
		})
		for range rapid.IntRange(0, 400).Draw(t, "adds") {
			key, n := some.Draw(t, "k"), rapid.Int64Range(0, 50).Draw(t, "n")
			truth[key] += n
			total += n
			r.Add(RefusedKey{Key: key, Limited: n})
		}
		if len(r.keys) > evictedKeys {
			t.Fatalf("%d keys", len(r.keys))
		}
		for key, had := range truth {
			k, ok := r.keys[key]
			if !ok && had*evictedKeys > total {
				t.Errorf("%s had %d of %d and is not there", key, had, total)
			}
			if ok && (k.Key != key || k.Tokens() > had || had > k.Tokens()+k.Forgotten) {
				t.Errorf("%+v, in truth %d", k, had)
			}
		}
	})
}

// A Top finds the keys that are refused most, in any order of arrival, with what they were refused
// before they were evicted. What the caller adds to a key stays with it.
func TestTopFindsTheMostRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Evicted
		truth := map[string]RefusedKey{}
		add := func(k RefusedKey) {
			sum := truth[k.Key]
			sum.Key = k.Key
			sum.add(k)
			truth[k.Key] = sum
		}
		draw := func(i int) RefusedKey {
			n := rapid.Int64Range(0, 9)
			return RefusedKey{
				Key: fmt.Sprint(i), Limited: n.Draw(t, "limited"), FallbackSpent: n.Draw(t, "spent"),
				Unavailable: n.Draw(t, "unavailable"), Blocked: n.Draw(t, "blocked"),
			}
		}
		for i := range rapid.IntRange(0, evictedKeys).Draw(t, "evicted") {
			k := draw(i)
			r.Add(k)
			add(k)
		}
		top := r.Top()
		for i := range rapid.IntRange(0, 30*topKeys).Draw(t, "here") {
			k := draw(i)
			add(k)
			added := top.Add(k)
			k = truth[k.Key]
			if (added == nil) != (k.Tokens() == 0) {
				t.Fatalf("%+v: %+v", k, added)
			}
			if len(top.found) > 10*topKeys {
				t.Fatalf("%d keys are kept", len(top.found))
			}
			if added != nil {
				added.LimitNumber = uint8(i % 7)
				k.LimitNumber = uint8(i % 7)
				truth[k.Key] = k
			}
		}
		var want []RefusedKey
		for _, k := range truth {
			if k.Tokens() > 0 {
				want = append(want, k)
			}
		}
		slices.SortFunc(want, func(a, b RefusedKey) int { return a.compare(&b) })
		want = want[:min(len(want), topKeys)]
		if got := top.Keys(); !slices.Equal(got, want) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
		if again := r.Top(); len(again.evicted) != len(r.keys) {
			t.Error("a Top changed what it was made of")
		}
	})
}
