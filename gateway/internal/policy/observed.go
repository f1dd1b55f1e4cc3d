package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
)

const (
	// maxServices and maxHosts bound Observed. Connections of further services are counted as forgotten; further hosts
	// of a service are not listed.
	maxServices = 1024
	maxHosts    = 64
)

// observedService is what connections are grouped by.
type observedService struct {
	side    report.Side
	port    uint16
	rule    string
	carries bool
}

// observedSums are the sums over one group.
type observedSums struct {
	report.ObservedService
	hosts   map[netip.Addr]struct{}
	seconds float64 // total duration of bulk transfers
}

// Observed adds up what connections did while nothing was carried: how many there were, and what they moved. It
// predicts nothing; smcgw bench --peer measures. The zero value is ready to use.
type Observed struct {
	mu        sync.Mutex // guards everything below
	services  map[observedService]*observedSums
	forgotten uint64
}

// Add adds what the programs have seen. rule returns the name of the rule with a number of the policy in force.
func (b *Observed) Add(list []ebpf.Seen, rule func(index int) string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	full := false // once dropping fails it keeps failing: new entries are of rules in force
	room := func() bool {
		full = full || !b.dropLocked(rule)
		return !full
	}
	for i := range list {
		b.addLocked(&list[i], rule, room)
	}
}

// addLocked adds one entry. room drops a service to make room for a new one; false if it cannot.
func (b *Observed) addLocked(v *ebpf.Seen, rule func(index int) string, room func() bool) {
	k := observedService{side: report.SideClient, port: v.Port, carries: v.Carries}
	if v.Side == ebpf.SideServer {
		k.side = report.SideServer
	}
	if !v.Past {
		k.rule = rule(v.Rule)
	}
	s := b.services[k]
	if s == nil && len(b.services) >= maxServices && (v.Past || !room()) {
		b.forgotten += v.Begun
		return
	}
	if s == nil {
		s = &observedSums{hosts: map[netip.Addr]struct{}{}}
		s.Side, s.Port, s.Rule, s.Carries = k.side, k.port, k.rule, k.carries
		if b.services == nil {
			b.services = map[observedService]*observedSums{}
		}
		b.services[k] = s
	}
	if len(s.hosts) < maxHosts {
		s.hosts[v.Host] = struct{}{}
	}
	s.Connections += v.Begun
	s.Ended += v.Ended
	s.Bytes.Tx += v.Sent
	s.Bytes.Rx += v.Received
	s.Bulk += v.Bulk
	s.BulkBytes += v.BulkBytes
	s.seconds += v.BulkLasted.Seconds()
}

// dropLocked drops the service with the fewest bytes among those whose rules are gone. It returns false if there is
// none.
func (b *Observed) dropLocked(rule func(number int) string) bool {
	there := map[string]bool{}
	for number := ebpf.NoRule; number < ebpf.MaxRules; number++ {
		there[rule(number)] = true
	}
	var least *observedSums
	var of observedService
	for k, s := range b.services {
		if !there[k.rule] && (least == nil || s.Bytes.Tx+s.Bytes.Rx < least.Bytes.Tx+least.Bytes.Rx) {
			least, of = s, k
		}
	}
	if least == nil {
		return false
	}
	b.forgotten += least.Connections
	delete(b.services, of)
	return true
}

// List returns the services, those with the most bytes first.
func (b *Observed) List() []report.ObservedService {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []report.ObservedService
	for _, s := range b.services {
		o := s.ObservedService
		for h := range s.hosts {
			o.Hosts = append(o.Hosts, h)
		}
		slices.SortFunc(o.Hosts, netip.Addr.Compare)
		o.MoreHosts = len(s.hosts) == maxHosts
		if s.seconds > 0 {
			o.BulkBytesPerSecond = float64(s.BulkBytes) / s.seconds
		}
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b report.ObservedService) int {
		return cmp.Or(
			cmp.Compare(b.Bytes.Tx+b.Bytes.Rx, a.Bytes.Tx+a.Bytes.Rx), cmp.Compare(b.Connections, a.Connections),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Side, b.Side), cmp.Compare(a.Rule, b.Rule),
		)
	})
	return list
}

// lost returns the number of connections that were forgotten for want of room.
func (b *Observed) lost() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.forgotten
}
