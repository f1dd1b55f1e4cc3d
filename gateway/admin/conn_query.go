package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/smcgw/smcgw/gateway/report"
)

// flagsOf returns the parameters of a request that are true or false.
func flagsOf(q *report.ConnQuery) map[string]*bool {
	return map[string]*bool{"closed": &q.Closed, "native": &q.Native, "all": &q.All, "details": &q.Details, "programs": &q.Programs}
}

// valuesOf returns the parameters of a request.
func valuesOf(q report.ConnQuery) url.Values {
	v := url.Values{}
	for name, on := range flagsOf(&q) {
		if *on {
			v.Set(name, "true")
		}
	}
	addFilter(v, q.Filter)
	return v
}

// parseConnQuery parses the parameters of a request.
func parseConnQuery(v url.Values) (q report.ConnQuery, err error) {
	for name, dst := range flagsOf(&q) {
		text := v.Get(name)
		if text == "" {
			continue
		}
		if *dst, err = strconv.ParseBool(text); err != nil {
			return report.ConnQuery{}, fmt.Errorf("%s: %q is not a boolean", name, text)
		}
	}
	q.Filter, err = parseConnFilter(v)
	return q, err
}

// filterParameter holds a ConnFilter as JSON.
const filterParameter = "filter"

func addFilter(v url.Values, f report.ConnFilter) {
	if f != (report.ConnFilter{}) {
		text, _ := json.Marshal(f) // it consists of texts and numbers
		v.Set(filterParameter, string(text))
	}
}

func parseConnFilter(v url.Values) (f report.ConnFilter, err error) {
	text := v.Get(filterParameter)
	if text == "" {
		return f, nil
	}
	if len(text) > adminMaxBody {
		return f, errors.New("filter: too long")
	}
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return report.ConnFilter{}, fmt.Errorf("filter: %w", err)
	}
	return f, nil
}
