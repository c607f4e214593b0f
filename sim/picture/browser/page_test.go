package browser

import (
	"bytes"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/picture"
	"github.com/tiered-limiter/tiered-limiter/sim/picture/internal/rehearsal"
)

var chrome *Chrome

var reports = flag.String("reports", "", "`directory` of reports as JSON, to be looked at as well")

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if chrome, err = Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	chrome.Close()
	os.Exit(code)
}

// run writes the page of a report to a file and returns its URL; sweep does so for a sweep.
func run(t *testing.T, r *measure.Report) string {
	var b bytes.Buffer
	if err := picture.HTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return file(t, b.Bytes())
}

func sweep(t *testing.T, s *measure.Sweep) string {
	var b bytes.Buffer
	if err := picture.SweepHTML(&b, s); err != nil {
		t.Fatal(err)
	}
	return file(t, b.Bytes())
}

func file(t *testing.T, page []byte) string {
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, page, 0o600); err != nil {
		t.Fatal(err)
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// open opens a page. At the end of the test it must have fetched nothing but itself, and have had no problem.
func open(t *testing.T, address string, s Screen) *Page {
	p, err := chrome.Open(address, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if got := p.Fetched(); !slices.Equal(got, []string{address}) {
			t.Errorf("fetched %q, want the page and nothing else", got)
		}
		if got := p.Problems(); len(got) > 0 {
			t.Errorf("problems: %q", got)
		}
		p.Close()
	})
	return p
}

func ask[T any](t *testing.T, p *Page, script string) T {
	t.Helper()
	answer, err := Ask[T](p, script)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

var screens = []Screen{
	{Width: 1280, Height: 900},
	{Width: 1280, Height: 900, Dark: true},
	{Width: 390, Height: 844},
	{Width: 390, Height: 844, Dark: true},
	{Width: 360, Height: 740},
	{Width: 1280, Height: 900, NoScript: true},
	{Width: 794, Height: 1123, Dark: true, Media: "print"},
}

func (s Screen) String() string {
	return fmt.Sprintf("%d,dark=%v,noscript=%v,media=%s", s.Width, s.Dark, s.NoScript, s.Media)
}

// The pages that are looked at on all screens.
func pages(t *testing.T) map[string]string {
	broken := rehearsal.Usual
	broken.Broken, broken.Processes, broken.Mode = true, 100, "open"
	all := map[string]string{
		"run": run(t, rehearsal.Report(rehearsal.Usual)), "broken": run(t, rehearsal.Report(broken)),
		"tiny":    run(t, rehearsal.Report(rehearsal.Shape{Seed: 1, Steps: 1, Processes: 1, Length: 1})),
		"empty":   run(t, &measure.Report{}),
		"sweep":   sweep(t, rehearsal.Sweep(3)),
		"hostile": run(t, rehearsal.Hostile(rehearsal.Report(rehearsal.Usual))), "hostile sweep": sweep(t, rehearsal.HostileSweep(rehearsal.Sweep(3))),
	}
	if *reports == "" {
		return all
	}
	files, err := filepath.Glob(filepath.Join(*reports, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("-reports: no JSON in %s (%v)", *reports, err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := measure.Read(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(name)] = run(t, r)
	}
	return all
}

// charts tells of every chart how many shapes have an extent, and whether the plot lies within the page.
const charts = `[...document.querySelectorAll(".chart")].map(f => {
	const plot = f.querySelector(".plot").getBoundingClientRect();
	const shapes = [...f.querySelectorAll(".shapes path, .dot, .spot path")].map(s => s.getBoundingClientRect());
	return {
		id: f.id, width: plot.width, height: plot.height, within: plot.left >= 0 && plot.right <= innerWidth,
		drawn: shapes.filter(s => s.width > 0 || s.height > 0).length, shapes: shapes.length,
	};
})`

type drawn struct {
	ID            string
	Width, Height float64
	Within        bool
	Drawn, Shapes int
}

func TestPages(t *testing.T) {
	want := map[string]string{
		"run": "rates breakers calls decisions ledger unspent fairness", "tiny": "rates breakers calls decisions ledger unspent fairness", "empty": "",
		"sweep": "pareto-over_admission pareto-shortfall",
	}
	want["broken"], want["hostile"], want["hostile sweep"] = want["run"], want["run"], want["sweep"]
	for name, address := range pages(t) {
		for _, s := range screens {
			t.Run(name+"/"+s.String(), func(t *testing.T) {
				p := open(t, address, s)
				var ids []string
				for _, c := range ask[[]drawn](t, p, charts) {
					ids = append(ids, c.ID)
					if c.Drawn == 0 || c.Drawn < c.Shapes || c.Width < 250 || c.Height < 20 || !c.Within {
						t.Errorf("chart %+v is not drawn whole, within the page", c)
					}
				}
				if got := strings.Join(ids, " "); got != want[name] && !strings.HasSuffix(name, ".json") {
					t.Errorf("charts %q, want %q", got, want[name])
				}
				if got := ask[int](t, p, `document.scrollingElement.scrollWidth - innerWidth`); got > 0 {
					t.Errorf("the page is %d pixels wider than the screen", got)
				}
				want := "1120px"
				if s.Media == "print" {
					want = "none" // as wide as the paper
				}
				if got := ask[string](t, p, `getComputedStyle(document.querySelector("main")).maxWidth`); got != want {
					t.Errorf("the style is not applied: max-width %s", got)
				}
				for _, o := range ask[[]string](t, p, overlaps) {
					t.Error("texts overlap:", o)
				}
				for _, c := range ask[[]string](t, p, cut) {
					t.Error("cut off by the edge of the screen:", c)
				}
				for _, c := range ask[[]string](t, p, faint) {
					t.Error("hard to read:", c)
				}
			})
		}
	}
}

// overlaps are pairs of texts within one drawing that lie on each other, numbers of points aside.
const overlaps = `[...document.querySelectorAll(".plot")].flatMap(plot => {
	const texts = [...plot.querySelectorAll("text:not(.spot text)")].map(t => ({ text: t.textContent, box: t.getBoundingClientRect() })).filter(t => t.box.width > 0);
	const found = [];
	texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
		const w = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
		const h = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
		if (w > 1 && h > 4) found.push(plot.closest("figure").id + ": " + a.text + " and " + b.text);
	}));
	return found;
})`

// cut are texts that reach beyond the screen, those aside that can be scrolled to. (Names of rows are clipped, and may be wide.)
const cut = `[...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll, pre, .tick") && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).filter(e => {
	const box = e.getBoundingClientRect();
	return box.width > 0 && (box.left < 0 || box.right > innerWidth + 1);
}).map(e => e.textContent.slice(0, 40))`

// faint are texts whose contrast to what is behind them is below 4.5, the limit of WCAG 2 (1.4.3) for small text.
const faint = `(() => {
	const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
	const light = c => { const f = c.slice(0, 3).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * f[0] + .7152 * f[1] + .0722 * f[2]; };
	const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
	const found = new Set();
	for (const e of document.querySelectorAll("main *")) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
		const box = e.getBoundingClientRect();
		if (!box.width) continue;
		const style = getComputedStyle(e), svg = e instanceof SVGElement;
		const a = light(parse(svg ? style.fill : style.color)), b = light(behind(e));
		const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (ratio < 4.5) found.add(ratio.toFixed(2) + " " + (e.getAttribute("class") || e.tagName) + " " + e.textContent.slice(0, 30));
	}
	return [...found];
})()`

// The values under the pointer are those of the report, in all charts at once; keys move through them too.
func TestHover(t *testing.T) {
	r := rehearsal.Report(rehearsal.Usual)
	for i := range r.Series.Offered {
		r.Series.Offered[i] = float64(1000 + i) // which tells the step
	}
	p := open(t, run(t, r), Screen{Width: 1280, Height: 900})
	box := ask[struct{ X, Y, Width, Height float64 }](t, p, `(() => {
		const plot = document.querySelector("#rates .plot");
		plot.scrollIntoView({ block: "center" });
		return plot.getBoundingClientRect().toJSON();
	})()`)
	readout := func(id string) string {
		return ask[string](t, p, `(() => {
		const figure = document.getElementById("`+id+`");
		return getComputedStyle(figure.querySelector(".readout")).visibility === "visible" ? figure.querySelector(".readout").textContent : "";
	})()`)
	}
	if got := readout("rates"); got != "" {
		t.Errorf("without a pointer there is a readout: %q", got)
	}
	if err := p.Do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, box.X+box.Width*300.5/600, box.Y+box.Height/2)); err != nil {
		t.Fatal(err)
	}
	if got := readout("rates"); !strings.Contains(got, "at 30\u202fs") && !strings.Contains(got, "at 30.1\u202fs") || !strings.Contains(got, "offered 1300/s") {
		t.Errorf("in the middle of the plot the readout is %q", got)
	}
	if got := readout("breakers"); !strings.Contains(got, "open 50") || !strings.Contains(got, "closed 0") {
		t.Errorf("and of the breakers %q", got)
	}
	if err := p.Do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, 5, 5)); err != nil {
		t.Fatal(err)
	}
	if got := readout("rates"); got != "" {
		t.Errorf("after the pointer left there is a readout: %q", got)
	}
	ask[bool](t, p, `document.querySelector("#rates .plot").focus() || true`)
	for _, key := range []string{kb.Home, kb.ArrowRight} {
		if err := p.Do(chromedp.KeyEvent(key)); err != nil {
			t.Fatal(err)
		}
	}
	if got := readout("rates"); !strings.Contains(got, "offered 1010/s") {
		t.Errorf("ten steps from the beginning the readout is %q", got)
	}
}

// A point of a sweep tells what it is.
func TestTips(t *testing.T) {
	p := open(t, sweep(t, rehearsal.Sweep(3)), Screen{Width: 390, Height: 844})
	got := ask[string](t, p, `(() => {
		const spot = [...document.querySelectorAll("#pareto-shortfall .spot")].find(s => s.textContent.includes("advised"));
		spot.focus();
		return spot.closest("figure").querySelector(".readout").textContent;
	})()`)
	if !strings.Contains(got, "fleet.size 20") || !strings.Contains(got, "fleet.mode local") || !strings.Contains(got, "/s") {
		t.Errorf("the advised point says %q", got)
	}
}

// A page that would load something is stopped by its own policy, and this test would see it: a check of the check.
func TestPolicy(t *testing.T) {
	var b bytes.Buffer
	if err := picture.HTML(&b, rehearsal.Report(rehearsal.Usual)); err != nil {
		t.Fatal(err)
	}
	evil := strings.Replace(b.String(), "</main>", `</main><img src="x.png"><script>document.title = "owned"</script><style>main { max-width: 7px }</style>`, 1)
	p, err := chrome.Open(file(t, []byte(evil)), Screen{Width: 800, Height: 600})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if title := ask[string](t, p, `document.title`); title == "owned" {
		t.Error("a script that is not ours ran")
	}
	if got := ask[string](t, p, `getComputedStyle(document.querySelector("main")).maxWidth`); got != "1120px" {
		t.Errorf("a style that is not ours counted: max-width %s", got)
	}
	if len(p.Problems()) < 3 {
		t.Errorf("the browser complained of %q only, want the image, the script and the style", p.Problems())
	}
	open := strings.Replace(evil, "Content-Security-Policy", "X-None", 1)
	p2, err := chrome.Open(file(t, []byte(open)), Screen{Width: 800, Height: 600})
	if err != nil {
		t.Fatal(err)
	}
	defer p2.Close()
	if got := p2.Fetched(); len(got) < 2 {
		t.Errorf("without a policy the page fetched %q: the test sees nothing", got)
	}
}
