package lua

import "strings"

// place begins a line of call.lua and lease.lua that a part of a script takes, and the line of the
// script at which the part begins.
const place = "--@ "

// assemble is a template with the script's parts in their places. It panics if a part has no place,
// because that is a mistake in the scripts.
func assemble(template, script string) string {
	head, rest, _ := strings.Cut(script, place)
	parts := map[string]string{}
	for part := range strings.SplitSeq(rest, "\n"+place) {
		name, text, _ := strings.Cut(part, "\n")
		parts[name] = text
	}
	var b strings.Builder
	b.WriteString(head)
	used := map[string]bool{}
	for line := range strings.Lines(template) {
		name, is := strings.CutPrefix(strings.TrimSpace(line), place)
		if !is {
			b.WriteString(line)
			continue
		}
		used[name] = true
		if text := parts[name]; text != "" {
			b.WriteString(strings.TrimRight(text, "\n") + "\n")
		}
	}
	for name := range parts {
		if !used[name] {
			panic("lua: there is no place for " + name)
		}
	}
	return b.String()
}
