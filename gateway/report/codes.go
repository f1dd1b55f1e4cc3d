package report

import (
	"slices"
	"strings"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/negotiate"
)

// Code explains one reason for which a connection is not carried, or for which a gateway
// does less than its configuration says.
type Code struct {
	Code    int    `json:"code"` // 0: of the gateway, not of a connection
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
	Fix     string `json:"fix"`
	// Metric is the series that counts it, as a Prometheus selector.
	Metric string `json:"metric"`
	// EndMetric is the one that counts carried connections that it ended, if it can.
	EndMetric string `json:"end_metric,omitempty"`
}

// CodeList is the document of codes.
type CodeList struct {
	Schema string `json:"schema"`
	Codes  []Code `json:"codes"`
}

// gatewayCodes explains what a gateway is degraded by and no reason of a connection is.
func gatewayCodes() []Code {
	return []Code{
		{
			Name: NoSteering, Meaning: "The kernel cannot steer connections: the gateway serves programs with the library only.",
			Fix:    "smcgw doctor says what the kernel lacks (Linux 6.6, BTF). Where that is as it should be: steering: off.",
			Metric: selector(degraded, NoSteering),
		},
		{
			Name: ConfigRefused, Meaning: "The configuration was read again and refused; the one before stays in force.",
			Fix:    "smcgw check shows every error; correct them, then smcgw reload, which also does what SIGHUP does not: a new gateway takes over where a change needs one.",
			Metric: selector(degraded, ConfigRefused),
		},
		{
			Name: GuardTripped, Meaning: "The guard of the configuration saw too many aborted or slower connections: new ones are native, as in the mode observe.",
			Fix:    "smcgw status says what the guard counted; smcgw conns --closed --end aborted shows which. smcgw on carries again.",
			Metric: Namespace + guardTripped,
		},
	}
}

// codesSchema names the format of CodeList.
const codesSchema = "smcgw.codes/v1"

// Codes explains every reason, in the order of their numbers, and then what degrades a
// gateway.
func Codes() CodeList {
	list := CodeList{Schema: codesSchema}
	for _, r := range negotiate.Reasons() {
		list.Codes = append(list.Codes, newCode(r))
	}
	list.Codes = append(list.Codes, inProcessCodes()...)
	list.Codes = append(list.Codes, gatewayCodes()...)
	return list
}

// CodeNamed explains the reason of this name.
func CodeNamed(name string) (Code, bool) {
	if r, ok := negotiate.ParseReason(name); ok {
		return newCode(r), true
	}
	list := append(inProcessCodes(), gatewayCodes()...)
	if i := slices.IndexFunc(list, func(c Code) bool { return c.Name == name }); i >= 0 {
		return list[i], true
	}
	return Code{}, false
}

// inProcessBase is added to the number of a reason of package inprocess.
const inProcessBase = 100

// inProcessCodes explains the reasons of the in-process way that the others have not.
func inProcessCodes() (list []Code) {
	for _, w := range inprocess.Whys() {
		if _, known := negotiate.ParseReason(w.String()); known {
			continue
		}
		list = append(list, Code{
			Code: inProcessBase + int(w), Name: w.String(), Meaning: sentence(w.Meaning()), Fix: w.Fix(), Metric: selector(inProcessNative, w.String()),
		})
	}
	return list
}

// selector names the series of a number about one reason.
func selector(number, reason string) string { return Namespace + number + `{reason="` + reason + `"}` }

// sentence begins a text that has no capital yet, and ends it.
func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }

func newCode(r negotiate.Reason) Code {
	c := Code{
		Code: int(r), Name: r.String(), Meaning: r.Meaning(), Fix: r.Fix(),
		Metric: selector(fallbacksTotal, r.String()),
	}
	if slices.Contains(ResetReasons(), r) {
		c.EndMetric = selector(endedTotal, r.String())
	}
	return c
}

// ResetReasons are the reasons for which carried connections are reset.
func ResetReasons() []negotiate.Reason {
	return []negotiate.Reason{
		negotiate.ReasonAppReset, negotiate.ReasonWireReset, negotiate.ReasonPeerDead, negotiate.ReasonDrained, negotiate.ReasonOff,
		negotiate.ReasonDeviceFailed, negotiate.ReasonLostBytes, negotiate.ReasonStalled, negotiate.ReasonProtocolError,
		negotiate.ReasonInternalError, negotiate.ReasonClientGone,
	}
}

// DemotionCauses are what ConnInfo.Demoted can have.
func DemotionCauses() []string {
	return []string{
		negotiate.ReasonDeviceFailed.String(), negotiate.ReasonCarrierUnreachable.String(), negotiate.ReasonDrained.String(),
		DemotedByOperator, DemotedByPeer,
	}
}
