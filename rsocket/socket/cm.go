package socket

import (
	"context"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/rsocket/cm/kernel"
	"github.com/smcgw/smcgw/verbs"
)

// connManager is a communication manager: that of package cm on a device with queue pair 1, otherwise the kernel's. Its
// users need not know which. It knows nothing of streams: the private data that the two ends exchange while they
// connect is opaque. The trap: a request that is neither accepted nor refused occupies its place until the manager
// gives it up.
type connManager interface {
	// Dial connects a queue pair.
	Dial(ctx context.Context, p cm.DialParams) (cmConn, error)
	// Listen accepts requests for a port; port 0 chooses one.
	Listen(local netip.AddrPort, backlog int) (cmListener, error)
	// Close ends everything that the manager made.
	Close() error
}

// cmListener receives the connection requests for one port.
type cmListener interface {
	// Accept waits for the next request.
	Accept(ctx context.Context) (cmRequest, error)
	// Addr returns the address listened on.
	Addr() netip.AddrPort
	// Close refuses the requests that wait.
	Close() error
}

// cmRequest is a connection request, which must be answered with Accept or Refuse.
type cmRequest interface {
	// Private returns the peer's private data, which describes its queue pair.
	Private() ([]byte, error)
	// Established reports to the manager that data has arrived. It does not block, so a loop may call it.
	Established()
	// Accept connects a queue pair.
	Accept(ctx context.Context, p cm.AcceptParams) (cmConn, error)
	// Refuse refuses the request.
	Refuse(reason cm.RejectReason)
}

// cmConn is a connection between two queue pairs.
type cmConn interface {
	// PrivateData returns the private data of the dialed peer's answer.
	PrivateData() []byte
	// LocalAddr returns this end's address.
	LocalAddr() netip.AddrPort
	// RemoteAddr returns the peer's address.
	RemoteAddr() netip.AddrPort
	// Disconnect tells the peer and waits for its answer.
	Disconnect(ctx context.Context) error
	// AfterDone makes f run when the connection is over.
	AfterDone(f func())
	// Err returns why it is over.
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
