package socket

import (
	"context"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/rsocket/cm/kernel"
	"github.com/smcgw/smcgw/verbs"
)

// connManager is a communication manager: that of package cm on a device with queue pair 1, elsewhere the kernel's. Which
// of them it is makes no difference behind it. It knows no streams: what the two ends say to each other while they connect
// is private data, bytes. The trap: a request that is neither accepted nor refused keeps its place until the manager gives
// it up.
type connManager interface {
	// Dial connects a queue pair.
	Dial(ctx context.Context, p cm.DialParams) (cmConn, error)
	// Listen takes requests for a port; port 0 chooses one.
	Listen(local netip.AddrPort, backlog int) (cmListener, error)
	// Close ends everything that the manager has.
	Close() error
}

// cmListener has the requests for connections to one port.
type cmListener interface {
	// Accept waits for the next one.
	Accept(ctx context.Context) (cmRequest, error)
	// Addr is the address listened on.
	Addr() netip.AddrPort
	// Close refuses those that wait.
	Close() error
}

// cmRequest is one of them, which Accept or Refuse answers.
type cmRequest interface {
	// Private is what the peer says, of the queue pair that it has.
	Private() ([]byte, error)
	// Established tells that data has arrived. Even a loop may call it.
	Established()
	// Accept connects a queue pair.
	Accept(ctx context.Context, p cm.AcceptParams) (cmConn, error)
	// Refuse tells the peer.
	Refuse(reason cm.RejectReason)
}

// cmConn is a connection of queue pairs.
type cmConn interface {
	// PrivateData is what the peer that was dialed answered.
	PrivateData() []byte
	// LocalAddr is this end.
	LocalAddr() netip.AddrPort
	// RemoteAddr is the peer's end.
	RemoteAddr() netip.AddrPort
	// Disconnect tells the peer, and waits for its answer.
	Disconnect(ctx context.Context) error
	// AfterDone has f called when the connection is over.
	AfterDone(f func())
	// Err is why it is over.
	Err() error
}

// newManager opens a manager of package cm.
func newManager(dev verbs.Device, cfg cm.Config) (connManager, error) {
	m, err := cm.New(dev, cfg)
	if err != nil {
		return nil, err
	}
	return ownManager{m}, nil
}

// newKernelManager opens the kernel's manager.
func newKernelManager(dev verbs.Device) (connManager, error) {
	m, err := kernel.New(dev)
	if err != nil {
		return nil, err
	}
	return kernelManager{m}, nil
}

func cmConnOf[C cmConn](c C, err error) (cmConn, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}
