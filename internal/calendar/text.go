package calendar

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The words of a limit's text that follow the unit.
const (
	In   = "in"   // a time zone
	From = "from" // "day 17", "sunday", "april" or "april 6"
)

const wordDay = "day"

// String returns what follows the unit in a limit's text, as [Period.SetZone] and [Period.SetFrom]
// read it: "in Europe/Berlin from day 17". It is "" for months, quarters and years from January in
// UTC. Days and weeks always say something: without it they are 24 hours, and 7 times that.
func (p Period) String() string {
	var words []string
	month := strings.ToLower(time.Month(p.Month).String())
	if p.Zone != "" {
		words = append(words, In, p.Zone)
	} else if p.Unit <= Week && p.Day == 0 {
		words = append(words, In, "UTC")
	}
	switch {
	case p.Unit == Week && p.Day != 0:
		words = append(words, From, strings.ToLower(time.Weekday(p.Day%7).String()))
	case p.Month != 0 && p.Day != 0:
		words = append(words, From, fmt.Sprintf("%s %d", month, p.Day))
	case p.Month != 0:
		words = append(words, From, month)
	case p.Day != 0:
		words = append(words, From, fmt.Sprintf("%s %d", wordDay, p.Day))
	}
	return strings.Join(words, " ")
}

// SetZone sets the time zone, and returns the rule that its name breaks, or "".
func (p *Period) SetZone(name string) (rule string) {
	if _, err := zone(name); name == "" || err != nil {
		return zoneRule
	}
	p.Zone = name
	return ""
}

// SetFrom sets where in a unit the windows begin, by a word and a number that may follow it, or "".
// It returns the rule that the word breaks, or the one that the number does.
func (p *Period) SetFrom(word, number string) (wrongWord, wrongNumber string) {
	most := 31
	switch month, weekday := monthOf(word), weekdayOf(word); {
	case p.Unit == Week && weekday > 0 && number == "":
		p.Day = int16(weekday)
		return "", ""
	case p.Unit == Week && word == wordDay:
		most = 7
	case p.Unit == Week:
		return "must be the day of the week on which one begins, as in from sunday", ""
	case p.Unit < Month:
		return "is for weeks, months, quarters and years", ""
	case p.Unit >= Quarter && month > 0:
		if p.Month = int8(month); number == "" {
			return "", ""
		}
	case word != wordDay && p.Unit == Month:
		return "must be the day on which a month begins, as in from day 17", ""
	case word != wordDay:
		return "must be where one begins, as in from april, from april 6 or from day 6", ""
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > most {
		return "", fmt.Sprintf("must be a day, 1 to %d", most)
	}
	p.Day = int16(n)
	return "", ""
}

// monthOf returns the month of a name, or 0.
func monthOf(name string) time.Month {
	for m := time.January; m <= time.December; m++ {
		if strings.EqualFold(name, m.String()) {
			return m
		}
	}
	return 0
}

// weekdayOf returns the day of a week of a name, from 1 for Monday, or 0.
func weekdayOf(name string) int {
	for d := range 7 {
		if strings.EqualFold(name, time.Weekday(d).String()) {
			return (d+6)%7 + 1
		}
	}
	return 0
}
