package admin

import "github.com/smcgw/smcgw/negotiate"

// Code explains one reason for which a connection is not carried.
type Code struct {
	Code    int    `json:"code"`
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
	Fix     string `json:"fix"`
	// Metric is the series that counts it, as a Prometheus selector.
	Metric string `json:"metric"`
}

// CodeList is the document of codes.
type CodeList struct {
	Schema string `json:"schema"`
	Codes  []Code `json:"codes"`
}

// Codes explains every reason, in the order of their numbers.
func Codes() CodeList {
	list := CodeList{Schema: codesSchema}
	for _, r := range negotiate.Reasons() {
		list.Codes = append(list.Codes, newCode(r))
	}
	return list
}

// CodeNamed explains the reason of this name.
func CodeNamed(name string) (Code, bool) {
	r, ok := negotiate.ParseReason(name)
	if !ok {
		return Code{}, false
	}
	return newCode(r), true
}

func newCode(r negotiate.Reason) Code {
	return Code{
		Code: int(r), Name: r.String(), Meaning: r.Meaning(), Fix: r.Fix(),
		Metric: `smcgw_fallbacks_total{reason="` + r.String() + `"}`,
	}
}
