package shm

import (
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// ah is an address handle. The protection domain already determines the peer.
type ah struct {
	peer   *Peer
	closed atomic.Bool
}

var _ verbs.AH = (*ah)(nil)

func (p *Peer) createAH() (verbs.AH, error) {
	if err := p.addAH(1); err != nil {
		return nil, err
	}
	return &ah{peer: p}, nil
}

func (a *ah) Close() error {
	if a.closed.Swap(true) {
		return nil
	}
	return a.peer.addAH(-1)
}
