package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// heldStep is a step of a handshake at which the gateway that is about to be hit holds a connection.
type heldStep struct {
	step      string // for SMCGW_DEBUG_HOLD; empty: the network drops the SYN-ACK
	state     string // what conns reports then
	port      uint16
	connected bool // the applications are connected, so they get a reset
	spoken    bool // PROPOSAL has been sent, so the server's program may have accepted
}

// heldAt lists the steps of the client's or the server's gateway.
func heldAt(host string) []heldStep {
	const first = ownPort + 10
	if host == "h1" {
		return []heldStep{
			{step: "accepted", state: "accepted", port: first},
			{step: "negotiating", state: "negotiating", port: first + 1, spoken: true},
			{step: "handover", state: "completing", port: first + 2, spoken: true},
			{step: "completing", state: "completing", port: first + 3, connected: true},
			{port: first + 4},
		}
	}
	return []heldStep{
		{step: "offered", state: "accepted", port: first},
		{step: "accepted", state: "accepted", port: first + 1},
		{step: "negotiating", state: "negotiating", port: first + 2},
		{step: "completing", state: "completing", port: first + 3, connected: true},
		{port: first + 4},
	}
}

func holdEnvironment(steps []heldStep) string {
	var points []string
	for _, s := range steps {
		if s.step != "" {
			points = append(points, fmt.Sprintf("%s:%d", s.step, s.port))
		}
	}
	return "SMCGW_DEBUG_HOLD=" + strings.Join(points, ",")
}

// heldConn is a connection that is held.
type heldConn struct {
	at      heldStep
	begun   time.Time
	attempt chan attempt // receives the connect(), once
	conn    net.Conn     // set once attempt was read
	ends    chan ended   // of both ends, if connected
	ln      net.Listener
}

// hold opens one connection for each step and waits until each is held there.
func (f *faultWorld) hold(t *testing.T, steps []heldStep) (held []*heldConn) {
	t.Helper()
	for _, s := range steps {
		if s.step == "" { // the last one: its next SYN, a second later, is native anyway
			f.awaitHeld(t, held)
			h := f.listen(t, s)
			held = append(held, h)
			f.dropAccept(t, h)
			return held
		}
		held = append(held, f.holdAt(t, s))
	}
	return held
}

// listen listens for the connection that is held at a step.
func (f *faultWorld) listen(t *testing.T, s heldStep) *heldConn {
	t.Helper()
	ln, err := f.h2.Listen("tcp", f.h2.AddrPort4(s.port).String())
	require.NoError(t, err)
	h := &heldConn{at: s, attempt: make(chan attempt, 1), ends: make(chan ended, 2), ln: ln}
	go h.answer()
	t.Cleanup(h.close)
	return h
}

// close ends the listener, and the connection if attempt was read.
func (h *heldConn) close() {
	_ = h.ln.Close()
	if h.conn != nil {
		_ = h.conn.Close()
	}
}

// holdAt opens a connection that is held at a step. On a machine without a processor to spare one may be native; then
// holdAt opens another.
func (f *faultWorld) holdAt(t *testing.T, s heldStep) *heldConn {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		h := f.listen(t, s)
		f.flush()
		h.dial(f.h1)
		if f.isHeld(t, h) {
			return h
		}
		h.close()
		require.True(t, time.Now().Before(end), "held at %s", s.step)
	}
}

// isHeld waits until a connection is held, which it reports, or is connected without being held.
func (f *faultWorld) isHeld(t *testing.T, h *heldConn) bool {
	t.Helper()
	var connected time.Time
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f.states(t)[h.at.port] == h.at.state {
			return true
		}
		switch {
		case !connected.IsZero() && time.Since(connected) > time.Second:
			<-h.attempt
			return false
		case connected.IsZero() && len(h.attempt) > 0:
			connected = time.Now()
		}
	}
	require.FailNow(t, "neither held nor connected", "at %s", h.at.step)
	return false
}

// dial connects, and waits for a reset if one must come.
func (h *heldConn) dial(from *testnet.Host) {
	h.begun = time.Now()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		conn, err := from.Dial(ctx, "tcp", h.ln.Addr().String())
		h.conn = conn
		h.attempt <- attempt{h.begun, time.Since(h.begun), err}
		if h.at.connected && err == nil {
			err := waitLoop(conn.(*net.TCPConn))
			h.ends <- ended{at: time.Now(), how: errno(err), side: "client"}
		}
	}()
}

// answer echoes what arrives.
func (h *heldConn) answer() {
	for {
		conn, err := h.ln.Accept()
		if err != nil {
			return
		}
		go func() {
			err := echoLoop(conn.(*net.TCPConn))
			_ = conn.Close()
			if h.at.connected {
				h.ends <- ended{at: time.Now(), how: errno(err), side: "server"}
			}
		}()
	}
}

// states returns the states of the connections of the gateway that is about to be hit, by server port.
func (f *faultWorld) states(t *testing.T) map[uint16]string {
	t.Helper()
	list, err := f.asked.Conns(t.Context(), report.ConnQuery{})
	states := map[uint16]string{}
	if err != nil { // the gateway is busy
		return states
	}
	for _, info := range list.Conns {
		if info.Side == report.SideServer {
			states[info.Local.Port()] = info.State
		} else {
			states[info.Remote.Port()] = info.State
		}
	}
	return states
}

// awaitHeld waits until all are held at their steps, and checks that those that can be are connected.
func (f *faultWorld) awaitHeld(t *testing.T, held []*heldConn) {
	t.Helper()
	var now []string
	require.Eventually(t, func() bool {
		now = now[:0]
		states := f.states(t)
		for _, h := range held {
			if states[h.at.port] != h.at.state {
				now = append(now, fmt.Sprintf("%s is %q", h.at.step, states[h.at.port]))
			}
		}
		return len(now) == 0
	}, 30*time.Second, 5*time.Millisecond, "held: %v", &now)
	for _, h := range held {
		if h.at.connected {
			f.established(t, h)
		}
	}
}

// dropAccept makes the network lose the SYN-ACK of a connection: the client's host has offered it, the server's
// accepted it.
func (f *faultWorld) dropAccept(t *testing.T, h *heldConn) {
	t.Helper()
	box := f.box()
	box.DropAccepts, box.Port = true, h.at.port
	before, err := f.net.BoxStats()
	require.NoError(t, err)
	require.NoError(t, f.h2.SetBox(box))
	h.dial(f.h1)
	require.Eventually(t, func() bool {
		now, err := f.net.BoxStats()
		return err == nil && now.DroppedAccepts > before.DroppedAccepts
	}, 30*time.Second, time.Millisecond)
}

// established waits for a connect() that a gateway answers.
func (f *faultWorld) established(t *testing.T, h *heldConn) {
	t.Helper()
	select {
	case a := <-h.attempt:
		require.NoError(t, a.err, "held at %s", h.at.step)
	case <-time.After(30 * time.Second):
		require.FailNow(t, "not connected", "held at %s", h.at.step)
	}
}

// handedOver checks a connection that the server's program may have accepted: the application gets it, and it ends
// with the gateway, already in connect() if the application looks late.
func (f *faultWorld) handedOver(t *testing.T, h *heldConn) {
	t.Helper()
	select {
	case a := <-h.attempt:
		err := a.err
		if err == nil {
			_ = h.conn.SetDeadline(time.Now().Add(socketPatience))
			err = ask(h.conn, 200_000)
		}
		require.Contains(t, []string{"ECONNRESET", "EPIPE"}, errno(err), "held at %s: %v", h.at.step, err)
		t.Logf("%s: held at %q: %v, %v after the fault", f.c, h.at.step, err, a.begun.Add(a.took).Sub(f.hit))
	case <-time.After(socketPatience):
		require.FailNow(t, "not connected", "held at %s", h.at.step)
	}
}

// connected checks that the connections that were being made get made, by the second retransmission of their SYN
// after the fault at the latest, and work.
func (f *faultWorld) connected(t *testing.T, held []*heldConn) {
	t.Helper()
	for _, h := range held {
		switch {
		case h.at.connected:
			continue
		case h.at.spoken && f.c.name == "clean_stop":
			f.handedOver(t, h)
			continue
		case h.at.spoken && f.c.resets == 0: // the gateway may go on
			require.Empty(t, h.attempt, "held at %s", h.at.step)
			continue
		}
		noticed := f.hit.Add(max(stale, f.c.resets))
		limit := retransmission(h.begun, retransmission(h.begun, noticed)).Sub(h.begun) + slack
		select {
		case a := <-h.attempt:
			require.NoError(t, a.err, "held at %s", h.at.step)
			require.Less(t, a.took, limit, "held at %s", h.at.step)
			t.Logf("%s: held at %q: connected %v after its SYN, %v after the fault", f.c, h.at.step, a.took, a.begun.Add(a.took).Sub(f.hit))
		case <-time.After(time.Until(h.begun.Add(limit))):
			require.FailNow(t, "not connected", "held at %s", h.at.step)
		}
		f.talk(t, h)
	}
}

// retransmission returns when a SYN that was first sent at first is next retransmitted after a time.
func retransmission(first, after time.Time) time.Time {
	at := first
	for wait := time.Second; !at.After(after); wait *= 2 {
		at = at.Add(wait)
	}
	return at
}

// talk moves bytes both ways over a native connection.
func (f *faultWorld) talk(t *testing.T, h *heldConn) {
	t.Helper()
	const n = 200_000
	_ = h.conn.SetDeadline(time.Now().Add(socketPatience))
	require.NoError(t, ask(h.conn, n), "held at %s", h.at.step)
	f.tally.add(1, 2*n, 0)
}

// carry opens carried connections: idle, busy and half-closed ones.
func (w *world) carry(t *testing.T) (list []*watched) {
	t.Helper()
	for _, name := range []string{"idle", "busy", "closing", "idle6", "busy6"} {
		to := w.at(w.h2, strings.HasSuffix(name, "6"), ownPort)
		ln, err := w.h2.Listen("tcp", to.String())
		require.NoError(t, err)
		p := w.carriedPair(t, ln, to)
		_ = ln.Close()
		_, _ = p.c.SetDeadline(time.Time{}), p.s.SetDeadline(time.Time{})
		c := &watched{name: name}
		t.Cleanup(c.close)
		list = append(list, c)
		switch strings.TrimSuffix(name, "6") {
		case "idle":
			c.watch("client", p.c, waitLoop)
			c.watch("server", p.s, waitLoop)
		case "busy":
			c.watch("client", p.c, c.askOn)
			c.watch("server", p.s, echoLoop)
		case "closing":
			require.NoError(t, p.c.CloseWrite())
			c.watch("client", p.c, c.readOn)
			c.watch("server", p.s, writeOn)
		}
	}
	return list
}

// readOn reads the other direction of a connection whose own direction has ended.
func (c *watched) readOn(conn *net.TCPConn) error {
	b, want, at := make([]byte, 4096), make([]byte, 4096), 0
	for {
		n, err := conn.Read(b)
		if err != nil {
			return err
		}
		if pattern(want[:n], at); string(b[:n]) != string(want[:n]) {
			return errWrongBytes
		}
		at += n
		c.bytes.Add(int64(n))
	}
}

// writeOn writes a little from time to time.
func writeOn(conn *net.TCPConn) error {
	b := make([]byte, 100)
	for at := 0; ; at += len(b) {
		pattern(b, at)
		if _, err := conn.Write(b); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}
