package e2e

import (
	"bytes"
	encoding "encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/rogue"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// The reasons for the end of a connection that broke the rules.
var (
	violated = []string{"protocol_error"}
	broken   = []string{"protocol_error", "peer_dead", "carrier_unreachable", "device_failed"} // a NAK ends the queue pair; the side that saw it first gives the reason
	either   = append([]string{"wire_reset", "lost_bytes", report.DemotedByPeer}, broken...)
)

// move is what a rogue does after a correct handshake.
type move struct {
	name    string
	by      []negotiate.CarrierKind
	do      func(t *testing.T, a *attack)
	reasons []string // nil: the rogue ends the connection itself
}

var (
	relayOnly = []negotiate.CarrierKind{negotiate.CarrierRelay}
	rdmaOnly  = []negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft}
	softOnly  = []negotiate.CarrierKind{negotiate.CarrierSoft} // WRITE is the only operation of a descriptor of shm
	anyWay    = []negotiate.CarrierKind{negotiate.CarrierRelay, negotiate.CarrierSHM, negotiate.CarrierSoft}
)

func records(b ...[]byte) func(*testing.T, *attack) {
	return func(t *testing.T, a *attack) {
		for _, r := range b {
			_, _ = a.w.Write(r) // the gateway may have ended the connection before the last one
		}
	}
}

// header returns a record header with arbitrary contents.
func header(kind byte, flags byte, n uint32) []byte {
	return encoding.BigEndian.AppendUint32([]byte{kind, flags, 0, 0}, n)
}

// say sends immediates to the peer's ring or target list.
func say(n int, imms ...rsocket.Imm) func(*testing.T, *attack) {
	return func(t *testing.T, a *attack) {
		for _, imm := range imms {
			to := a.c.PeerConn.DataBuf
			if imm.Op() == rsocket.OpSGL {
				to = a.c.PeerConn.TargetSGL
			}
			if err := a.c.Say(imm, to, n); err != nil {
				require.True(t, errors.Is(err, verbs.ErrQueueFull) || errors.Is(err, verbs.ErrState), "%v", err)
			}
		}
	}
}

func repeat(imm rsocket.Imm, n int) (list []rsocket.Imm) {
	for range n {
		list = append(list, imm)
	}
	return list
}

var moves = []move{
	{"data_beyond_the_window", relayOnly, func(t *testing.T, a *attack) {
		chunk := make([]byte, 64<<10)
		for off := uint64(0); off <= 64<<20; off += uint64(len(chunk)) {
			if _, err := a.w.Write(negotiate.AppendData(nil, off, chunk)); err != nil {
				return
			}
		}
	}, violated},
	{"data_with_a_hole", relayOnly, records(negotiate.AppendData(nil, 5, []byte("x"))), violated},
	{"data_twice", relayOnly, records(negotiate.AppendData(nil, 0, []byte("ab")), negotiate.AppendData(nil, 0, []byte("ab"))), violated},
	{"data_behind_the_end", relayOnly, records(negotiate.AppendEnd(nil, 1), negotiate.AppendData(nil, 0, []byte("ab"))), violated},
	{"end_below_what_was_sent", relayOnly, records(negotiate.AppendData(nil, 0, make([]byte, 100)), negotiate.AppendEnd(nil, 50)), violated},
	{"two_ends", relayOnly, records(negotiate.AppendEnd(nil, 9), negotiate.AppendEnd(nil, 10)), violated},
	{"have_beyond_what_was_sent", relayOnly, records(negotiate.AppendHave(nil, 1<<40, 1<<20)), violated},
	{"window_without_end", relayOnly, records(negotiate.AppendData(nil, 0, make([]byte, 1000)), negotiate.AppendHave(nil, 0, 1<<63), header(9, 0, 0)), violated},
	{"unknown_record", anyWay, records(header(99, 0, 0)), violated},
	{"record_of_4_GiB", anyWay, records(header(byte(negotiate.RecordData), 0, 0xffffffff), make([]byte, 100)), violated},
	{"record_flags", anyWay, records(header(byte(negotiate.RecordKeepalive), 1, 0)), violated},
	{"record_of_another_length", anyWay, records(header(byte(negotiate.RecordEnd), 0, 9), make([]byte, 9)), violated},
	{"garbage", anyWay, records(bytes.Repeat([]byte{0xa5}, 64<<10)), violated},
	{"another_handshake", anyWay, records(negotiate.AppendConfirm(nil, negotiate.Confirm{Version: 1, Carrier: negotiate.CarrierSHM})), violated},
	{"demotes", anyWay, records(bytes.Repeat(negotiate.AppendDemote(nil), 10000), bytes.Repeat(negotiate.AppendDemoteDone(nil), 10000)), either},
	{"demote_done", anyWay, records(negotiate.AppendDemoteDone(nil)), either},
	{"abort_for_no_reason", anyWay, records(negotiate.AppendAbort(nil, negotiate.Reason(200))), nil},
	{"keepalives", anyWay, func(t *testing.T, a *attack) {
		for range 50 {
			records(bytes.Repeat(negotiate.AppendKeepalive(nil), 4000))(t, a)
		}
		require.NoError(t, a.w.Close())
	}, nil},
	{"window_of_bytes_at_a_time", relayOnly, func(t *testing.T, a *attack) {
		for i := range uint64(5000) {
			records(negotiate.AppendHave(nil, 0, i))(t, a)
		}
		require.NoError(t, a.w.Close())
	}, nil},

	{"unknown_immediate", rdmaOnly, say(0, rsocket.MakeImm(5, 0)), violated},
	{"data_of_no_bytes", rdmaOnly, say(0, rsocket.MakeImm(rsocket.OpData, 0)), violated},
	{"data_that_was_not_written", rdmaOnly, say(10, rsocket.MakeImm(rsocket.OpData, 11)), violated},
	{"more_data_than_credit", rdmaOnly, func(t *testing.T, a *attack) { // ended here, unless the gateway is fast enough
		say(1, repeat(rsocket.MakeImm(rsocket.OpData, 1), 500)...)(t, a)
		require.NoError(t, a.w.Close())
	}, nil},
	{"data_behind_shutdown", rdmaOnly, say(1, rsocket.MakeImm(rsocket.OpCtrl, rsocket.CtrlShutdown), rsocket.MakeImm(rsocket.OpData, 1)), broken},
	{"unknown_control", rdmaOnly, say(0, rsocket.MakeImm(rsocket.OpCtrl, 77)), violated},
	{"half_a_grant", rdmaOnly, say(9, rsocket.MakeImm(rsocket.OpSGL, 10)), violated},
	{"credits_that_shrink", rdmaOnly, say(0, rsocket.MakeImm(rsocket.OpSGL, 0xfff0), rsocket.MakeImm(rsocket.OpSGL, 1)), either},
	{"slot_of_an_iomap", rdmaOnly, say(24, rsocket.MakeImm(rsocket.OpIomapSGL, 3)), violated},
	{"probe_of_a_megabyte", rdmaOnly, say(0, rsocket.MakeImm(rsocket.OpProbe, 1<<20)), violated},
	{"grant_to_nowhere", rdmaOnly, func(t *testing.T, a *attack) {
		grant := encoding.NativeEndian.AppendUint64(nil, 0xdead_beef_0000)
		grant = encoding.NativeEndian.AppendUint32(grant, 0x1234)
		a.c.Fill(encoding.NativeEndian.AppendUint32(grant, 0xffff_ffff))
		say(16, repeat(rsocket.MakeImm(rsocket.OpSGL, 100), 20)...)(t, a)
	}, broken},
	{"memory_of_nobody", rdmaOnly, func(t *testing.T, a *attack) {
		require.NoError(t, a.c.Say(rsocket.MakeImm(rsocket.OpData, 8), rsocket.SGE{Addr: 0x1000, Key: 0xfff123}, 8))
	}, broken},
	{"memory_behind_the_ring", rdmaOnly, func(t *testing.T, a *attack) {
		to := a.c.PeerConn.DataBuf
		to.Addr += 1 << 36
		require.NoError(t, a.c.Say(rsocket.MakeImm(rsocket.OpData, 8), to, 8))
	}, broken},
	{"atomics_and_reads", softOnly, func(t *testing.T, a *attack) {
		to := a.c.PeerConn.DataBuf
		_ = a.c.Do(func(qp verbs.QP) error {
			for _, op := range []verbs.WROpcode{verbs.WRRDMARead, verbs.WRAtomicFetchAndAdd, verbs.WRSendWithInv, verbs.WRSend} {
				_ = qp.PostSend(&verbs.SendWR{Opcode: op, RemoteAddr: to.Addr, RKey: to.Key, InvRKey: to.Key, Flags: verbs.SendSignaled})
			}
			return nil
		})
	}, broken},
}

// TestFaultHostile has a peer gateway that has completed the handshake, or refuses to, break every rule there is. One
// violation ends that connection, with a reason; on shm it may end all of that peer's. Everything else goes on with
// its bytes, and no other application notices.
func TestFaultHostile(t *testing.T) {
	if !matrix.Whole() { // whole, it takes the machine for minutes, and others would not keep their deadlines
		t.Parallel()
	}
	n := newTally(t)
	s := newSite(t, n)
	t.Run("moves", func(t *testing.T) { s.in(t).moves() })
	t.Run("memory", func(t *testing.T) { s.in(t).memory() })
	t.Run("storm", func(t *testing.T) { s.in(t).storm() })
	t.Run("process", func(t *testing.T) { s.in(t).process() })
	t.Run("bells", func(t *testing.T) { s.in(t).bells() })
	t.Run("handshakes", func(t *testing.T) { s.in(t).handshakes() })
	s.survived()
}

// moves does what no honest gateway does, over every carrier.
func (s *site) moves() {
	type cell struct {
		move
		by negotiate.CarrierKind
	}
	var cells []cell
	for _, m := range moves {
		for _, by := range m.by {
			cells = append(cells, cell{m, by})
		}
	}
	for _, c := range matrix.Cells(s.t, cells, 20) {
		s.t.Run(c.name+"/"+strings.TrimPrefix(c.by.String(), "rdma-"), func(t *testing.T) {
			a := s.in(t).begin(c.by, echoPort, nil)
			s.n.faults(1)
			c.do(t, a)
			if len(c.reasons) > 1 {
				oneOf(t, a.brokeDown(), c.reasons...)
				return
			}
			info := a.ended()
			if c.reasons != nil {
				require.Equal(t, report.EndAborted, info.End, "%+v", info)
				oneOf(t, info.Reason, c.reasons...)
			}
			require.False(t, errors.Is(a.w.AwaitEnd(hostileWait), os.ErrDeadlineExceeded), "the wire leg ends too")
		})
	}
}

// memory names memory that is another peer's, that was the rogue's own until the connection ended, or that never
// existed. On soft a peer is an address with a protection domain; on shm it has a mapping of its own.
func (s *site) memory() {
	second := *s // another peer, at another address
	second.from = netip.MustParseAddr("10.77.0.203")
	require.NoError(s.t, s.h3.AddAddress(netip.PrefixFrom(second.from, 16)))
	second.dev = map[negotiate.CarrierKind]*rogue.Device{negotiate.CarrierSoft: second.soft()}
	reach := func(t *testing.T, a *attack, to rsocket.SGE) {
		s.n.faults(1)
		require.NoError(t, a.c.Say(rsocket.MakeImm(rsocket.OpData, 8), to, 8))
		oneOf(t, a.brokeDown(), broken...)
	}
	s.t.Run("of_another_peer", func(t *testing.T) {
		one, two := s.in(t), second.in(t)
		bystander := two.begin(negotiate.CarrierSoft, holdPort, nil)
		reach(t, one.begin(negotiate.CarrierSoft, echoPort, nil), bystander.c.PeerConn.DataBuf)
		reach(t, one.begin(negotiate.CarrierSoft, echoPort, nil), bystander.c.PeerConn.TargetSGL)
		a := one.begin(negotiate.CarrierSoft, echoPort, nil)
		to := a.c.PeerConn.DataBuf
		to.Key = bystander.c.PeerConn.DataBuf.Key
		reach(t, a, to)
		require.Len(t, two.rogueFlows(), 1, "the bystander goes on")
		require.NoError(t, bystander.w.Close())
		bystander.gone()
	})
	s.t.Run("of_a_connection_that_is_over", func(t *testing.T) {
		at := s.in(t)
		over := at.begin(negotiate.CarrierSoft, echoPort, nil)
		require.NoError(t, over.w.Close())
		over.gone()
		reach(t, at.begin(negotiate.CarrierSoft, echoPort, nil), over.c.PeerConn.DataBuf)
	})
	for _, by := range rdmaOnly {
		s.t.Run("ring_that_is_none/"+by.String(), func(t *testing.T) {
			a := s.in(t).begin(by, firstPort, func(o *negotiate.CarrierOffer) { // the server speaks first
				conn, err := rsocket.ParseConnData(o.Conn[:])
				require.NoError(t, err)
				conn.DataBuf.Addr += 1 << 40
				conn.Append(o.Conn[:0])
			})
			s.n.faults(1)
			oneOf(t, a.brokeDown(), broken...)
		})
	}
}

// rogueFlows returns the flows of the rogue that h2 carries.
func (s *site) rogueFlows() (list []report.ConnInfo) {
	for _, c := range s.g2.conns() {
		if c.Remote.Addr() == s.from {
			list = append(list, c)
		}
	}
	return list
}

// storm sends arbitrary packets: from a peer to its own queue pairs, from a host without queue pairs to those of
// others, and to every port of the gateway. What does not come from the peer of a queue pair must be dropped and
// counted.
func (s *site) storm() {
	t, rng := s.t, matrix.Rand(s.t)
	a := s.begin(negotiate.CarrierSoft, holdPort, nil)
	storms := map[string]struct {
		port uint16
		pick func() uint32
	}{
		"own queue pair":  {rdmaPort, func() uint32 { return a.c.Peer.RoCE.QPN }},
		"its neighbours":  {rdmaPort, func() uint32 { return a.c.Peer.RoCE.QPN - 4096 + rng.Uint32N(8192) }},
		"any queue pair":  {rdmaPort, rng.Uint32},
		"well-known ones": {rdmaPort, func() uint32 { return rng.Uint32N(2) }},
		"datagram port":   {4790, rng.Uint32},
	}
	packets := 3000
	if matrix.Whole() {
		packets = 60000
	}
	for name, storm := range storms {
		p, err := rogue.NewPackets(s.h3.Do, s.h3.Addr4, netip.AddrPortFrom(s.h2.Addr4, storm.port))
		require.NoError(t, err)
		require.NoError(t, p.Storm(rand.New(rand.NewPCG(rng.Uint64(), 1)), packets, storm.pick), name)
		require.NoError(t, p.Close())
		s.n.faults(int64(packets))
	}
	var drops map[string]uint64
	for _, d := range s.devices() {
		if d.Kind == report.DeviceSoft {
			drops = d.Counters
		}
	}
	t.Logf("soft device of the server: %v", drops)
	_ = a.w.Close()
	a.gone()
}

func (s *site) devices() []report.DeviceInfo {
	s.t.Helper()
	list, err := s.admin.Devices(s.t.Context())
	require.NoError(s.t, err)
	return list.Devices
}

// refused requires that a flooding rogue was left native or reset; it is owed nothing else.
func refused(t *testing.T, err error) {
	t.Helper()
	require.True(t, errors.Is(err, rogue.ErrNative) || errors.Is(err, syscall.ECONNRESET), "%v", err)
}

// handshakes begins handshakes and leaves them open, with and without a PROPOSAL, and answers that it never confirms,
// as many as a peer may have and more. No other connection may wait for them, and they must end: by a deadline, or
// with the rogue.
func (s *site) handshakes() {
	t := s.t
	open, proposed := 150, 60
	if matrix.Whole() {
		open, proposed = 1500, 300
	}
	begun := time.Now()
	for range open {
		if _, err := s.tryDial(echoPort); err != nil {
			refused(t, err)
		}
		s.n.faults(1)
	}
	dev := s.dev[negotiate.CarrierSoft]
	var accepted []*rogue.Wire
	for range proposed {
		c, err := dev.NewCarrier()
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		w, err := s.tryDial(echoPort)
		if err != nil {
			refused(t, err)
			continue
		}
		_, err = w.Propose(w.Proposal(s.self, c.Offer))
		if err == nil {
			accepted = append(accepted, w)
		} else {
			var declined *rogue.DeclineError
			require.ErrorAs(t, err, &declined)
		}
		s.n.faults(1)
	}
	t.Logf("%d handshakes left open and %d accepted and not confirmed in %v", open, len(accepted), time.Since(begun))
	require.NotEmpty(t, accepted)
	s.holds(len(accepted)) // those that were never proposed end by their deadline
	for _, w := range accepted {
		require.NoError(t, w.Close()) // their deadline is minutes away
	}
	s.holds(0)
}

// holds waits until the gateway has at most most connections of the rogue that are only begun.
func (s *site) holds(most int) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		for _, p := range s.peers() {
			if p.Address == s.from && p.Use.Begun > most {
				return false
			}
		}
		return true
	}, 2*hostileWait, 100*time.Millisecond, "the peer holds more than %d", most)
}

func (s *site) peers() []report.PeerInfo {
	s.t.Helper()
	list, err := s.admin.Peers(s.t.Context())
	require.NoError(s.t, err)
	return list.Peers
}
