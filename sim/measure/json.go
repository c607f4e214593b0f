package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// JSON writes the report as one JSON object, indented, with its fields in the order of the type. sim/report.md
// says what each is.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// maxReport is the most that Read reads, in bytes: some hundred times a long report.
const maxReport = 64 << 20

// Read reads what JSON wrote: exactly this [Schema], with a scenario, and nothing after the object. It ignores
// fields that it does not know, because a later version of the same schema may have more. It does not check the lengths
// of the series.
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
	case *head.Schema < Schema:
		return nil, fmt.Errorf("measure: report: schema is %d: this version reads %d only, so run the scenario again",
			*head.Schema, Schema)
	case *head.Schema > Schema:
		return nil, fmt.Errorf("measure: report: schema is %d: this version reads %d only, and a newer one wrote it",
			*head.Schema, Schema)
	}
	out := &Report{}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("measure: report: %w", err)
	}
	var missing, unseed error
	if out.Scenario == nil {
		missing = errors.New("measure: report: scenario is missing: a report has one")
	}
	if _, err := strconv.ParseUint(out.Unseed, 16, 64); out.Unseed != "" && (err != nil || len(out.Unseed) != 16) {
		unseed = fmt.Errorf("measure: report: unseed is %q: 16 hexadecimal digits, or empty", out.Unseed)
	}
	if err := errors.Join(missing, unseed); err != nil {
		return nil, err
	}
	return out, nil
}
