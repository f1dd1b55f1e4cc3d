package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/verbs"
)

// maxHandshakes bounds the rendezvous in progress, maxPerProcess those of one process: a process that connects and
// sends nothing cannot keep others out.
const (
	maxHandshakes = 16
	maxPerProcess = maxHandshakes / 2
)

// Listener lets peers attach to the device's offers, at a socket in the rendezvous directory.
type Listener struct {
	dev  *Device
	dir  directory
	name string
	ln   *net.UnixListener

	mu     sync.Mutex    // guards everything below
	busy   int           // handshakes in progress
	by     map[int32]int // handshakes in progress by process; 0 stands for those of other PID namespaces
	closed bool
}

// Listen opens the rendezvous socket of the device, which can have only one.
func (d *Device) Listen() (*Listener, error) {
	if err := os.MkdirAll(d.cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make rendezvous directory: %w", err)
	}
	dir, err := openDirectory(d.cfg.Dir)
	if err != nil {
		return nil, err
	}
	l := &Listener{dev: d, dir: dir, name: nameOf(d.cfg.GatewayID), by: map[int32]int{}}
	dir.sweep()
	if err := l.open(); err != nil {
		dir.close()
		return nil, err
	}
	return l, nil
}

// open binds under a hidden name first and then renames: a visible name has a listener, or its owner is dead (sweep
// relies on it).
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

// Sweep removes the sockets of killed devices from a rendezvous directory, as every listening device does. If there is
// no directory, or no device can listen there (ErrFileSystem), it does nothing.
func Sweep(path string) error {
	dir, err := openAny(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrFileSystem) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	if os.Geteuid() != 0 { // root cleans up after gateways of any user
		if err := dir.check(); err != nil {
			return fmt.Errorf("rendezvous directory %s: %w", path, err)
		}
	}
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
		} else if errors.Is(err, unix.ECONNREFUSED) {
			_ = os.Remove(d.path(e.Name()))
		}
	}
}

// Offer makes a pending peer. A device that attaches with its name and key becomes that peer. It stays until it is
// closed. The device must listen.
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

// offered returns the pending peer with that key. The key is 128 random bits, so the time of a map look-up reveals
// nothing useful about it.
func (d *Device) offered(key [16]byte) *Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.peers[key]; p != nil && p.name == nameOf(d.cfg.GatewayID) && !p.Connected() {
		return p
	}
	return nil
}

// Close removes the socket. Existing peers stay.
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
		if err != nil { // EMFILE and the like are temporary
			time.Sleep(10 * time.Millisecond)
			continue
		}
		cred, err := credentials(c)
		if err != nil || !l.enter(cred.Pid) {
			l.dev.counters.refused.Add(1)
			_ = c.Close()
			continue
		}
		l.dev.wg.Add(1)
		go l.handle(c, cred)
	}
}

// enter counts a handshake; it returns false if there are too many.
func (l *Listener) enter(pid int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy >= maxHandshakes || l.by[pid] >= maxPerProcess {
		return false
	}
	l.busy++
	l.by[pid]++
	return true
}

// exit ends a handshake.
func (l *Listener) exit(pid int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	if l.by[pid]--; l.by[pid] == 0 {
		delete(l.by, pid)
	}
}

func (l *Listener) handle(c *net.UnixConn, cred *unix.Ucred) {
	defer l.dev.wg.Done()
	defer l.exit(cred.Pid)
	if err := l.welcome(c, cred); err != nil {
		l.dev.counters.refused.Add(1)
		_ = sendMessage(c, message{kind: typeRefuse, code: refuseCode(err)})
		_ = c.Close()
		l.dev.cfg.Logger.Debug("shm attachment refused", "err", err.Error())
	}
}

// welcome answers a HELLO. The peer is connected before WELCOME is sent, so the caller may use it as soon as it has
// received that.
func (l *Listener) welcome(c *net.UnixConn, cred *unix.Ucred) error {
	d := l.dev
	_ = c.SetDeadline(time.Now().Add(d.cfg.HandshakeTimeout))
	if err := checkUser(cred); err != nil {
		return err
	}
	m, fds, err := receiveMessage(c)
	if err != nil {
		return err
	}
	p := d.offered(m.key)
	if p == nil || m.kind != typeHello || m.gateway == d.cfg.GatewayID {
		fdpass.CloseFDs(fds)
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
