package memhost

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// serviceRefused returns why a connection to a service of a rule with action auto
// gets no offer now, or 0: what service_of of the programs does. Native ones are
// not watched here.
func (m *Model) serviceRefused(t ebpf.Tuple) uint8 {
	now, s := m.now(), m.services[t.Remote]
	if s == nil {
		if len(m.services) >= m.cfg.MaxServices { // forgets some other
			for other := range m.services {
				delete(m.services, other)
				break
			}
		}
		s = &ebpf.Service{Addr: t.Remote.Addr(), Port: t.Remote.Port()}
		m.services[t.Remote] = s
	}
	switch {
	case s.State == ebpf.ServiceCarry && s.Tokens == 0:
		return 0
	case s.State == ebpf.ServiceCarry:
		s.Tokens--
		s.Passed++
		return ebpf.ReasonNotWorthIt
	case now >= s.TTL && (!m.cfg.LookFirst || s.State != ebpf.ServiceSampling): // a point of time here
		s.State, s.TTL = ebpf.ServiceSampling, now+m.cfg.SamplePeriod
		if m.cfg.LookFirst {
			s.Tokens = 0
			s.Passed++
			return ebpf.ReasonNotWorthIt
		}
		s.Tokens = m.cfg.Samples - 1
		return 0
	case s.State == ebpf.ServiceSampling && s.Tokens > 0:
		s.Tokens--
		return 0
	default:
		s.Passed++
		return ebpf.ReasonNotWorthIt
	}
}

// SetService implements host.Steering.
func (m *Model) SetService(s ebpf.Service) error {
	return m.change(func() {
		at := netip.AddrPortFrom(s.Addr, s.Port)
		if old := m.services[at]; old != nil {
			s.Passed = old.Passed
		}
		s.TTL += m.now()
		m.services[at] = &s
	})
}

// Services implements host.Steering.
func (m *Model) Services() ([]ebpf.Service, error) {
	var out []ebpf.Service
	err := m.change(func() {
		for _, s := range m.services {
			e := *s
			e.TTL = max(0, s.TTL-m.now())
			out = append(out, e)
		}
	})
	return out, err
}

// FlushServices implements host.Steering.
func (m *Model) FlushServices() (int, error) {
	n := 0
	err := m.change(func() {
		n = len(m.services)
		clear(m.services)
	})
	return n, err
}

// SetNear implements host.Steering: applications here have no congestion control to choose.
func (*Model) SetNear(netip.Addr, time.Duration) error { return nil }
