package policyfile_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Keys of clients may be secrets, such as tokens of an API. Whatever is wrong with one, or near it,
// no line of the log and no error shows it. Both say the line and the column.
func TestNoErrorShowsAKey(t *testing.T) {
	const file = "version: 1\npolicies:\n  - name: a\n    limit: 40/h\n    algorithm: fixed window\n    keys:\n      sk-live-1: 20/h\n" +
		"      sk-live-2: 30/h\n    prefixes:\n      sk-test-: 10/h\n"
	for _, c := range []struct{ from, to string }{
		{"20/h", "20/x"},
		{"20/h", "2/min"}, // its window must be the policy's
		{"20/h", ""},
		{"20/h", "{sk-live-3: 1/h}"},
		{"20/h", "[sk-live-3]"},
		{"10/h", "10"},
		{"sk-live-2", "sk-live-1"},
		{"      sk-live-2", "    sk-live-2"},
		{"      sk-live-2", "  sk-live-2"},
		{"      sk-live-2", "sk-live-2"},
		{"      sk-live-2", "\tsk-live-2"},
		{"      sk-live-2", "     sk-live-2"},
		{"sk-live-2: ", "sk-live-2 "},
		{"sk-live-2: ", "sk-live-2:"},
		{"sk-live-2: 30", "sk-live-2: : 30"},
		{"sk-live-2: 30/h", "*sk-live-2"},
		{"sk-live-2: 30/h", "sk-live-2: *sk-live-3"},
		{"sk-live-2: 30/h", "? [sk-live-2]\n      : 30/h"},
		{"sk-live-2: 30/h", "!sk-live-2: 30/h"},
		{"sk-live-2: 30/h", "!<sk-live-2: 30/h"},
		{"sk-live-2: 30/h", "%sk-live-2: 30/h"},
		{"sk-live-2: 30/h", "'sk-live-2: 30/h"},
		{"sk-live-2: 30/h", "\"sk-live-2\\q\": 30/h"},
		{"sk-live-2: 30/h", "sk-live-2\xff: 30/h"},
		{"sk-live-2: 30/h", "[sk-live-2, 30/h"},
		{"sk-live-2: 30/h", strings.Repeat("sk-live-2", 8000) + ": 30/h"},
		{"      sk-live-1: 20/h\n      sk-live-2: 30/h\n", "      - sk-live-1: 20/h\n"},
		{"keys:\n      sk-live-1: 20/h\n      sk-live-2: 30/h\n", "keys: sk-live-1\n"},
		{"keys:\n      sk-live-1: 20/h\n      sk-live-2: 30/h\n", "keys: [sk-live-1]\n"},
		{"keys:\n      sk-live-1: 20/h\n      sk-live-2: 30/h\n", "keys: {sk-live-1 20/h}\n"},
	} {
		text := strings.Replace(file, c.from, c.to, 1)
		if text == file {
			t.Fatalf("there is no %q", c.from)
		}
		isTold := func(t *testing.T) {
			d := watchText(t, file)
			d.put(text)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			all := d.reloads()
			said := strings.Join(all, "\n") + d.log()
			if len(all) != 1 || all[0] == "<nil>" || !strings.Contains(said, "p.yaml:") || !strings.Contains(said, "level=ERROR") {
				t.Errorf("%.60q: %.500s", c.to, said)
			}
			if strings.Contains(said, "sk-") {
				t.Errorf("%.60q: a key is told: %.500s", c.to, said)
			}
		}
		t.Run("", func(t *testing.T) { synctest.Test(t, isTold) })
	}
}
