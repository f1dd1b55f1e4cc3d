package manager

import (
	"context"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/rsocket/cm/kernel"
	"github.com/smcgw/smcgw/verbs"
)

// Manager is a communication manager.
type Manager interface {
	// Dial connects a queue pair.
	Dial(ctx context.Context, p cm.DialParams) (Conn, error)
	// Listen takes requests for a port; port 0 chooses one.
	Listen(local netip.AddrPort, backlog int) (Listener, error)
	// Close ends everything that the manager has.
	Close() error
}

// Listener has the requests for connections to one port.
type Listener interface {
	// Accept waits for the next one.
	Accept(ctx context.Context) (Request, error)
	// Addr is the address listened on.
	Addr() netip.AddrPort
	// Close refuses those that wait.
	Close() error
}

// Request is one of them, which Accept or Refuse answers.
type Request interface {
	// Private is what the peer says, of the queue pair that it has.
	Private() ([]byte, error)
	// Established tells that data has arrived. Even a loop may call it.
	Established()
	// Accept connects a queue pair.
	Accept(ctx context.Context, p cm.AcceptParams) (Conn, error)
	// Refuse tells the peer.
	Refuse(reason cm.RejectReason)
}

// Conn is a connection of queue pairs.
type Conn interface {
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

// New opens a manager of package cm.
func New(dev verbs.Device, cfg cm.Config) (Manager, error) {
	m, err := cm.New(dev, cfg)
	if err != nil {
		return nil, err
	}
	return own{m}, nil
}

// Kernel opens the kernel's manager.
func Kernel(dev verbs.Device) (Manager, error) {
	m, err := kernel.New(dev)
	if err != nil {
		return nil, err
	}
	return kernelManager{m}, nil
}

func connOf[C Conn](c C, err error) (Conn, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}
