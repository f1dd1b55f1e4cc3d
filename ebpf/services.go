package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	bpf "github.com/cilium/ebpf"

	"github.com/smcgw/smcgw/ebpf/internal/listing"
	"github.com/smcgw/smcgw/internal/ktime"
)

// ServiceState is what happens to new connections of a service that a rule with
// action auto selects. A service without an entry is unknown: its first
// connections make one, as samples, or natively where [Config.LookFirst] says so.
//
//	(unknown) ─► sampling ─┬─► carry
//	                ▲      └─► native ─┐
//	                └── after its time ┘
//
// The programs begin to sample; the gateway makes the other steps by
// [Datapath.SetService].
type ServiceState uint8

// The states.
const (
	// ServiceSampling: as many connections as there are tokens are offered, the
	// others stay native.
	ServiceSampling ServiceState = iota + 1
	// ServiceCarry: every connection is offered, but those of the tokens.
	ServiceCarry
	// ServiceNative: none is, for a time.
	ServiceNative

	numServiceStates
)

var serviceStateNames = [numServiceStates]string{"unknown", "sampling", "carry", "native"}

// String returns the lower-case name.
func (s ServiceState) String() string {
	if s < numServiceStates {
		return serviceStateNames[s]
	}
	return fmt.Sprintf("service_state(%d)", uint8(s))
}

// Service is what the programs know of a service.
type Service struct {
	// Addr and Port are the server's.
	Addr netip.Addr
	Port uint16
	// State says what happens to its connections now.
	State ServiceState
	// Tokens is how many samples may still be taken while State is sampling. While
	// it is carry, so many connections are left native before others are carried.
	Tokens int
	// TTL is the time until there are new samples; unused where State is carry.
	TTL time.Duration
	// Passed counts the connections left native for it.
	Passed uint64
	// Watched counts those of them that have ended, with bulk, while the programs
	// looked; Bytes is what these moved, both ways, and Lasted how long they were,
	// added up. In state sampling all native ones are looked at, in state carry those
	// that the tokens were for.
	Watched, Bytes uint64
	Lasted         time.Duration
	// Ended counts all that have ended while the programs looked, bulk or not; Moved
	// is their bytes, Segments what these came in, and Took how long they were.
	Ended, Moved, Segments uint64
	Took                   time.Duration
	// Unpaced: the one that was left native last does not pace, see [Datapath.SetNear].
	Unpaced bool
}

// word encodes state, tokens and time as struct service of maps.h.
func (s Service) word(now uint64) uint64 {
	until := (now + uint64(max(s.TTL, 0))) / uint64(time.Millisecond)
	return until<<16 | uint64(uint8(s.Tokens))<<8 | uint64(s.State)
}

// SetService tells what happens to new connections of a service. Connections that
// are carried or native already stay what they are. What was counted is kept.
func (d *Datapath) SetService(s Service) error {
	k, err := peerKey(s.Addr, s.Port)
	if err != nil {
		return err
	}
	if s.State == 0 || s.State >= numServiceStates || s.Port == 0 || s.Tokens < 0 || s.Tokens > 255 {
		return fmt.Errorf("service %v port %d: %v with %d tokens", s.Addr, s.Port, s.State, s.Tokens)
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	var v smcgwService
	if err := ignoreMissing(d.objs.Services.Lookup(k, &v)); err != nil {
		return fmt.Errorf("service %v: %w", s.Addr, err)
	}
	// A token that is taken, or a connection that is counted, in between is lost.
	v.Word = s.word(ktime.Now())
	if err := d.objs.Services.Put(k, v); err != nil {
		return fmt.Errorf("service %v: %w", s.Addr, err)
	}
	return nil
}

// Services lists the services the programs know. One whose time is over is
// sampled again by its next connection.
func (d *Datapath) Services() ([]Service, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	var out []Service
	var k smcgwPeerKey
	var v smcgwService
	now := ktime.Now() / uint64(time.Millisecond)
	it := d.objs.Services.Iterate()
	for it.Next(&k, &v) {
		s := Service{
			Addr: addrFrom(k.Addr, k.Family), Port: wirePort(k.Port), Passed: v.Passed,
			State: ServiceState(v.Word), Tokens: int(uint8(v.Word >> 8)),
			Watched: v.Watched, Bytes: v.Bytes, Lasted: time.Duration(v.Lasted),
			Ended: v.Ended, Moved: v.Moved, Segments: v.Segments, Took: time.Duration(v.Took),
			Unpaced: v.Unpaced != 0,
		}
		if until := v.Word >> 16; until > now {
			s.TTL = time.Duration(until-now) * time.Millisecond
		}
		out = append(out, s)
	}
	if err := it.Err(); err != nil && !errors.Is(err, bpf.ErrIterationAborted) {
		return out, fmt.Errorf("services: %w", err)
	}
	return out, nil
}

// FlushServices forgets all services and returns how many there were.
func (d *Datapath) FlushServices() (int, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	n, err := listing.DeleteWhere(d.objs.Services, func(smcgwPeerKey) bool { return true })
	if err != nil {
		return n, fmt.Errorf("flush services: %w", err)
	}
	return n, nil
}
