package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

// attempt is a call under way; others for the same gateway wait for it.
type attempt struct {
	done chan struct{}
	err  error
}

func less(a, b [16]byte) bool { return bytes.Compare(a[:], b[:]) < 0 }

func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }

// Attach returns the peer that offered name and key, calling it if the two
// devices do not share memory yet. However many calls are made, and from
// whichever side, there is one peer per pair of gateways: the device that lost
// the race to call waits for the other's call. It takes at most
// Config.HandshakeTimeout. Errors wrap ErrName, ErrKey, ErrVersion,
// ErrCredentials, ErrMessage, ErrMemfd, ErrBusy, verbs.ErrClosed or the cause.
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
	p, a, mine, err := d.begin(gateway)
	switch {
	case err != nil:
		return nil, err
	case p != nil:
		return p, nil
	case mine:
		return d.attach(ctx, a, gateway, key)
	}
	return d.waitAttempt(ctx, a, gateway)
}

// begin finds the peer, the call under way, or begins one.
func (d *Device) begin(gateway [16]byte) (p *Peer, a *attempt, mine bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, false, verbs.ErrClosed
	}
	if p := d.peers[gateway]; p != nil {
		return p, nil, false, nil
	}
	if a := d.attaching[gateway]; a != nil {
		return nil, a, false, nil
	}
	a = &attempt{done: make(chan struct{})}
	d.attaching[gateway] = a
	return nil, a, true, nil
}

func (d *Device) waitAttempt(ctx context.Context, a *attempt, gateway [16]byte) (*Peer, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-a.done:
	}
	if p := d.PeerByGateway(gateway); p != nil {
		return p, nil
	}
	if a.err == nil {
		return nil, verbs.ErrRemoteGone
	}
	return nil, a.err
}

func (d *Device) attach(ctx context.Context, a *attempt, gateway, key [16]byte) (*Peer, error) {
	p, err := d.call(ctx, gateway, key)
	if errors.Is(err, ErrBusy) {
		p, err = d.waitPeer(ctx, gateway)
	}
	if err != nil {
		err = fmt.Errorf("attach to gateway %x: %w", gateway, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.attaching, gateway)
	a.err = err
	close(a.done)
	return p, err
}

// waitPeer waits for the call the other side is making.
func (d *Device) waitPeer(ctx context.Context, gateway [16]byte) (*Peer, error) {
	for {
		d.mu.Lock()
		p, changed, closed := d.peers[gateway], d.changed, d.closed
		d.mu.Unlock()
		if p != nil {
			return p, nil
		}
		if closed {
			return nil, verbs.ErrClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx))
		}
	}
}

// call makes a rendezvous.
func (d *Device) call(ctx context.Context, gateway, key [16]byte) (*Peer, error) {
	c, err := d.dial(ctx, gateway)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	p, err := d.handshake(c, gateway, key)
	if !stop() && err != nil {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	if err != nil {
		_ = c.Close()
	}
	return p, err
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

func (d *Device) handshake(c *net.UnixConn, gateway, key [16]byte) (*Peer, error) {
	if err := checkCredentials(c); err != nil {
		return nil, err
	}
	p, err := d.newPeer()
	if err != nil {
		return nil, err
	}
	p.conn = c
	if err := p.greet(gateway, key); err != nil {
		p.unref()
		return nil, err
	}
	if err := d.register(p, func() error { return nil }); err != nil {
		return nil, err
	}
	return p, nil
}

// greet sends HELLO and takes the answer.
func (p *Peer) greet(gateway, key [16]byte) error {
	if err := p.announce(typeHello, key); err != nil {
		return err
	}
	m, fds, err := receiveMessage(p.conn)
	if err != nil {
		return err
	}
	switch {
	case m.kind == typeRefuse:
		return refusal(m.code)
	case m.kind != typeWelcome || m.gateway != gateway:
		closeFDs(fds)
		return fmt.Errorf("type %d from gateway %x: %w", m.kind, m.gateway, ErrMessage)
	}
	return p.adopt(m, fds)
}

// announce sends this side's memory and doorbells.
func (p *Peer) announce(kind byte, key [16]byte) error {
	m := message{kind: kind, vectors: uint16(len(p.bells)), size: p.own.size(), gateway: p.dev.cfg.GatewayID, key: key}
	return sendMessage(p.conn, m, append([]int{p.memfd}, p.bells...)...)
}

// register makes the peer known and alive, then lets announce tell it. On error
// nothing of the peer remains, but the connection is the caller's to close.
func (d *Device) register(p *Peer, announce func() error) error {
	for _, v := range d.vectors {
		if err := v.attach(p); err != nil {
			d.discard(p)
			return err
		}
	}
	d.mu.Lock()
	var err error
	switch {
	case d.closed:
		err = verbs.ErrClosed
	case d.peers[p.gateway] != nil:
		err = ErrBusy
	default:
		if err = announce(); err == nil {
			d.peers[p.gateway] = p
			d.counters.peersUp.Add(1)
			d.wg.Add(1)
			d.notifyLocked()
		}
	}
	d.mu.Unlock()
	if err != nil {
		d.discard(p)
		return err
	}
	_ = p.conn.SetDeadline(time.Time{})
	go p.watch()
	d.cfg.Logger.Info("shm peer up", "peer", p.String(), "vectors", len(p.targets))
	d.cfg.OnPeer(p)
	return nil
}

// discard takes back a peer that nobody has seen. The loops may be looking at
// it: they let go of it as of any peer that is down.
func (d *Device) discard(p *Peer) {
	p.mu.Lock()
	p.err = verbs.ErrClosed
	p.mu.Unlock()
	p.down.Store(true)
	for _, v := range d.vectors {
		v.peerDown(p)
	}
	p.unref()
}
