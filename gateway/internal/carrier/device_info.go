package carrier

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
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

// completionErrors counts the completions that end queue pairs. It ignores flushes: they
// follow the first error without adding information, and every queue pair ends with some. The
// zero value is ready to use.
type completionErrors struct {
	mu    sync.Mutex // guards counts
	count map[completionError]uint64
}

type completionError struct {
	kind   negotiate.CarrierKind
	status verbs.WCStatus
}

// note is called for every completion.
func (c *completionErrors) note(kind negotiate.CarrierKind, status verbs.WCStatus) {
	if status == verbs.WCSuccess || status == verbs.WCWRFlushErr {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = map[completionError]uint64{}
	}
	c.count[completionError{kind, status}]++
}

// CQErrors returns the counts of completions that ended queue pairs.
func (e *Env) CQErrors() (list []report.CQErrorCount) {
	e.failed.mu.Lock()
	defer e.failed.mu.Unlock()
	for k, n := range e.failed.count {
		list = append(list, report.CQErrorCount{Carrier: report.Carrier(k.kind.String()), Status: strings.ToLower(k.status.String()), Count: n})
	}
	return list
}

// DatagramDevice is a verbs device on which queue pairs for datagrams are made, at a local
// address.
type DatagramDevice struct {
	verbs.Device
	Port verbs.PortAttr
	// GID is the index of the local address among the GIDs of Port; 0 where memory is shared.
	GID uint8
	// TrafficClass and ServiceLevel are the markings of outgoing packets.
	TrafficClass, ServiceLevel uint8
	// Mixed allows devices of the other RoCEv2 kind at the other end, if this one receives on
	// the port that adapters send to.
	Mixed bool
	// Hold returns the queue of a shard for one more queue pair that needs room for that many
	// completions. The device stays open, and the queue keeps the room, until leave is called,
	// which must follow the close of the queue pair and its domain.
	Hold func(s *loop.Shard, need int) (q *loop.Queue, leave func(), err error)
}
