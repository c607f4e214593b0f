package ideal

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Admission is a decision that let tokens through at an unknown instant from Before to After.
type Admission struct {
	Before, After int64 // ns, read just before and just after the call
	Tokens        int64
}

// Worst reports the interval that exceeds the limit (tokens per period, and burst) by most, or
// keeps it with the least slack, counting for an interval [s,t] only the admissions that lie wholly
// inside: s ≤ Before and After ≤ t. The order of the admissions does not matter and is kept. Of no
// admissions the worst interval is an empty one: Over is −burst.
//
// Some worst interval begins at a Before and ends at an After, else it could be shortened. So s
// goes down through the Befores, which lets in one admission after the other, and a tree over the
// Afters knows the best t for each s. A million admissions take about half a second and 116 MB.
func Worst(admissions []Admission, tokens int64, per time.Duration, burst int64) Excess {
	return WorstNet(admissions, nil, tokens, per, burst)
}

// Credit is tokens that came back to the bucket at an unknown instant between From and To, or that
// are forgiven.
type Credit struct {
	From, To int64 // ns
	Tokens   int64
}

// WorstNet is Worst of what was admitted less what came back: of an interval, with all that may
// have come back in it. The Tokens of the Excess are net too.
func WorstNet(admissions []Admission, credits []Credit, tokens int64, per time.Duration, burst int64) Excess {
	l := newLimit(tokens, per, burst)
	if len(admissions) == 0 {
		return l.excess(0, 0, 0)
	}
	// A leaf is an admission, at its After, or a credit, at its From: no interval ends with one,
	// and the first of equals are credits.
	type leaf struct {
		at, until, tokens int64
		credit            bool
	}
	var leaves []leaf
	for _, c := range credits {
		leaves = append(leaves, leaf{c.From, c.To, c.Tokens, true})
	}
	for _, a := range admissions {
		if a.After < a.Before {
			panic(fmt.Sprintf("ideal: admission %+v ends before it begins", a))
		}
		leaves = append(leaves, leaf{a.After, a.Before, a.Tokens, false})
	}
	slices.SortStableFunc(leaves, func(a, b leaf) int { return cmp.Compare(a.at, b.at) })
	// An interval has the admissions that begin in it and the credits that may end in it.
	latest := make([]int, len(leaves)) // indices of leaves, latest until first, and of equals the credits
	for i := range leaves {
		latest[i] = i
	}
	slices.SortFunc(latest, func(i, j int) int {
		a, b := leaves[i], leaves[j]
		if c := cmp.Compare(b.until, a.until); c != 0 || a.credit == b.credit {
			return c
		} else if a.credit {
			return -1
		}
		return 1
	})
	origin := admissions[0].Before
	for _, a := range admissions {
		origin = min(origin, a.Before)
	}

	// In units, an interval's tokens − rate·(t−s) is (tokens up to t − rate·t) + rate·s. The first
	// part is the tree's.
	t := newTree(len(leaves))
	var worst wide // of an empty interval
	from, to := origin, origin
	for _, i := range latest {
		x := leaves[i]
		if x.credit {
			t.set(i, wide{}.minus(l.cost(x.tokens)), least)
			continue
		}
		t.set(i, l.cost(x.tokens), wide{}.minus(l.refill(origin, x.at)))
		if v := t.best().plus(l.refill(origin, x.until)); worst.less(v) {
			worst, from, to = v, x.until, leaves[t.bestLeaf()].at
		}
	}
	if worst == (wide{}) {
		return l.excess(origin, origin, 0)
	}
	var inside int64
	for _, x := range leaves {
		switch {
		case x.credit && x.at <= to && x.until >= from:
			inside -= x.tokens
		case !x.credit && from <= x.until && x.at <= to:
			inside += x.tokens
		}
	}
	return l.excess(from, to, inside)
}

// tree finds the largest, over its leaves, of a leaf's offset plus the sum of weights of this leaf
// and all before it. It is a segment tree of prefix sums, so that adding to all later leaves is one
// change at one leaf, O(log n).
type tree struct {
	nodes  []node // nodes[1] is the root, the children of i are 2i and 2i+1, the last half are the leaves
	leaves int    // a power of two
}

type node struct {
	sum  wide // of the weights below
	best wide // least while no leaf below is set
	leaf int  // the one of best
}

func newTree(n int) *tree {
	leaves := 1
	for leaves < n {
		leaves *= 2
	}
	t := &tree{nodes: make([]node, 2*leaves), leaves: leaves}
	for i := range t.nodes {
		t.nodes[i].best = least
	}
	return t
}

// set gives a leaf its weight and offset. An interval may not end at an admission that is not in
// it, hence only leaves that were set count, and not those whose offset is least.
func (t *tree) set(leaf int, weight, offset wide) {
	i := t.leaves + leaf
	t.nodes[i] = node{sum: weight, best: least, leaf: leaf}
	if offset != least {
		t.nodes[i].best = weight.plus(offset)
	}
	for i /= 2; i > 0; i /= 2 {
		left, right := &t.nodes[2*i], &t.nodes[2*i+1]
		n := node{sum: left.sum.plus(right.sum), best: left.best, leaf: left.leaf}
		if right.best != least {
			if v := left.sum.plus(right.best); n.best.less(v) {
				n.best, n.leaf = v, right.leaf
			}
		}
		t.nodes[i] = n
	}
}

func (t *tree) best() wide    { return t.nodes[1].best }
func (t *tree) bestLeaf() int { return t.nodes[1].leaf }
