package shm

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/verbs"
)

// attempt is a call in progress; other callers with the same key wait for it.
type attempt struct {
	done chan struct{}
	peer *Peer
	err  error
}

// Attach returns the peer that made the offer of name and key, and connects to it if needed: many flows share a peer,
// and concurrent calls wait for one. It takes at most Config.HandshakeTimeout. Errors wrap ErrName, ErrKey, ErrVersion,
// ErrCredentials, ErrMessage, ErrMemfd, ErrEventfd, verbs.ErrNoMemory, verbs.ErrClosed or the cause.
func (d *Device) Attach(ctx context.Context, name string, key [16]byte) (*Peer, error) {
	gateway, err := gatewayOf(name)
	if err != nil {
		return nil, err
	}
	if gateway == d.cfg.GatewayID {
		return nil, fmt.Errorf("attach to itself: %w", verbs.ErrInvalid)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.cfg.HandshakeTimeout, fmt.Errorf("rendezvous: %w", unix.ETIMEDOUT))
	defer cancel()
	p, a, mine, err := d.begin(name, key)
	switch {
	case err != nil:
		return nil, err
	case p != nil:
		return p, nil
	case mine:
		p, err = d.call(ctx, gateway, key)
		if err != nil {
			err = fmt.Errorf("attach to gateway %x: %w", gateway, err)
		}
		d.finish(a, key, p, err)
		return p, err
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-a.done:
		return a.peer, a.err
	}
}

// Attached returns the connected peer with this rendezvous and key, which Attach would return immediately, or nil.
func (d *Device) Attached(name string, key [16]byte) *Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.peers[key]; p != nil && d.attaching[key] == nil && p.name == name && !d.closed {
		return p
	}
	return nil
}

// begin returns the peer or the call in progress, or begins a call.
func (d *Device) begin(name string, key [16]byte) (p *Peer, a *attempt, mine bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, false, verbs.ErrClosed
	}
	if a := d.attaching[key]; a != nil { // check calls first: their peer is in d.peers before it is connected
		return nil, a, false, nil
	}
	if p := d.peers[key]; p != nil {
		if p.name != name {
			return nil, nil, false, ErrKey
		}
		return p, nil, false, nil
	}
	if len(d.peers)+len(d.attaching) >= d.cfg.MaxPeers {
		return nil, nil, false, fmt.Errorf("%d peers: %w", len(d.peers), verbs.ErrNoMemory)
	}
	a = &attempt{done: make(chan struct{})}
	d.attaching[key] = a
	return nil, a, true, nil
}

func (d *Device) finish(a *attempt, key [16]byte, p *Peer, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.attaching, key)
	a.peer, a.err = p, err
	close(a.done)
}

// call performs a rendezvous.
func (d *Device) call(ctx context.Context, gateway, key [16]byte) (*Peer, error) {
	c, err := d.dial(ctx, gateway)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	r, p, err := d.greet(c, gateway, key)
	if !stop() && err != nil {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	if err := d.adopt(p, c, r); err != nil {
		_ = c.Close()
		return nil, err
	}
	return p, nil
}

func (d *Device) dial(ctx context.Context, gateway [16]byte) (*net.UnixConn, error) {
	dir, err := openDirectory(d.cfg.Dir)
	if err != nil {
		return nil, err
	}
	defer dir.close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unixpacket", dir.path(nameOf(gateway)))
	if err != nil {
		return nil, fmt.Errorf("call peer: %w", err)
	}
	return c.(*net.UnixConn), nil
}

// greet sends HELLO and receives the answer.
func (d *Device) greet(c *net.UnixConn, gateway, key [16]byte) (r remote, p *Peer, err error) {
	if err := checkCredentials(c); err != nil {
		return r, nil, err
	}
	if p, err = d.newPeer(nameOf(gateway), key); err != nil {
		return r, nil, err
	}
	if err = p.announce(c, typeHello); err == nil {
		r, err = d.answer(c, gateway)
	}
	if err != nil {
		p.unref()
		return remote{}, nil, err
	}
	return r, p, nil
}

func (d *Device) answer(c *net.UnixConn, gateway [16]byte) (remote, error) {
	m, fds, err := receiveMessage(c)
	switch {
	case err != nil:
		return remote{}, err
	case m.kind == typeRefuse:
		return remote{}, refusal(m.code)
	case m.kind != typeWelcome || m.gateway != gateway:
		fdpass.CloseFDs(fds)
		return remote{}, fmt.Errorf("type %d from gateway %x: %w", m.kind, m.gateway, ErrMessage)
	}
	return d.take(m, fds)
}

// announce sends this side's memory and doorbells.
func (p *Peer) announce(c *net.UnixConn, kind byte) error {
	m := message{kind: kind, vectors: uint16(len(p.bells)), size: p.own.size(), gateway: p.dev.cfg.GatewayID, key: p.key}
	return sendMessage(c, m, append([]int{p.memfd}, p.bells...)...)
}

// adopt registers a peer that this device has called, and connects it.
func (d *Device) adopt(p *Peer, c *net.UnixConn, r remote) error {
	d.mu.Lock()
	closed := d.closed
	if !closed {
		d.peers[p.key] = p
	}
	d.mu.Unlock()
	if closed {
		r.closeRemote()
		p.unref()
		return verbs.ErrClosed
	}
	return p.connect(c, r)
}

// connect turns a pending peer into a connected one and takes ownership of r. From here on the watcher owns the
// connection.
func (p *Peer) connect(c *net.UnixConn, r remote) error {
	if err := p.setRemote(c, r); err != nil {
		r.closeRemote()
		return err
	}
	_ = c.SetDeadline(time.Time{})
	for _, v := range p.dev.vectors {
		if err := v.attach(p); err != nil {
			p.fail(err)
		}
	}
	go p.watch()
	p.dev.counters.peersUp.Add(1)
	p.dev.cfg.Logger.Info("shm peer up", "peer", p.String(), "gateway", hex.EncodeToString(r.gateway[:]), "vectors", len(r.targets))
	p.dev.cfg.OnPeer(p)
	return nil
}

// setRemote connects the peer unless it was connected or closed before: of several attachments with one key, the first
// wins.
func (p *Peer) setRemote(c *net.UnixConn, r remote) error {
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.dev.closed || p.err != nil:
		return verbs.ErrClosed
	case p.conn != nil:
		return ErrKey
	}
	p.conn, p.remote, p.pidfd = c, r, peerProcess(c)
	for i := range p.targets {
		p.targets[i].peer = p
	}
	p.dev.wg.Add(1) // for watch
	return nil
}
