package measure

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Diff compares two reports and returns a line for each value that differs, with its path in the
// JSON. It leaves out the scenario, the seed, the version and the series, and the unseed if the
// seeds differ. Two numbers are equal if they differ by at most the tolerance, as a part of the
// greater one: 0.05 is 5 %. A value that only one report knows differs.
func Diff(a, b *Report, tolerance float64) (lines []string) {
	x, y := values(a), values(b)
	both := maps.Clone(x)
	maps.Copy(both, y)
	for _, path := range slices.Sorted(maps.Keys(both)) {
		if path == "unseed" && a.Seed != b.Seed {
			continue
		}
		v, isNumber := x[path].(float64)
		w, isNumber2 := y[path].(float64)
		near := isNumber && isNumber2 && math.Abs(v-w) <= (tolerance+1e-9)*max(v, w)
		if x[path] != y[path] && !near {
			lines = append(lines, fmt.Sprintf("%s: %s, %s", clean(path), plain(x[path]), plain(y[path])))
		}
	}
	return lines
}

// values returns what is compared of a report, by path.
func values(r *Report) map[string]any {
	short := *r
	short.Scenario, short.Seed, short.Version, short.Series = nil, 0, "", Series{}
	var tree any
	text, _ := json.Marshal(&short)
	_ = json.Unmarshal(text, &tree) // it is JSON
	all := map[string]any{}
	flatten(all, "", tree)
	return all
}

// flatten adds the values within a value. In an array each has the path of its name or text.
func flatten(all map[string]any, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			flatten(all, strings.TrimPrefix(path+"."+name, "."), inner)
		}
	case []any:
		for i, inner := range value {
			object, _ := inner.(map[string]any)
			name := cmp.Or(object["name"], object["text"], any(i))
			flatten(all, fmt.Sprint(path, ".", name), inner)
		}
	default:
		all[path] = value
	}
}

// plain is a value as text, - if it is not there or not known.
func plain(v any) string {
	if n, ok := v.(float64); v == nil || ok && n < 0 {
		return "-"
	}
	return clean(fmt.Sprint(v))
}
