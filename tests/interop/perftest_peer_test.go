package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// perftest is our end of the exchange of the perftest programs over TCP, protocol version 6.06 (perftest 4.5, Debian
// 12). It runs in lockstep: the server answers every message of the client with one of the same kind.
type perftest struct {
	e      *endpoint
	conn   net.Conn
	server bool

	qp   verbs.QP
	psn  uint32
	mr   verbs.MR
	peer perftestPeer
}

const perftestPort = 18515

// perftestPeer is what a side reports of itself.
type perftestPeer struct {
	peer

	reads uint32 // READs and atomics that it has under way at most, and accepts
	rkey  uint32
	va    uint64
}

// perftestKeys has LID, READs, queue pair, PSN, key and address in hexadecimal; 16 bytes of GID, an SRQ number and a
// NUL follow.
const perftestKeys = "%04x:%04x:%06x:%06x:%08x:%016x:"

// perftestPreamble begins the exchange: version, cycle of buffers, cache line, MTU.
var perftestPreamble = [][]byte{
	[]byte("6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
	{0, 0, 0x10, 0},
	{0, 0, 0, 0x40},
	{'0' + byte(verbs.MTU1024), 0},
}

// step sends our part and returns the peer's, which has the same length.
func (p *perftest) step(ours []byte) []byte {
	t := p.e.t
	t.Helper()
	theirs := make([]byte, len(ours))
	write := func() {
		_, err := p.conn.Write(ours)
		require.NoError(t, err)
	}
	if !p.server {
		write()
	}
	require.NoError(t, p.conn.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err := io.ReadFull(p.conn, theirs)
	require.NoError(t, err)
	if p.server {
		write()
	}
	return theirs
}

func (p *perftest) keys() []byte {
	gid := verbs.GIDOf(p.e.addr)
	b := fmt.Appendf(nil, perftestKeys, 0, perftestReads, p.qp.Num(), p.psn, p.mr.RKey(), p.mr.Addr())
	for _, x := range gid {
		b = fmt.Appendf(b, "%02x:", x)
	}
	return append(fmt.Appendf(b, "%08x:", 0), 0)
}

// perftestReads is how many READs and atomics we have under way at most, and accept.
const perftestReads = 16

// shake signals that we are here; the programs do that by sending their keys.
func (p *perftest) shake() { p.step(p.keys()) }

// open exchanges everything and connects the queue pair. One shake must follow: before messages are sent, but after a
// client's READs, WRITEs and atomics.
func (p *perftest) open(mr verbs.MR) {
	t := p.e.t
	p.mr, p.psn, p.qp = mr, rand.Uint32N(1<<24), p.e.qp(verbs.QPTRC)
	p.e.do(func() error { return verbs.Init(p.qp, rights) })
	for _, part := range perftestPreamble {
		require.Equal(t, part, p.step(part))
	}
	p.shake()
	theirs := p.step(p.keys())
	require.NoError(t, p.peer.read(theirs), "%q", theirs)
	p.e.do(func() error {
		attr := p.e.attrTo(p.peer.peer, p.psn)
		attr.MaxRDAtomic, attr.MaxDestRDAtomic = perftestReads, perftestReads
		return verbs.Connect(p.qp, attr)
	})
	p.shake()
}

// read reads the keys of the other side.
func (p *perftestPeer) read(b []byte) error {
	text := string(bytes.TrimRight(b, "\x00"))
	var lid uint32
	if _, err := fmt.Sscanf(text, "%x:%x:%x:%x:%x:%x:", &lid, &p.reads, &p.qpn, &p.psn, &p.rkey, &p.va); err != nil {
		return err
	}
	fields := strings.Split(text, ":")
	if len(fields) < 6+16 {
		return fmt.Errorf("%d fields", len(fields))
	}
	for i, f := range fields[6:22] {
		if _, err := fmt.Sscanf(f, "%x", &p.gid[i]); err != nil {
			return err
		}
	}
	return nil
}

// report exchanges the results after the client's operations: five numbers, of which only the client's count.
func (p *perftest) report(size, count int) {
	p.shake()
	for _, v := range []uint64{uint64(size), uint64(count), 0, 0, 0} {
		p.step(binary.BigEndian.AppendUint64(nil, v))
	}
}

// part ends the exchange. The programs close once they have sent "done", so the peer's need not arrive.
func (p *perftest) part() {
	p.shake()
	_, err := p.conn.Write([]byte("done\x00"))
	require.NoError(p.e.t, err)
}
