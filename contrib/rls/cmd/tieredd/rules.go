package main

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	promlimit "github.com/tiered-limiter/tiered-limiter/contrib/prometheus"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// collector has the limiter's figures as sums over all rules, and a few for each rule that was
// asked: a scrape grows with what is asked, not with what is configured. It shows at most so many
// rules, those that were asked first, and goes on showing them.
type collector struct {
	service *rls.Service
	most    int
	totals  *promlimit.Collector

	mu    sync.Mutex // one scrape at a time, and one memory for it
	stats map[string]tiered.PolicyStats
	shown map[string]*ruleSeries // by policy
}

// ruleSeries are the series of a rule.
type ruleSeries struct {
	domain, rule string
	number       int // of the policy that last is of
	last         [len(ofRule)]float64
}

// ofRule are the figures of a rule. The hits are what envoyproxy/ratelimit counts.
var ofRule = [...]struct {
	name, help, outcome string
	of                  func(p *tiered.PolicyStats) int64
}{
	{"hits", hitsHelp, "within limit", func(p *tiered.PolicyStats) int64 { return p.Tokens.Granted + p.Tokens.Unlimited }},
	{"hits", hitsHelp, "over limit", func(p *tiered.PolicyStats) int64 {
		return p.Tokens.Limited + p.Tokens.Blocked + p.Requests.ExceedsBurst
	}},
	{"hits", hitsHelp, "admitted without Redis", func(p *tiered.PolicyStats) int64 { return p.Tokens.Fallback + p.Tokens.Open }},
	{"hits", hitsHelp, "refused without Redis", func(p *tiered.PolicyStats) int64 { return p.Tokens.FallbackSpent + p.Tokens.Unavailable }},
	{
		"near_limit_hits", "Hits admitted while less than a fifth of the limit was left.", "",
		func(p *tiered.PolicyStats) int64 { return p.Tokens.NearLimit },
	},
	{
		"shadowed_hits", "Hits over the limit that were admitted, because the rule is in shadow mode.", "",
		func(p *tiered.PolicyStats) int64 { return p.Tokens.Shadowed },
	},
	{"requests", "Descriptors that were decided by the rule.", "", asked},
	{
		"local_over_limit_requests", "Of them: over the limit, as this process knew without asking Redis.", "",
		func(p *tiered.PolicyStats) int64 { return p.Requests.Limited - p.Requests.LimitedByRedis },
	},
}

const hitsHelp = "Hits that were asked for, by how they were decided. One that is more than the whole limit counts as one."

func asked(p *tiered.PolicyStats) int64 { return p.Requests.Allowed + p.Requests.Refused }

// descs are the descriptions of ofRule.
var descs = func() (all [len(ofRule)]*prometheus.Desc) {
	for i, f := range ofRule {
		labels := []string{"domain", "rule"}
		if f.outcome != "" {
			labels = append(labels, "outcome")
		}
		all[i] = prometheus.NewDesc("tieredd_rule_"+f.name+"_total", f.help, labels, nil)
	}
	return all
}()

var (
	rulesDesc = prometheus.NewDesc("tieredd_rules", "Rules of the configuration, and limits that came with requests, by period.", nil, nil)
	askedDesc = prometheus.NewDesc("tieredd_asked_rules", "Of them: asked since the start.", nil, nil)
	shownDesc = prometheus.NewDesc("tieredd_shown_rules", "Of these: with series of their own. The others are only in the sums.", nil, nil)
)

func newCollector(g *tiered.Group, s *rls.Service, most int) *collector {
	c := &collector{service: s, most: most, shown: map[string]*ruleSeries{}}
	c.totals = promlimit.NewTotalsCollector(g, func(all map[string]tiered.PolicyStats) { c.stats = all })
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	c.totals.Describe(out)
	for _, d := range descs {
		out <- d
	}
	out <- rulesDesc
	out <- askedDesc
	out <- shownDesc
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.totals.Collect(out)
	stats := c.stats
	c.stats = nil
	rules, askedRules := 0, 0
	shown := map[string]*ruleSeries{}
	var late []rls.Rule // asked, and not shown before
	for r := range c.service.Rules() {
		rules++
		p := stats[r.Policy]
		if asked(&p) == 0 && p.Costs.Charged == 0 {
			continue
		}
		askedRules++
		if before := c.shown[r.Policy]; before != nil {
			shown[r.Policy] = before
			before.collect(out, &p)
		} else if len(late) < c.most {
			late = append(late, r)
		}
	}
	names := map[[2]string]bool{}
	for _, is := range shown {
		names[[2]string{is.domain, is.rule}] = true
	}
	for _, r := range late[:min(len(late), c.most-len(shown))] {
		is := &ruleSeries{domain: label(r.Domain), rule: label(r.Path)}
		if names[[2]string{is.domain, is.rule}] { // a key with a dot, and two keys
			is.rule += "-" + r.Policy
		}
		names[[2]string{is.domain, is.rule}] = true
		shown[r.Policy] = is
		p := stats[r.Policy]
		is.collect(out, &p)
	}
	c.shown = shown
	for d, n := range map[*prometheus.Desc]int{rulesDesc: rules, askedDesc: askedRules, shownDesc: len(shown)} {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
}

// collect sends the figures of a rule. None is less than the last time, unless the rule began anew:
// the figures are no snapshot.
func (is *ruleSeries) collect(out chan<- prometheus.Metric, p *tiered.PolicyStats) {
	if p.Number != is.number {
		is.number, is.last = p.Number, [len(ofRule)]float64{}
	}
	labels := []string{is.domain, is.rule, ""}
	for i, f := range ofRule {
		is.last[i] = max(is.last[i], float64(f.of(p)))
		n := 2
		if f.outcome != "" {
			n, labels[2] = 3, f.outcome
		}
		out <- prometheus.MustNewConstMetric(descs[i], prometheus.CounterValue, is.last[i], labels[:n]...)
	}
}

// longestLabel is the longest value of a label, in bytes.
const longestLabel = 128

// label returns a text as the value of a label. What cannot be printed, or is longer, becomes its
// beginning and a part of its SHA-256, so that two rules stay two series.
func label(text string) string {
	plain := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if plain == text && len(text) <= longestLabel {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%s-%x", strings.ToValidUTF8(plain[:min(len(plain), longestLabel/2)], ""), sum[:8])
}
