package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// names are what a chromium may be called.
var names = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"}

// Chrome is a running browser without a window.
type Chrome struct {
	ctx  context.Context
	stop context.CancelFunc
}

// Start starts a browser with a profile of its own, which is gone when it is closed. It must be closed.
func Start() (*Chrome, error) {
	var path string
	for _, name := range names {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		return nil, errors.New("no chromium in PATH: sh scripts/install-chromium.sh installs one")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WSURLReadTimeout(time.Minute))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // which the superuser cannot have
	}
	allocator, stopAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, stopBrowser := chromedp.NewContext(allocator)
	c := &Chrome{ctx: ctx, stop: func() { stopBrowser(); stopAllocator() }}
	if err := chromedp.Do(ctx); err != nil {
		c.stop()
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	return c, nil
}

// Close ends the browser.
func (c *Chrome) Close() { c.stop() }

// Screen is what a page is looked at on.
type Screen struct {
	Width, Height int64
	Dark          bool
	Scale         float64 // device pixels per pixel; 0 is 1
	Media         string  // print, or empty for a screen
	NoScript      bool    // as if the reader had JavaScript switched off
}

// Page is an open page and what it did so far. Its methods are not for concurrent use.
type Page struct {
	ctx  context.Context
	stop context.CancelFunc

	mu       sync.Mutex
	fetched  []string
	problems []string
}

// Open opens a URL in a new tab. What the page fetches and what goes wrong is noted from the beginning.
func (c *Chrome) Open(url string, s Screen) (*Page, error) {
	tab, stopTab := chromedp.NewContext(c.ctx)
	if err := chromedp.Do(tab); err != nil { // without the timeout, which would end the tab's first context
		stopTab()
		return nil, err
	}
	ctx, stopTime := context.WithTimeout(tab, 2*time.Minute)
	p := &Page{ctx: ctx, stop: func() { stopTime(); stopTab() }}
	if err := p.open(url, s); err != nil {
		p.stop()
		return nil, fmt.Errorf("opening a page: %w", err)
	}
	return p, nil
}

func (p *Page) open(url string, s Screen) error {
	scheme := "light"
	if s.Dark {
		scheme = "dark"
	}
	if err := chromedp.Listen(p.ctx, p.note); err != nil {
		return err
	}
	if _, err := chromedp.Call(p.ctx, network.Enable, network.EnableParams{}); err != nil {
		return err
	}
	if _, err := chromedp.Call(p.ctx, log.Enable, cdp.Empty{}); err != nil {
		return err
	}
	if _, err := chromedp.Call(p.ctx, runtime.Enable, cdp.Empty{}); err != nil {
		return err
	}
	if _, err := chromedp.Call(p.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: s.Width, Height: s.Height, DeviceScaleFactor: max(s.Scale, 1), Mobile: s.Width < 760,
	}); err != nil {
		return err
	}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media: s.Media, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}); err != nil {
		return err
	}
	if _, err := chromedp.Call(p.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: s.NoScript}); err != nil {
		return err
	}
	return chromedp.Do(p.ctx, chromedp.Navigate(url))
}

// note keeps what the browser tells about the page.
func (p *Page) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		p.fetched = append(p.fetched, e.Request.URL)
	case *runtime.EventExceptionThrown:
		p.problems = append(p.problems, e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		p.problems = append(p.problems, "the page writes to the console: "+string(e.Type))
	case *log.EventEntryAdded:
		p.problems = append(p.problems, e.Entry.Text)
	}
}

// Fetched is all that was asked of a network or a disk, the page itself first; Problems what the browser complained about.
func (p *Page) Fetched() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.fetched...)
}

// Problems are exceptions, breaches of the page's own policy, and whatever it wrote to the console.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.problems...)
}

// Ask evaluates JavaScript in a page and decodes what comes of it.
func Ask[T any](p *Page, script string) (T, error) {
	return chromedp.Run(p.ctx, chromedp.Evaluate[T](script))
}

// Do runs actions in the page.
func (p *Page) Do(actions ...chromedp.Action[chromedp.Void]) error {
	return chromedp.Do(p.ctx, actions...)
}

// Shot is the upper part of the page as a PNG, so many pixels of it; more than the page has is cut off.
func (p *Page) Shot(height float64) ([]byte, error) {
	size, err := Ask[[]float64](p, `[document.scrollingElement.scrollWidth, document.scrollingElement.scrollHeight]`)
	if err != nil {
		return nil, err
	}
	beyond := true
	shot, err := chromedp.Call(p.ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{
		CaptureBeyondViewport: &beyond, Clip: &page.Viewport{Width: size[0], Height: min(height, size[1]), Scale: 1},
	})
	return shot.Data, err
}

// Close closes the tab.
func (p *Page) Close() { p.stop() }
