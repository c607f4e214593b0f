package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/picture"
)

// pictures are the flags of what draws runs.
type pictures struct {
	html, svg string
	open      bool
	quiet     bool // stdout is for something else
}

func (o *pictures) flags(c *cobra.Command) {
	c.Flags().StringVar(&o.html, "html", "", "write one HTML page, with all runs side by side, to `FILE`, or - for stdout")
	c.Flags().StringVar(&o.svg, "svg", "", "write one drawing for a document to `FILE`, or - for stdout")
	c.Flags().BoolVar(&o.open, "open", false, "open the page in a browser; without --html it is a temporary file")
}

// stdout reports whether a picture goes there, so that nothing else may.
func (o *pictures) stdout() bool { return o.html == "-" || o.svg == "-" }

// draw writes the pictures of some runs.
func (a *app) draw(names []string, reports []*measure.Report, o *pictures) error {
	if o.open && o.html == "" {
		f, err := os.CreateTemp("", "tiersim-*.html")
		if err != nil {
			return err
		}
		_ = f.Close()
		o.html = f.Name()
	}
	err := a.write(o.html, func(w io.Writer) error {
		if len(reports) == 1 {
			return picture.HTML(w, reports[0])
		}
		return picture.Compare(w, names, reports)
	})
	if err == nil {
		err = a.write(o.svg, func(w io.Writer) error { return picture.SVG(w, names, reports) })
	}
	if err != nil || o.html == "" || o.html == "-" {
		return err
	}
	if !o.quiet && !o.stdout() {
		fmt.Fprintf(a.out, "HTML: %s\n", o.html)
	}
	if o.open {
		return browse(o.html)
	}
	return nil
}

// browse opens a file as the desktop does.
func browse(file string) error {
	command := map[string][]string{"darwin": {"open"}, "windows": {"rundll32", "url.dll,FileProtocolHandler"}}[runtime.GOOS]
	if command == nil {
		command = []string{"xdg-open"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := exec.CommandContext(ctx, command[0], append(command[1:], file)...).Run(); err != nil {
		return fmt.Errorf("--open: %w: open %s yourself", err, file)
	}
	return nil
}
