// Screenshots writes the pictures of reports that the documents show, as small PNG files.
//
//	go run ./cmd/screenshots -out ../../../docs/images -report report.json -sweep sweep.json -search tune.json
//
// Reports, sweeps and searches are what `tiersim --json` writes. Without them it draws made-up ones, which are good for looking at the
// pages and not for the documents' figures.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/picture"
	"github.com/tiered-limiter/tiered-limiter/sim/picture/browser"
	"github.com/tiered-limiter/tiered-limiter/sim/picture/internal/rehearsal"
)

// maxFile is how large a picture in the documents may be, in bytes.
const maxFile = 150 * 1024

// shots are the pictures: which page, how it is looked at, and how much of it is shown.
var shots = []struct {
	name   string
	page   int
	screen browser.Screen
	height float64
}{
	{"report.png", ofRun, browser.Screen{Width: 1280, Height: 900}, 2150},
	{"report-dark.png", ofRun, browser.Screen{Width: 1280, Height: 900, Dark: true}, 2150},
	{"report-phone.png", ofRun, browser.Screen{Width: 390, Height: 844}, 2600},
	{"report-phone-dark.png", ofRun, browser.Screen{Width: 390, Height: 844, Dark: true}, 2600},
	{"sweep.png", ofSweep, browser.Screen{Width: 1280, Height: 900}, 2500},
	{"sweep-phone.png", ofSweep, browser.Screen{Width: 390, Height: 844}, 2600},
	{"tune.png", ofSearch, browser.Screen{Width: 1280, Height: 900}, 2100},
	{"tune-dark.png", ofSearch, browser.Screen{Width: 1280, Height: 900, Dark: true}, 2100},
	{"tune-phone.png", ofSearch, browser.Screen{Width: 390, Height: 844}, 2600},
	{"tune-phone-dark.png", ofSearch, browser.Screen{Width: 390, Height: 844, Dark: true}, 2600},
}

// The pages.
const (
	ofRun = iota
	ofSweep
	ofSearch
)

func main() {
	out := flag.String("out", ".", "directory to write to")
	report := flag.String("report", "", "report of a run, as JSON")
	sweep := flag.String("sweep", "", "sweep, as JSON")
	search := flag.String("search", "", "search of tiersim tune, as JSON")
	whole := flag.Bool("whole", false, "show all of each page, however large")
	flag.Parse()
	if err := run(*out, *report, *sweep, *search, *whole); err != nil {
		fmt.Fprintln(os.Stderr, "screenshots:", err)
		os.Exit(1)
	}
}

func run(out, reportFile, sweepFile, searchFile string, whole bool) error {
	report, err := load(reportFile, rehearsal.Report(rehearsal.Usual), measure.Read)
	if err != nil {
		return err
	}
	readSweep := func(r io.Reader) (*measure.Sweep, error) {
		var s measure.Sweep
		return &s, json.NewDecoder(r).Decode(&s)
	}
	sweep, err := load(sweepFile, rehearsal.Sweep(3), readSweep)
	if err != nil {
		return err
	}
	search, err := load(searchFile, rehearsal.Sweep(2), readSweep)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "screenshots")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	runPage, err := page(dir, "run.html", func(w io.Writer) error { return picture.HTML(w, report) })
	if err != nil {
		return err
	}
	sweepPage, err := page(dir, "sweep.html", func(w io.Writer) error { return picture.SweepHTML(w, sweep) })
	if err != nil {
		return err
	}
	searchPage, err := page(dir, "tune.html", func(w io.Writer) error { return picture.SweepHTML(w, search) })
	if err != nil {
		return err
	}
	chrome, err := browser.Start()
	if err != nil {
		return err
	}
	defer chrome.Close()
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, s := range shots {
		address := []string{ofRun: runPage, ofSweep: sweepPage, ofSearch: searchPage}[s.page]
		if whole {
			s.height = 1e5
		}
		shot, err := take(chrome, address, s.screen, s.height)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if len(shot) > maxFile && !whole {
			return fmt.Errorf("%s has %d bytes: at most %d are allowed", s.name, len(shot), maxFile)
		}
		if err := os.WriteFile(filepath.Join(out, s.name), shot, 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %d bytes\n", s.name, len(shot))
	}
	return nil
}

// load reads a value from a file, or returns the one that is taken without one.
func load[T any](file string, without *T, read func(io.Reader) (*T, error)) (*T, error) {
	if file == "" {
		return without, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	v, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", file, err)
	}
	return v, nil
}

// page writes a page to a file and returns its URL.
func page(dir, name string, draw func(io.Writer) error) (string, error) {
	var b bytes.Buffer
	if err := draw(&b); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	return (&url.URL{Scheme: "file", Path: path}).String(), os.WriteFile(path, b.Bytes(), 0o600)
}

func take(chrome *browser.Chrome, address string, s browser.Screen, height float64) ([]byte, error) {
	p, err := chrome.Open(address, s)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	shot, err := p.Shot(height)
	if err != nil {
		return nil, err
	}
	return smaller(shot)
}
