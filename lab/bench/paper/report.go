package paper

import (
	"io"

	"github.com/smcgw/smcgw/bench/comparison"
)

// Report is a comparison, and where processor time went in it.
type Report struct {
	comparison.Report
	// Profiles say where processor time went, if that was looked at.
	Profiles []Profile `json:"profiles,omitempty"`
}

// Text writes the report for a terminal, with the tables of profiles.
func (r *Report) Text(w io.Writer) error { return r.TextWith(w, r.textProfiles) }

// JSON writes the report as one document on one line.
func (r *Report) JSON(w io.Writer) error {
	return comparison.Encode(w, Report{r.Document(), r.Profiles})
}
