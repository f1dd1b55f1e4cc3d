package comparison

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// seriesJSON is a series in the document. Spread is derived from the values, for readers that only want that; it is not
// read back.
type seriesJSON struct {
	Work    string      `json:"work"`
	Variant string      `json:"variant"`
	Unit    string      `json:"unit"`
	Better  string      `json:"better"`
	Values  []*float64  `json:"values"`
	Spread  *spreadJSON `json:"spread,omitempty"`
	Note    string      `json:"note,omitempty"`
}

type spreadJSON struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

// MarshalJSON encodes a round that failed as null, since JSON has no NaN.
func (s Series) MarshalJSON() ([]byte, error) {
	doc := seriesJSON{Work: s.Work, Variant: s.Variant, Unit: s.Unit, Better: s.Better.String(), Values: []*float64{}, Note: s.Note}
	for _, v := range s.Values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			doc.Values = append(doc.Values, nil)
			continue
		}
		doc.Values = append(doc.Values, &v)
	}
	if sp := s.Spread(); sp.N > 0 {
		doc.Spread = &spreadJSON{sp.Median, sp.Min, sp.Max, sp.N}
	}
	return json.Marshal(doc)
}

// UnmarshalJSON decodes what MarshalJSON has encoded.
func (s *Series) UnmarshalJSON(b []byte) error {
	var doc seriesJSON
	if err := json.Unmarshal(b, &doc); err != nil {
		return err
	}
	*s = Series{Work: doc.Work, Variant: doc.Variant, Unit: doc.Unit, Note: doc.Note}
	switch doc.Better {
	case More.String():
	case Less.String():
		s.Better = Less
	default:
		return fmt.Errorf("series %q %q: better is %q, neither more nor less", doc.Work, doc.Variant, doc.Better)
	}
	for _, v := range doc.Values {
		if v == nil {
			s.Values = append(s.Values, math.NaN())
			continue
		}
		s.Values = append(s.Values, *v)
	}
	return nil
}

// JSON writes the report as one document on one line. All fields are present: the schema, and lists even if they are
// empty.
func (r *Report) JSON(w io.Writer) error {
	doc := *r
	if doc.Schema == "" {
		doc.Schema = Schema
	}
	doc.Commands, doc.Notes = append([]string{}, r.Commands...), append([]string{}, r.Notes...)
	doc.Series = append([]Series{}, r.Series...)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&doc); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
