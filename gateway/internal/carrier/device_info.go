package carrier

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

// Describe describes the queue pair of a link that carries. It must be called on the link's
// shard.
func (l *Link) Describe() *report.PairInfo {
	window, credits, why := l.EP.Room()
	p := &report.PairInfo{
		QPN: l.QP.Num(), Sent: l.EP.SentOffset(), Acknowledged: l.EP.FreedOffset(),
		Received: l.EP.ReceivedOffset(), Consumed: l.EP.ConsumedOffset(),
		Unsent: l.EP.Unposted(), RingBytes: l.EP.RingSize(), Window: window, Credits: credits,
	}
	if window == 0 {
		p.Blocked = why.String()
	}
	if rtt, again, ok := soft.Path(l.QP); ok {
		p.RoundTripSeconds, p.Retransmits = rtt.Seconds(), again
	}
	return p
}

// describeDevice fills in what is common to all devices. stats is a flat struct of numbers.
func describeDevice(name string, kind report.DeviceKind, attr verbs.DeviceAttr, port verbs.PortAttr, stats any) report.DeviceInfo {
	info := report.DeviceInfo{
		Name: name, Kind: kind, Carrier: kind.Carrier(), State: report.DeviceActive,
		UDPPort: port.UDPPort, MTU: port.ActiveMTU.Bytes(),
		Limits: report.DeviceLimits{
			Vectors: attr.Vectors, MaxQP: attr.MaxQP, MaxQPWR: attr.MaxQPWR,
			MaxMR: attr.MaxMR, MaxMRSize: attr.MaxMRSize, MaxMsgSize: attr.MaxMsgSize,
		},
		Use: map[string]uint64{}, Counters: map[string]uint64{},
	}
	if port.State != verbs.PortActive {
		info.State = report.DeviceDown
	}
	for _, g := range port.GIDs {
		if !g.Empty() {
			info.GIDs = append(info.GIDs, netip.AddrFrom16(g.GID))
		}
	}
	addStats(&info, stats)
	return info
}

// addStats adds the fields of a flat struct of numbers.
func addStats(info *report.DeviceInfo, stats any) {
	v := reflect.ValueOf(stats)
	for i := range v.NumField() {
		field := snakeCase(v.Type().Field(i).Name)
		into := info.Counters
		if slices.Contains(inUse[:], field) {
			into = info.Use
		}
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			into[field] = f.Uint()
		case reflect.Int:
			into[field] = uint64(f.Int())
		default: // stats of devices have no other fields
		}
	}
}

// inUse are the statistics that are gauges rather than counters.
var inUse = [...]string{"qps", "mrs", "cqs", "memory", "peers", "pooled", "ahs", "pds"}

// snakeCase converts the name of a Go field to that of a counter: BellsSent to bells_sent,
// ICRCErrors to icrc_errors, QPs to qps.
func snakeCase(s string) string {
	var out strings.Builder
	r := []rune(strings.ReplaceAll(s, "RNRNAK", "RNRNak")) // two acronyms in a row
	for i := range r {
		if i > 0 && unicode.IsUpper(r[i]) && (unicode.IsLower(r[i-1]) || startsWord(r[i:])) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r[i]))
	}
	return out.String()
}

// startsWord reports whether r begins with a capital and a small letter, unless the latter is
// a plural s.
func startsWord(r []rune) bool {
	if len(r) < 2 || !unicode.IsLower(r[1]) {
		return false
	}
	return r[1] != 's' || len(r) > 2 && unicode.IsLower(r[2])
}
