package ratetext

import (
	"math/big"
	"regexp"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/misspelled"
)

// spelling is how others write a rate: "100 requests per minute", "1000-H", "10r/s", "60rpm",
// "1.5/s", "1,000/h", "5k/h", "10/MIN". Three digits after a point may be a thousand: they are not
// guessed.
var spelling = regexp.MustCompile(`^\s*(\d{1,3}(?:[, ]\d{3})+|[\d_]+(?:\.\d{1,2})?)\s*(k|e\d)?\s*` + // how many
	`(?:(?:[rqx]|reqs?|requests?|calls?|hits?|times|tokens?)\b)?\s*` +
	`(?:/|-|@|:|\bper\b|\ban?\b|\beach\b|\bevery\b|\bin\b|[rq]?p)\s*` +
	`(\d*)\s*([a-zµ]+)` + // the period
	`([\s,(+].*)?$`)

// units are words for a period that are not read.
var units = map[string]string{
	"hr": "h", "hrs": "h", "mo": "month", "mon": "month", "wk": "week", "yr": "year", "y": "year",
	"µs": "us", "msec": "ms", "hourly": "h", "daily": "day",
}

// Meant returns what somebody probably meant by a rate that is not read, and by what follows it. It
// returns "" if it does not know. Whether that can be read is for the caller to see.
func Meant(text string) string {
	m := spelling.FindStringSubmatch(strings.ToLower(text))
	if m == nil {
		return ""
	}
	amount, number, unit := new(big.Rat), m[3], m[4]
	if _, ok := amount.SetString(strings.NewReplacer("_", "", ",", "", " ", "").Replace(m[1]) + strings.Replace(m[2], "k", "e3", 1)); !ok {
		return ""
	}
	if !amount.IsInt() { // tokens are whole: 3/2s, not 1.5/s
		period, ok := new(big.Int).SetString(number, 10)
		if !ok {
			period = big.NewInt(1)
		}
		number = period.Mul(period, amount.Denom()).String()
	}
	words := []string{"month", "quarter", "year"}
	for _, p := range periods {
		words = append(words, p.word)
	}
	singular := strings.TrimSuffix(unit, "s")
	switch {
	case slices.Contains(words, unit):
	case slices.Contains(words, singular):
		unit = singular
	case units[unit] != "":
		unit = units[unit]
	default:
		unit = misspelled.Meant(singular, words)
	}
	rest := strings.NewReplacer("=", " ", ":", " ", "(", " ", ")", " ", ",", " ", "+", " ", " of ", " ").Replace(m[5])
	return strings.Join(append([]string{amount.Num().String() + "/" + number + unit}, strings.Fields(rest)...), " ")
}
