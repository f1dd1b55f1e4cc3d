package legs

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/smcgw/smcgw/internal/fdpass"
)

// Namespace is the gateway's handle of the namespace, with its keeper and, from Tend on, a spare that replaces a keeper
// that dies. Its methods may be called from any goroutine, and wait for the keeper unless they say otherwise.
type Namespace struct {
	mu     sync.Mutex // guards everything below down to closed
	keeper *client
	spare  *client // nil if none
	tend   *tending
	deaths int // number of keepers that a spare has replaced, and when last
	died   time.Time
	closed bool

	wants chan struct{} // signals that a keeper has died

	ns, diag, dump *os.File
}

// Open takes ownership of a connection that [Start] has made.
func Open(conn *os.File) (*Namespace, error) {
	k, err := newClient(conn)
	if err != nil {
		return nil, err
	}
	n := &Namespace{keeper: k, wants: make(chan struct{}, 1)}
	_, fds, err := k.ask(message{op: opHello})
	if err == nil && len(fds) != 3 {
		fdpass.CloseFDs(fds)
		err = fmt.Errorf("%w: %d descriptors instead of 3", ErrKeeper, len(fds))
	}
	if err != nil {
		k.close()
		return nil, err
	}
	n.ns = os.NewFile(uintptr(fds[0]), "namespace of the legs")
	n.diag, n.dump = os.NewFile(uintptr(fds[1]), "sock_diag"), os.NewFile(uintptr(fds[2]), "sock_diag")
	return n, nil
}

// File returns the namespace, which remains owned by n.
func (n *Namespace) File() *os.File { return n.ns }

// Diag returns two sock_diag sockets of the namespace, one for requests and one for dumps. They remain owned by n.
func (n *Namespace) Diag() (request, dump int) { return int(n.diag.Fd()), int(n.dump.Fd()) }

// Device routes all packets of the namespace through a device that has been moved there: whatever arrives on it is
// delivered to a socket in the namespace, and whatever sockets send goes to router, the link address of its other end.
// settings are sysctls below net. Device returns the interface index in the namespace.
func (n *Namespace) Device(name string, mtu int, router net.HardwareAddr, settings map[string]string) (int, error) {
	req, err := encode(opDevice, deviceRequest{Name: name, MTU: mtu, Router: router.String(), Settings: settings})
	if err != nil {
		return 0, err
	}
	m, fds, err := n.ask(req)
	fdpass.CloseFDs(fds)
	if err != nil {
		return 0, err
	}
	var a deviceAnswer
	err = m.decode(&a)
	return a.Index, err
}

// Sockets returns at least one and at most count legs of a family; count is 1 to [MaxSockets]. A leg is a TCP socket
// that may be bound to any address, non-blocking, close-on-exec, with SO_LINGER {1, 0}. The caller owns them.
func (n *Namespace) Sockets(v6 bool, count int) ([]int, error) {
	req, err := encode(opSockets, socketsRequest{V6: v6, Count: count})
	if err != nil {
		return nil, err
	}
	_, fds, err := n.ask(req)
	if err == nil && len(fds) == 0 {
		err = fmt.Errorf("%w: no socket", ErrKeeper)
	}
	return fds, err
}

// Alive reports whether there is a keeper that answers, without waiting. A late keeper counts again once it has
// answered. The spare replaces a keeper that has died.
func (n *Namespace) Alive() bool {
	k := n.current()
	if k.gone() {
		n.look()
		k = n.after(k)
	}
	return k != nil && k.answers()
}

// ask sends a request and waits for its answer; the caller owns the descriptors. If the keeper dies before it answers,
// the spare does.
func (n *Namespace) ask(req message) (message, []int, error) {
	k := n.current()
	m, fds, err := k.ask(req)
	if err == nil || !k.gone() {
		return m, fds, err
	}
	n.look()
	if k = n.after(k); k == nil {
		return m, fds, err
	}
	return k.ask(req)
}

// look makes Tend check the keepers now.
func (n *Namespace) look() {
	select {
	case n.wants <- struct{}{}:
	default:
	}
}

func (n *Namespace) current() *client {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keeper
}

// after returns the replacement of a keeper that has died, or nil if there is none.
func (n *Namespace) after(dead *client) *client {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keeper != dead {
		return n.keeper
	}
	if n.closed || n.spare == nil || n.spare.gone() {
		return nil
	}
	dead.close()
	n.keeper, n.spare = n.spare, nil
	n.deaths, n.died = n.deaths+1, time.Now()
	return n.keeper
}

// Deaths returns how many keepers have died and were replaced, and when last, without waiting.
func (n *Namespace) Deaths() (count int, last time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.deaths, n.died
}

// Close ends the keeper. The namespace ends when its last socket does.
func (n *Namespace) Close() error {
	n.mu.Lock()
	n.closed = true
	n.keeper.close() // ends whatever waits for it
	tend := n.tend
	n.mu.Unlock()
	if tend != nil {
		tend.end()
	}
	if n.spare != nil { // no goroutine is left that could make another one
		n.spare.close()
	}
	var errs []error
	for _, f := range []*os.File{n.ns, n.diag, n.dump} {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
