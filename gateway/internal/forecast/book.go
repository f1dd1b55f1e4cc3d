package forecast

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

const (
	// maxServices and maxHosts bound the book. Connections of more services are counted
	// as forgotten; of a service with more hosts the others are not named.
	maxServices = 1024
	maxHosts    = 64
)

// service is what connections have in common.
type service struct {
	side    config.Side
	port    uint16
	rule    string
	carries bool
}

// sums are what they did.
type sums struct {
	admin.ObservedService
	hosts   map[netip.Addr]struct{}
	seconds float64 // that bulk lasted
}

// Book adds up what was seen. The zero value is ready to use.
type Book struct {
	mu        sync.Mutex // guards everything below
	services  map[service]*sums
	forgotten uint64
}

// Add takes in what the programs have seen; rule names the rule with a number of the
// policy in force.
func (b *Book) Add(list []ebpf.Seen, rule func(index int) string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range list {
		b.addLocked(&list[i], rule)
	}
}

func (b *Book) addLocked(v *ebpf.Seen, rule func(index int) string) {
	k := service{side: config.SideClient, port: v.Port, carries: v.Carries}
	if v.Side == ebpf.SideServer {
		k.side = config.SideServer
	}
	if !v.Past {
		k.rule = rule(v.Rule)
	}
	s := b.services[k]
	if s == nil && len(b.services) >= maxServices {
		b.forgotten += v.Begun
		return
	}
	if s == nil {
		s = &sums{hosts: map[netip.Addr]struct{}{}}
		s.Side, s.Port, s.Rule, s.Carries = k.side, k.port, k.rule, k.carries
		if b.services == nil {
			b.services = map[service]*sums{}
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

// List returns the services, those with the most bytes first.
func (b *Book) List() []admin.ObservedService {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []admin.ObservedService
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
		o.Gain = gain(&o)
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b admin.ObservedService) int {
		return cmp.Or(
			cmp.Compare(b.Bytes.Tx+b.Bytes.Rx, a.Bytes.Tx+a.Bytes.Rx), cmp.Compare(b.Connections, a.Connections),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Side, b.Side), cmp.Compare(a.Rule, b.Rule),
		)
	})
	return list
}

// Forgotten counts connections of services for which there was no room.
func (b *Book) Forgotten() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.forgotten
}

// What a connection has to move so that its handshake and rings are made up for, on the
// carrier that costs least (docs/design/auto.md).
const connectionPrice = 8 << 20

// gain is what carrying a service could be good for. Bulk gains where it is most of what
// is moved; requests cost more through a gateway, whatever the carrier.
func gain(o *admin.ObservedService) admin.Gain {
	total := o.Bytes.Tx + o.Bytes.Rx
	switch {
	case o.Ended == 0:
		return admin.GainUnknown
	case o.BulkBytes*2 < total || o.Bulk == 0:
		return admin.GainNone
	case total/o.Ended >= connectionPrice:
		return admin.GainBulk
	default:
		return admin.GainSome
	}
}
