package policyfile

import (
	"fmt"
	"io"
	"os"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// MaxSize is the size of the largest file, in bytes.
const MaxSize = 4 << 20

// Version is the version of the format.
const Version = "1"

// File is what a file says.
type File struct {
	Policies []tiered.Policy // all valid
	AtOnce   []atonce.Policy // all valid; see [atonce.SetPolicies]
	HTTP     []Route
	GRPC     []Method

	read []policy // the policies, as they were read
}

// Notes returns lines about the policies of a File that Load or Parse has made: what is probably
// not meant, and when the next windows of calendar limits begin after a time.
func (f *File) Notes(now time.Time) (all []string) {
	for i := range f.read {
		p := &f.read[i]
		for _, w := range p.Warnings() {
			all = append(all, fmt.Sprintf("warning: policy %s: %s", strictyaml.Quote(p.Name), w))
		}
		seen := map[tiered.Calendar]bool{}
		for _, l := range p.limits() {
			if seen[l.Calendar] || l.Calendar.IsZero() {
				continue
			}
			seen[l.Calendar] = true
			line, at := fmt.Sprintf("policy %s: windows of %v begin at", strictyaml.Quote(p.Name), l), now
			for range 3 {
				_, at = l.Calendar.At(at)
				line += " " + at.Format(time.RFC3339)
			}
			all = append(all, line)
		}
	}
	return all
}

// Load reads a file. Errors name all that is wrong, each with file, line and column.
func Load(path string) (*File, error) {
	data, _, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// read reads a file of up to MaxSize bytes, and when it was written.
func read(path string) (data []byte, written time.Time, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, written, fmt.Errorf("policyfile: %w", err)
	}
	defer func() { _ = f.Close() }()
	if data, err = io.ReadAll(io.LimitReader(f, MaxSize+1)); err != nil {
		return nil, written, fmt.Errorf("policyfile: %w", err)
	}
	if info, err := f.Stat(); err == nil {
		written = info.ModTime()
	}
	return data, written, nil
}

// Parse reads the content of a file, YAML or JSON. name is for errors.
func Parse(name string, data []byte) (*File, error) {
	root, err := strictyaml.Document(name, data, MaxSize, "a version and policies")
	if err != nil {
		return nil, fmt.Errorf("policyfile: %w", err)
	}
	r := &reader{Reader: strictyaml.Reader{Name: name}, file: new(File)}
	r.readFile(root)
	r.Sort()
	if err := r.Err(); err != nil {
		return nil, err
	}
	return r.file, nil
}

// readFile reads the whole file.
func (r *reader) readFile(n *yaml.Node) {
	f := r.file
	var matches []*yaml.Node  // of f.HTTP
	r.mapping("", n, []field{ // the rules after the policies that they name
		{"version", func(path string, n *yaml.Node) {
			if text, ok := r.Text(path, n); ok && text != Version {
				r.Bad(n, "%s is %s: must be %s", path, strictyaml.Quote(text), Version)
			}
		}},
		{"policies", func(path string, n *yaml.Node) {
			names := map[string]int{}
			r.list(path, n, func(path string, n *yaml.Node) {
				p := r.readPolicy(path, n)
				if line := names[p.Name]; p.Name != "" && line > 0 {
					r.Bad(n, "%s: name is %s: the policy in line %d has that name", path, strictyaml.Quote(p.Name), line)
				}
				names[p.Name] = n.Line
				f.Policies, f.read = append(f.Policies, p.Policy), append(f.read, p)
			})
		}},
		{"at_once", func(path string, n *yaml.Node) {
			names := map[string]int{}
			r.list(path, n, func(path string, n *yaml.Node) {
				p := r.readAtOnce(path, n)
				if line := names[p.Name]; p.Name != "" && line > 0 {
					r.Bad(n, "%s: name is %s: the policy in line %d has that name", path, strictyaml.Quote(p.Name), line)
				}
				names[p.Name] = n.Line
				f.AtOnce = append(f.AtOnce, p)
			})
		}},
		{"http", func(path string, n *yaml.Node) {
			r.list(path, n, func(path string, n *yaml.Node) {
				route, match := r.route(path, n)
				f.HTTP, matches = append(f.HTTP, route), append(matches, match)
			})
		}},
		{"grpc", func(path string, n *yaml.Node) { f.GRPC = r.methods(path, n) }},
	}, need{"version", "must be " + Version}, need{"policies", "must be a list"})
	r.patterns(matches, f.HTTP)
}
