package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// maxHandshakes bounds the rendezvous under way.
const maxHandshakes = 16

// Listener lets peers attach to what the device offers, at a socket in the
// rendezvous directory.
type Listener struct {
	dev  *Device
	dir  directory
	name string
	ln   *net.UnixListener
	busy chan struct{} // one token per handshake

	mu     sync.Mutex // guards everything below
	closed bool
}

// Listen opens the rendezvous socket of the device. A device has one.
func (d *Device) Listen() (*Listener, error) {
	if err := os.MkdirAll(d.cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make rendezvous directory: %w", err)
	}
	dir, err := openDirectory(d.cfg.Dir)
	if err != nil {
		return nil, err
	}
	l := &Listener{dev: d, dir: dir, name: nameOf(d.cfg.GatewayID), busy: make(chan struct{}, maxHandshakes)}
	dir.sweep()
	if err := l.open(); err != nil {
		dir.close()
		return nil, err
	}
	return l, nil
}

// open binds under another name first: a name others can see has a listener,
// or its owner is dead (sweep relies on it).
func (l *Listener) open() error {
	d := l.dev
	temp := "." + l.name
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: l.dir.path(temp), Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("listen for peers: %w", err)
	}
	ln.SetUnlinkOnClose(false)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		err = verbs.ErrClosed
	case d.listener != nil:
		err = fmt.Errorf("listener of the device: %w", verbs.ErrBusy)
	default:
		err = os.Rename(l.dir.path(temp), l.dir.path(l.name))
	}
	if err != nil {
		_ = os.Remove(l.dir.path(temp))
		return errors.Join(err, ln.Close())
	}
	l.ln, d.listener = ln, l
	d.wg.Add(1)
	go l.serve()
	return nil
}

// Sweep removes the sockets that devices which were killed have left in a
// rendezvous directory, as every device that listens does. Without the directory
// there is nothing to do.
func Sweep(path string) error {
	dir, err := openDirectory(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	dir.sweep()
	return nil
}

// sweep removes the sockets of devices that were killed.
func (d directory) sweep() {
	entries, _ := os.ReadDir(d.path("."))
	for _, e := range entries {
		if _, err := gatewayOf(e.Name()); err != nil || e.Type()&os.ModeSocket == 0 {
			continue
		}
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: d.path(e.Name()), Net: "unixpacket"})
		if err == nil {
			_ = c.Close()
		} else if isRefused(err) {
			_ = os.Remove(d.path(e.Name()))
		}
	}
}

// Name is the rendezvous name: a file name in Config.Dir.
func (l *Listener) Name() string { return l.name }

// Offer makes a pending peer, which somebody becomes by attaching with its name
// and key. It stays until it is closed. The device must listen.
func (d *Device) Offer() (*Peer, error) {
	var key [16]byte
	_, _ = rand.Read(key[:]) // crypto/rand never fails
	p, err := d.newPeer(nameOf(d.cfg.GatewayID), key)
	if err != nil {
		return nil, fmt.Errorf("offer: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		err = verbs.ErrClosed
	case d.listener == nil:
		err = fmt.Errorf("device does not listen: %w", verbs.ErrState)
	case len(d.peers) >= d.cfg.MaxPeers:
		err = fmt.Errorf("%d peers: %w", len(d.peers), verbs.ErrNoMemory)
	}
	if err != nil {
		p.unref()
		return nil, fmt.Errorf("offer: %w", err)
	}
	d.peers[key] = p
	return p, nil
}

// offered returns the pending peer with that key. The key is 128 random bits:
// how long a map look-up takes says nothing useful about it.
func (d *Device) offered(key [16]byte) *Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.peers[key]; p != nil && p.name == nameOf(d.cfg.GatewayID) && !p.Connected() {
		return p
	}
	return nil
}

// Close removes the socket. Peers stay.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	_ = os.Remove(l.dir.path(l.name))
	err := l.ln.Close()
	l.dir.close()
	return err
}

func (l *Listener) serve() {
	defer l.dev.wg.Done()
	for {
		c, err := l.ln.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // EMFILE and the like pass
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case l.busy <- struct{}{}:
			l.dev.wg.Add(1)
			go l.handle(c)
		default:
			_ = c.Close()
		}
	}
}

func (l *Listener) handle(c *net.UnixConn) {
	defer l.dev.wg.Done()
	defer func() { <-l.busy }()
	if err := l.welcome(c); err != nil {
		l.dev.counters.refused.Add(1)
		_ = sendMessage(c, message{kind: typeRefuse, code: refuseCode(err)})
		_ = c.Close()
		l.dev.cfg.Logger.Debug("shm attachment refused", "err", err.Error())
	}
}

// welcome answers a HELLO. The peer is connected before WELCOME is sent, so the
// caller may use it as soon as it has read it.
func (l *Listener) welcome(c *net.UnixConn) error {
	d := l.dev
	_ = c.SetDeadline(time.Now().Add(d.cfg.HandshakeTimeout))
	if err := checkCredentials(c); err != nil {
		return err
	}
	m, fds, err := receiveMessage(c)
	if err != nil {
		return err
	}
	p := d.offered(m.key)
	if p == nil || m.kind != typeHello || m.gateway == d.cfg.GatewayID {
		closeFDs(fds)
		return ErrKey
	}
	r, err := d.take(m, fds)
	if err != nil {
		return err
	}
	if err := p.connect(c, r); err != nil {
		return err
	}
	if err := p.announce(c, typeWelcome); err != nil {
		p.fail(err)
	}
	return nil
}
