package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// service is a port of a peer, or of this host as used by a peer.
type service struct {
	peer netip.Addr
	side report.Side
	port uint16
}

func serviceOf(c *report.ConnInfo) service {
	port := c.Remote.Port()
	if c.Side == report.SideServer {
		port = c.Local.Port()
	}
	return service{c.Remote.Addr(), c.Side, port}
}

// failingServices are the services whose latest connections were all not carried, for a
// reason that concerns the peer or the path to it: what operators would want to know without
// asking.
type failingServices struct {
	list    []failure
	carried map[netip.Addr]bool   // peers with which something was carried
	good    map[netip.Addr]uint64 // ID of the latest connection with each that is carried, or was to its end
}

type failure struct {
	service
	reason negotiate.Reason
	count  int       // consecutive connections
	resets int       // how many of them were carried, and reset
	id     uint64    // of the latest one
	at     time.Time // of the latest one
	before bool      // the service was carried before
}

// findFailing evaluates the outcomes of connections: those carried now, those carried and
// ended, and those that stayed native. Connection IDs grow with time.
func findFailing(live, ended, natives []report.ConnInfo) failingServices {
	f := failingServices{carried: map[netip.Addr]bool{}, good: map[netip.Addr]uint64{}}
	good := map[service]uint64{} // ID of the latest connection that is carried or was carried to its end
	bad := map[service]*failure{}
	carried := func(c *report.ConnInfo) {
		s := serviceOf(c)
		good[s] = max(good[s], c.ID)
		f.carried[s.peer] = true
		f.good[s.peer] = max(f.good[s.peer], c.ID)
	}
	fails := func(c *report.ConnInfo, r negotiate.Reason) *failure {
		s := serviceOf(c)
		b := bad[s]
		if b == nil {
			b = &failure{service: s}
			bad[s] = b
		}
		b.count++
		b.id = max(b.id, c.ID)
		if !c.EndedAt.Before(b.at) {
			b.reason, b.at = r, c.EndedAt
		}
		return b
	}
	for i := range live {
		carried(&live[i])
	}
	lost := func(r negotiate.Reason) bool { return r == negotiate.ReasonWireReset || r == negotiate.ReasonPeerDead }
	for i := range ended {
		if r, _ := negotiate.ParseReason(ended[i].Reason); !lost(r) {
			carried(&ended[i])
		} else {
			f.carried[ended[i].Remote.Addr()] = true
		}
	}
	for i := range ended {
		if r, _ := negotiate.ParseReason(ended[i].Reason); lost(r) && ended[i].ID > good[serviceOf(&ended[i])] {
			b := fails(&ended[i], r)
			b.resets++
			b.before = true
		}
	}
	for i := range natives {
		c := &natives[i]
		r, _ := negotiate.ParseReason(c.Reason)
		if s := serviceOf(c); aboutPeer(r) && c.ID > good[s] {
			b := fails(c, r)
			b.before = b.before || good[s] != 0
		}
	}
	for _, b := range bad {
		f.list = append(f.list, *b)
	}
	slices.SortFunc(f.list, func(a, b failure) int { return b.at.Compare(a.at) })
	return f
}

// aboutPeer reports whether a reason concerns the peer or the path to it, and persists.
func aboutPeer(r negotiate.Reason) bool {
	switch r {
	case negotiate.ReasonPeerNoOption, negotiate.ReasonOptionMirrored, negotiate.ReasonOptionBlackholed, negotiate.ReasonOptionRejected,
		negotiate.ReasonOfferUnanswered, negotiate.ReasonAcceptLost, negotiate.ReasonPeerUnresolved, negotiate.ReasonPeerRefused,
		negotiate.ReasonVersion, negotiate.ReasonNoCommonCarrier, negotiate.ReasonNAT, negotiate.ReasonHandshakeTimeout,
		negotiate.ReasonAuthFailed, negotiate.ReasonProtocolError, negotiate.ReasonCarrierUnreachable:
		return true
	default:
		return false
	}
}

// maxFailingNotes bounds the notes.
const maxFailingNotes = 5

// Notes returns one sentence for each service that stays native, saying why and what to do
// about it, latest first.
func (f failingServices) Notes(now time.Time) []string {
	var notes []string
	for i := range f.list {
		if len(notes) == maxFailingNotes {
			return append(notes, fmt.Sprintf("%d more services stay native: smcgw conns --native", len(f.list)-i))
		}
		b := &f.list[i]
		code, _ := report.CodeNamed(b.reason.String())
		what, fix := code.Meaning, code.Fix
		if b.reason == negotiate.ReasonPeerNoOption {
			switch {
			case b.before:
				what, fix = "It was carried before: the gateway there has stopped, is off, or no longer selects it.", "Run `smcgw status` there."
			case f.carried[b.peer]:
				what, fix = "The gateway there carries other services, and does not select this one.", "Compare the rules of both hosts."
			}
		}
		where := fmt.Sprintf("port %d of %s", b.port, b.peer)
		if b.side == report.SideServer {
			where = fmt.Sprintf("port %d for %s", b.port, b.peer)
		}
		notes = append(notes, fmt.Sprintf("%s: %s, %s ago: %s. %s %s", where, b.outcome(), now.Sub(b.at).Truncate(time.Second), b.reason, what, fix))
	}
	return notes
}

// outcome says what became of the connections.
func (b *failure) outcome() string {
	which := "the latest connection"
	if b.count > 1 {
		which = fmt.Sprintf("the latest %d connections", b.count)
	}
	switch {
	case b.resets == 0:
		return which + " stayed native"
	case b.resets < b.count:
		return fmt.Sprintf("of %s %d stayed native, the others were reset", which, b.count-b.resets)
	case b.count == 1:
		return which + " was reset"
	default:
		return which + " were reset"
	}
}

// Tell sets in a list of peers why the latest connection with each was not carried, if it was
// not. A peer that used to answer and no longer does is marked as stopped.
func (f failingServices) Tell(list []report.PeerInfo) {
	latest := map[netip.Addr]*failure{}
	for i := range f.list {
		if b := &f.list[i]; latest[b.peer] == nil {
			latest[b.peer] = b
		}
	}
	for i := range list {
		b := latest[list[i].Address]
		if b == nil || b.id < f.good[b.peer] || list[i].State != report.PeerCapable && list[i].State != report.PeerUnknown {
			continue
		}
		if list[i].Reason == "" {
			list[i].Reason = b.reason.String()
		}
		if b.before && list[i].Flows == 0 && silent(b.reason) {
			list[i].State = report.PeerStopped
		}
	}
}

// silent reports whether a reason means that no gateway has answered.
func silent(r negotiate.Reason) bool {
	switch r {
	case negotiate.ReasonPeerNoOption, negotiate.ReasonOfferUnanswered, negotiate.ReasonHandshakeTimeout, negotiate.ReasonWireReset, negotiate.ReasonPeerDead:
		return true
	default:
		return false
	}
}

// minRuleAge is how long a rule must be in effect before it is reported as matching nothing.
const minRuleAge = 5 * time.Minute

// idleRules reports the rules that have matched no connection since they came into effect,
// age ago. Rules do not count what they select for promotion in process, so nothing is
// reported once there has been any such connection.
func idleRules(rules []report.RuleReport, noneInProcess bool, age time.Duration) []string {
	if age < minRuleAge || !noneInProcess {
		return nil
	}
	var notes []string
	for i := range rules {
		if r := &rules[i]; r.Selected+r.Passed == 0 && r.Action != report.ActionPass && r.Proto != report.ProtoUDP {
			notes = append(notes, fmt.Sprintf("policy: rule %s has matched no connection in %s: smcgw ping HOST:PORT tells which rule decides", r.Name, age.Truncate(time.Minute)))
		}
	}
	return notes
}

// listBlockedLegs lists where connections are native because legs do not reach applications.
// legless: legs cannot be made at all.
func listBlockedLegs(blocked []ebpf.BlockedLegs, legless bool) (list []report.BlockedLegs) {
	for _, b := range blocked {
		family := "ipv4"
		if b.IPv6 {
			family = "ipv6"
		}
		list = append(list, report.BlockedLegs{Device: b.Device, Family: family, At: string(b.Way)})
	}
	if legless {
		list = append(list, report.BlockedLegs{At: "keeper"})
	}
	return list
}

// noteDevices adds notes about RDMA devices, and reports whether one has failed and whether
// one is active.
func noteDevices(st *report.Status, list []report.DeviceInfo) (failed, active bool) {
	for _, d := range list {
		failed, active = failed || d.State == report.DeviceFailed, active || d.State == report.DeviceActive
		if d.State == report.DeviceFailed {
			st.Notes = append(st.Notes, d.Name+": "+d.Error)
		}
		if d.Note != "" {
			st.Notes = append(st.Notes, d.Name+": "+d.Note)
		}
	}
	return failed, active
}
