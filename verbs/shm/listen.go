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

// Bounds of a listener.
const (
	maxOffers     = 8192
	maxHandshakes = 16
)

// Offer is what a peer needs to attach to this device: it travels in the CLC
// PROPOSAL. The key is good for one attachment within Config.OfferTTL.
type Offer struct {
	Name string
	Key  [16]byte
}

// Listener accepts attachments at a socket in the rendezvous directory.
type Listener struct {
	dev  *Device
	dir  directory
	name string
	ln   *net.UnixListener
	busy chan struct{} // one token per handshake

	mu     sync.Mutex // guards everything below
	offers map[[16]byte]time.Time
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
	l := &Listener{
		dev: d, dir: dir, name: nameOf(d.cfg.GatewayID), busy: make(chan struct{}, maxHandshakes),
		offers: map[[16]byte]time.Time{},
	}
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

// Offer makes a fresh key. When too many are outstanding an old one is dropped.
func (l *Listener) Offer() Offer {
	o := Offer{Name: l.name}
	_, _ = rand.Read(o.Key[:]) // never fails: crypto/rand
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.offers) >= maxOffers {
		l.expireLocked(now)
	}
	l.offers[o.Key] = now.Add(l.dev.cfg.OfferTTL)
	return o
}

// expireLocked drops what is out of date, or anything if nothing is.
func (l *Listener) expireLocked(now time.Time) {
	for k, until := range l.offers {
		if now.After(until) {
			delete(l.offers, k)
		}
	}
	for k := range l.offers {
		if len(l.offers) < maxOffers {
			return
		}
		delete(l.offers, k)
	}
}

// Revoke withdraws an offer that will not be used.
func (l *Listener) Revoke(o Offer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.offers, o.Key)
}

// accepts tells whether a key was offered, and uses it up if so.
func (l *Listener) accepts(key [16]byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	until, ok := l.offers[key]
	delete(l.offers, key)
	return ok && time.Now().Before(until)
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

// welcome answers a HELLO. The peer exists from before WELCOME is sent, so the
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
	if err := l.admit(m); err != nil {
		closeFDs(fds)
		return err
	}
	p, err := d.newPeer()
	if err != nil {
		closeFDs(fds)
		return err
	}
	if err := p.adopt(m, fds); err != nil {
		p.unref()
		return err
	}
	p.conn = c
	return d.register(p, func() error { return p.announce(typeWelcome, [16]byte{}) })
}

// admit decides whether a HELLO is welcome. If both sides call at once, the
// call of the one with the lower gateway id is answered.
func (l *Listener) admit(m message) error {
	if m.kind != typeHello {
		return fmt.Errorf("type %d: %w", m.kind, ErrMessage)
	}
	if !l.accepts(m.key) {
		return ErrKey
	}
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return verbs.ErrClosed
	case m.gateway == d.cfg.GatewayID || d.peers[m.gateway] != nil:
		return ErrBusy
	case d.attaching[m.gateway] != nil && less(d.cfg.GatewayID, m.gateway):
		return ErrBusy
	case len(d.peers) >= d.cfg.MaxPeers:
		return errRefused
	}
	return nil
}
