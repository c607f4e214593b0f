package main_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// Each setting of envoyproxy/ratelimit f2fb157 is read, with the same default, or is ignored and
// said so if it asks for something. TestPage and TestIgnored hold the page against both.
func TestTheirSettings(t *testing.T) {
	ours := map[string]string{}
	for f := range reflect.TypeFor[tieredd.Settings]().Fields() {
		ours[f.Tag.Get("env")] = f.Tag.Get("envDefault")
	}
	var ignored []string
	for _, names := range tieredd.IgnoredNames() {
		for pattern := range strings.FieldsSeq(names) {
			pattern, _, _ = strings.Cut(pattern, "=")
			ignored = append(ignored, pattern)
		}
	}
	n := 0
	for line := range strings.Lines(string(fatal.Get(os.ReadFile("testdata/their_settings.txt"))(t))) {
		n++
		name, usual, _ := strings.Cut(strings.TrimSpace(line), "=")
		is, read := ours[name]
		told := slices.ContainsFunc(ignored, func(pattern string) bool {
			prefix, family := strings.CutSuffix(pattern, "*")
			return pattern == name || family && strings.HasPrefix(name, prefix)
		})
		zero := func(value string) string {
			if value == "false" || value == "0" {
				return ""
			}
			return value
		}
		switch {
		case !read && !told:
			t.Errorf("%s is neither read nor ignored", name)
		case read && zero(is) != zero(usual) && name != "REDIS_URL":
			t.Errorf("the default of %s is %q, and theirs is %q", name, is, usual)
		}
	}
	if n != 114 {
		t.Errorf("%d settings", n)
	}
}
