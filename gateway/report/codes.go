package report

import (
	"slices"
	"strings"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/negotiate"
)

// Code explains a reason why a connection is not carried, or why a gateway does less than its
// configuration says.
type Code struct {
	Code    int    `json:"code"` // 0: concerns the gateway, not a connection
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
	Fix     string `json:"fix"`
	// Metric is the series that counts the reason, as a Prometheus selector.
	Metric string `json:"metric"`
	// EndMetric is the series that counts carried connections ended for it, if there can be
	// any.
	EndMetric string `json:"end_metric,omitempty"`
}

// CodeList is the document of codes.
type CodeList struct {
	Schema string `json:"schema"`
	Codes  []Code `json:"codes"`
}

// gatewayCodes explains what can degrade a gateway and is not a reason of a connection.
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

// Codes explains every reason, ordered by number, followed by what can degrade a gateway.
func Codes() CodeList {
	list := CodeList{Schema: codesSchema}
	for _, r := range negotiate.Reasons() {
		list.Codes = append(list.Codes, newCode(r))
	}
	list.Codes = append(list.Codes, inProcessCodes()...)
	list.Codes = append(list.Codes, gatewayCodes()...)
	return list
}

// CodeNamed explains the reason with this name.
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

// inProcessBase is added to the numbers of the reasons of package inprocess.
const inProcessBase = 100

// inProcessCodes explains the reasons of the in-process way that are not also reasons of
// package negotiate.
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

// selector returns the series of a number for one reason.
func selector(number, reason string) string { return Namespace + number + `{reason="` + reason + `"}` }

// sentence makes a sentence of a lower-case text without a full stop.
func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }

func newCode(r negotiate.Reason) Code {
	c := Code{
		Code: int(r), Name: r.String(), Meaning: r.Meaning(), Fix: r.Fix(),
		Metric: selector(nativeNumber(r), r.String()),
	}
	if slices.Contains(ResetReasons(), r) {
		c.EndMetric = selector(endedTotal, r.String())
	}
	return c
}

// nativeNumber returns the number that counts what is native for a reason: steered connections, but for reasons of
// another way alone.
func nativeNumber(r negotiate.Reason) string {
	switch r {
	case negotiate.ReasonNoPeer:
		return inProcessNative
	case negotiate.ReasonPeerUnresolved:
		return datagramNative
	default:
		return fallbacksTotal
	}
}

// ResetReasons returns the reasons for which carried connections are reset.
func ResetReasons() []negotiate.Reason {
	return []negotiate.Reason{
		negotiate.ReasonAppReset, negotiate.ReasonWireReset, negotiate.ReasonPeerDead, negotiate.ReasonDrained, negotiate.ReasonOff,
		negotiate.ReasonDeviceFailed, negotiate.ReasonLostBytes, negotiate.ReasonStalled, negotiate.ReasonProtocolError,
		negotiate.ReasonInternalError, negotiate.ReasonClientGone,
	}
}

// DemotionCauses returns the possible values of ConnInfo.Demoted.
func DemotionCauses() []string {
	return []string{
		negotiate.ReasonDeviceFailed.String(), negotiate.ReasonCarrierUnreachable.String(), negotiate.ReasonDrained.String(),
		DemotedByOperator, DemotedByPeer,
	}
}
