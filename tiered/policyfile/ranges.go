package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// Range is an exception: what comes from these addresses has another limit than the rule's.
type Range struct {
	Addresses netip.Prefix
	Policy    string // by which alone it counts, for its address; "" is unlimited
}

// Exceptions are those of a rule.
type Exceptions struct {
	Address Key // how the address of a client is found; zero without Ranges
	Ranges  []Range
}

// Find returns what finds the longest range that has an address.
func (e Exceptions) Find() func(netip.Addr) (Range, bool) {
	by, lengths := make(map[netip.Prefix]Range, len(e.Ranges)), map[int]bool{}
	for _, r := range e.Ranges {
		by[r.Addresses] = r
		lengths[r.Addresses.Bits()] = true
	}
	longest := slices.Sorted(maps.Keys(lengths))
	slices.Reverse(longest)
	return func(a netip.Addr) (Range, bool) {
		for _, bits := range longest {
			p, _ := a.Prefix(bits) // none of an IPv4 address is longer than 32 bits
			if r, ok := by[p]; ok && p.IsValid() {
				return r, true
			}
		}
		return Range{}, false
	}
}

// LimitsOf returns the limits of what comes from a range: none, or one.
func (e Exceptions) LimitsOf(r Range) []Limit {
	if r.Policy == "" {
		return nil
	}
	return []Limit{{Policy: r.Policy, Key: []Key{e.Address}, Missing: missings["refuse"], Cost: 1}}
}

// unlimited is the word for a range without a limit.
const unlimited = "unlimited"

// exceptions returns the fields of a rule that say which addresses have other limits. end must be
// called after the limits have been read.
func (r *reader) exceptions(
	e *Exceptions, w words, check func(Key) error,
) (fields []field, end func(path string, limits []Limit)) {
	addresses := maps.Clone(w.keys)
	maps.DeleteFunc(addresses, func(_ string, f finder) bool { return !f.address })
	var address, ranges *yaml.Node
	fields = []field{
		{"address", func(path string, n *yaml.Node) {
			address = n
			e.Address, _ = parsed(r, path, n, oneOf(addresses, check))
		}},
		{"ranges", func(path string, n *yaml.Node) {
			ranges = n
			e.Ranges = r.ranges(path, n)
		}},
	}
	return fields, func(path string, limits []Limit) {
		switch {
		case address != nil && ranges == nil:
			r.Bad(address, "%s.address is there without ranges: must be left out", path)
		case address == nil && ranges != nil:
			var all []Key
			for _, l := range limits {
				for _, k := range l.Key {
					if w.keys[k.Kind].address && !slices.ContainsFunc(all, func(o Key) bool { return o.String() == k.String() }) {
						all = append(all, k)
					}
				}
			}
			if len(all) == 1 {
				e.Address = all[0]
				return
			}
			why := "no key of its limits is an address"
			if len(all) > 1 {
				why = "its limits have several"
			}
			r.Bad(ranges, "%s.address is missing: must say how the address of a client is found, as a key does, because %s", path, why)
		}
	}
}

// ranges reads ranges and what holds for them.
func (r *reader) ranges(path string, n *yaml.Node) (all []Range) {
	lines := map[netip.Prefix]int{}
	r.Keys(path, n, func(key, value *yaml.Node) {
		p, err := parseRange(key.Value)
		if err != nil {
			r.Bad(key, "%s: a range %v", path, err)
		} else if line := lines[p]; line > 0 {
			r.Bad(key, "%s: the range %s is there twice: the first is in line %d", path, rangeText(p), line)
		}
		lines[p] = key.Line
		text, ok := r.Text(path, value)
		switch {
		case !ok:
			return
		case text == unlimited:
			text = ""
		case r.policy(text) < 0:
			r.Bad(value, "%s: is %s: must be unlimited, or the name of a policy in this file, as of one with limit: blocked",
				path, strictyaml.Quote(text))
		}
		all = append(all, Range{p, text})
	})
	return all
}

// parseRange reads a range of addresses, or one address. An IPv4 range in IPv6 form is that of
// IPv4, because addresses of clients are read so.
func parseRange(text string) (p netip.Prefix, err error) {
	shown := "" // a text that is no address may be a key of a client, with a wrong indentation
	if isLikeAddress(text) {
		shown = strictyaml.Quote(text) + " "
	}
	bad := func(format string, args ...any) (netip.Prefix, error) {
		return netip.Prefix{}, errors.New("is " + shown + fmt.Sprintf(format, args...))
	}
	if a, err := netip.ParseAddr(text); err == nil {
		if a.Zone() != "" {
			return bad("with a zone: must have none")
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	if p, err = netip.ParsePrefix(text); err != nil {
		return bad("and not valid: must be an address, or a range such as 10.0.0.0/8 or 2001:db8::/32")
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return bad("of IPv4 addresses in IPv6 form: must have 96 bits at least, or be written as IPv4")
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if whole := p.Masked(); whole != p {
		return bad("with bits after the first %d: must be %s, or %s for one address", p.Bits(), whole, p.Addr())
	}
	return p, nil
}

// isLikeAddress reports whether a text has only what addresses and ranges have.
func isLikeAddress(text string) bool {
	return len(text) <= 50 && strings.ContainsAny(text, ".:") && strings.Trim(text, "0123456789abcdefABCDEF.:/") == ""
}

// rangeText writes a range as a file has it: one address without its length.
func rangeText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// text returns the fields of a rule for its exceptions: names and values by turns, none if there
// are none.
func (e Exceptions) text() (fields []any) {
	if len(e.Ranges) == 0 {
		return nil
	}
	ranges := yamlMap()
	for _, r := range e.Ranges {
		ranges.Content = append(ranges.Content, yamlText(rangeText(r.Addresses)), yamlText(cmp.Or(r.Policy, unlimited)))
	}
	return []any{"address", yamlText(e.Address.String()), "ranges", ranges}
}
