package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// files are the files of the reports. "-" is stdout, which then gets nothing else.
type files struct{ json, html string }

func (f *files) flags(c *cobra.Command) {
	c.Flags().StringVar(&f.json, "json", "", "write the report as JSON to `FILE`, or - for stdout (sim/report.md says what is in it)")
}

// pageFlag is that of a command whose report is also a page.
func (f *files) pageFlag(c *cobra.Command) {
	c.Flags().StringVar(&f.html, "html", "", "write it as one HTML page to `FILE`, or - for stdout")
}

// stdout reports whether a file is stdout.
func (f *files) stdout() bool { return f.json == "-" || f.html == "-" }

// check reports before a long run whether the files can be written.
func (f *files) check() error {
	if f.json != "" && f.json == f.html {
		return fmt.Errorf("--json and --html are both %q: must differ", f.json)
	}
	var all []error
	for _, path := range []string{f.json, f.html} {
		if path == "" || path == "-" {
			continue
		}
		directory := filepath.Dir(path)
		if info, err := os.Stat(directory); err != nil || !info.IsDir() {
			all = append(all, fmt.Errorf("%q cannot be written: %q is no directory", path, directory))
		} else if info, err := os.Stat(path); err == nil && info.IsDir() {
			all = append(all, fmt.Errorf("%q cannot be written: it is a directory", path))
		}
	}
	return errors.Join(all...)
}

// write writes a file if its name is not empty: completely or not at all.
func (a *app) write(path string, render func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	var b bytes.Buffer
	if err := render(&b); err != nil {
		return err
	}
	if path == "-" {
		_, err := a.out.Write(b.Bytes())
		return err
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return quoted(err)
	}
	return nil
}

// quoted returns an error about a file with its path in quotes.
func quoted(err error) error {
	if e := (*os.PathError)(nil); errors.As(err, &e) {
		return fmt.Errorf("%s %q: %w", e.Op, e.Path, e.Err)
	}
	return err
}
