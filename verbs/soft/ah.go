package soft

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

const maxAH = 1 << 20

// ah is an address handle.
type ah struct {
	pd     *pd
	av     av
	closed atomic.Bool
}

var _ verbs.AH = (*ah)(nil)

// av is an address vector as datagrams need it.
type av struct {
	local int            // index of our address
	dst   netip.AddrPort // of the peer
}

func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	av, err := p.dev.resolve(&attr)
	if err != nil {
		return nil, err
	}
	if p.dev.ahCount.Add(1) > maxAH {
		p.dev.ahCount.Add(-1)
		return nil, fmt.Errorf("address handles: %w", verbs.ErrNoMemory)
	}
	if err := p.users.Hold(); err != nil {
		p.dev.ahCount.Add(-1)
		return nil, err
	}
	return &ah{pd: p, av: av}, nil
}

// resolve checks an address vector and converts it; both ends must have the same IP version.
func (d *Device) resolve(a *verbs.AHAttr) (av, error) {
	dst := a.DGID.Addr()
	switch {
	case int(a.SGIDIndex) >= len(d.gids):
		return av{}, fmt.Errorf("SGID index %d: %w", a.SGIDIndex, verbs.ErrInvalid)
	case a.Port > 1:
		return av{}, fmt.Errorf("port %d: %w", a.Port, verbs.ErrInvalid)
	case a.FlowLabel >= 1<<20:
		return av{}, fmt.Errorf("flow label %#x: %w", a.FlowLabel, verbs.ErrInvalid)
	case dst.IsUnspecified() || dst.IsMulticast():
		return av{}, fmt.Errorf("DGID %v: %w", a.DGID, verbs.ErrInvalid)
	case dst.Is4() != d.cfg.Addrs[a.SGIDIndex].Is4():
		return av{}, fmt.Errorf("DGID %v from %v: %w", a.DGID, d.cfg.Addrs[a.SGIDIndex], verbs.ErrInvalid)
	}
	port := a.UDPPort
	if port == 0 {
		port = verbs.RoCEUDPPort
	}
	if dst.IsLinkLocalUnicast() && dst.Is6() {
		dst = dst.WithZone(d.cfg.Addrs[a.SGIDIndex].Zone())
	}
	return av{local: int(a.SGIDIndex), dst: netip.AddrPortFrom(dst, port)}, nil
}

func (a *ah) Close() error {
	if !a.closed.Swap(true) {
		a.pd.dev.ahCount.Add(-1)
		a.pd.users.Release()
	}
	return nil
}
