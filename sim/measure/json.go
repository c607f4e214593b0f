package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// JSON writes the report as one JSON object, indented, with its fields in the order of the type. docs/report.md says what
// each is.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// maxReport is the most that Read reads, in bytes: some hundred times a long report.
const maxReport = 64 << 20

// Read reads what JSON wrote. It wants this [Schema] exactly, nothing after the object, and what a picture relies on: a
// scenario, series of one length and at most 600 steps. Fields that it does not know are passed over: a later version of the
// same schema may have more.
func Read(r io.Reader) (*Report, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxReport+1))
	if err != nil {
		return nil, fmt.Errorf("measure: report: %w", err)
	}
	if len(data) > maxReport {
		return nil, fmt.Errorf("measure: report: longer than %d bytes", maxReport)
	}
	// The schema comes first: with another one, what else is wrong means nothing.
	var head struct {
		Schema *int `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("measure: report: %w", err)
	}
	switch {
	case head.Schema == nil:
		return nil, errors.New("measure: report: no schema: this is no report")
	case *head.Schema != Schema:
		return nil, fmt.Errorf("measure: report: schema is %d: this version reads %d only", *head.Schema, Schema)
	}
	out := &Report{}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("measure: report: %w", err)
	}
	if err := out.check(); err != nil {
		return nil, fmt.Errorf("measure: report: %w", err)
	}
	return out, nil
}

// check reports all that is wrong with a report from elsewhere.
func (r *Report) check() error {
	var all []error
	wrong := func(field, value, rule string) { all = append(all, fmt.Errorf("%s is %s: %s", field, value, rule)) }
	if r.Scenario == nil {
		wrong("scenario", "missing", "a report has one")
	}
	switch r.Engine {
	case "", "virtual", "lua", "live":
	default:
		wrong("engine", strconv.Quote(r.Engine), "virtual, lua or live")
	}
	if _, err := strconv.ParseUint(r.Unseed, 16, 64); r.Unseed != "" && (err != nil || len(r.Unseed) != 16) {
		wrong("unseed", strconv.Quote(r.Unseed), "16 hexadecimal digits, or empty")
	}
	s := &r.Series
	n := len(s.Offered)
	if n > maxSteps {
		wrong("series.offered_per_s", fmt.Sprintf("%d long", n), fmt.Sprintf("%d steps at most", maxSteps))
	}
	if n > 0 && s.StepS <= 0 {
		wrong("series.step_s", fmt.Sprint(s.StepS), "more than 0")
	}
	for _, f := range s.fields() {
		if f.length != n {
			wrong("series."+f.name, fmt.Sprintf("%d long", f.length), fmt.Sprintf("as long as series.offered_per_s, %d", n))
		}
	}
	if len(r.Breakers) > maxStrips {
		wrong("breakers", fmt.Sprintf("%d long", len(r.Breakers)), fmt.Sprintf("%d processes at most", maxStrips))
	}
	return errors.Join(all...)
}

// seriesField is one of a series' and how many steps it has.
type seriesField struct {
	name   string
	length int
}

func (s *Series) fields() []seriesField {
	return []seriesField{
		{"admitted_per_s", len(s.Admitted)},
		{"ideal_per_s", len(s.Ideal)},
		{"limit_per_s", len(s.Limit)},
		{"alone_per_s", len(s.Alone)},
		{"calls_per_s", len(s.Calls)},
		{"decide_max_us", len(s.MaxUs)},
		{"open_ratio", len(s.Open)},
		{"jain", len(s.Jain)},
		{"granted", len(s.Granted)},
		{"spent", len(s.Spent)},
		{"returned", len(s.Returned)},
		{"burnt", len(s.Burnt)},
		{"held", len(s.Held)},
	}
}
