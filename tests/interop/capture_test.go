package interop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// capture records the RoCE traffic on the host's tap during a test. At the
// test's end every ICRC in it must verify, with the identification that the
// packet really had, and tshark must understand every packet.
func (l *lab) capture(t *testing.T) {
	testnet.Require(t, "tcpdump", "tshark")
	file := filepath.Join(t.TempDir(), "tap.pcap")
	dump, err := l.host.Start("tcpdump", "-i", testnet.TapDevice, "-n", "-U", "-B", "65536", "-Z", "root", "-w", file,
		"udp", "port", fmt.Sprint(verbs.RoCEUDPPort), "or", "udp", "port", fmt.Sprint(endPort))
	require.NoError(t, err)
	require.NoError(t, dump.WaitOutput(patience(t, 10*time.Second), "listening on"))
	t.Cleanup(func() {
		l.awaitEnd(t, file)
		require.NoError(t, dump.Signal(syscall.SIGINT))
		require.NoError(t, dump.Wait(), dump.Output())
		defer func() {
			if t.Failed() {
				keep := filepath.Join(os.TempDir(), strings.NewReplacer("/", "-", " ", "-").Replace(t.Name())+".pcap")
				b, err := os.ReadFile(file)
				t.Logf("the traffic is in %s: %v; tcpdump: %s", keep, errors.Join(err, os.WriteFile(keep, b, 0o644)), dump.Output())
			}
		}()
		require.Contains(t, dump.Output(), "\n0 packets dropped by kernel")
		checkICRCs(t, l, file)
		checkDecoded(t, l, file)
	})
}

// endPort is the port of the packet that ends a recording (discard, RFC 863).
const endPort = 9

// awaitEnd sends a packet and waits until it is in the file, and with it all packets before it: when told to end,
// tcpdump drops what it has not yet written.
func (l *lab) awaitEnd(t *testing.T, file string) {
	conn, err := l.host.Dial(patienceAfter(t, 5*time.Second), "udp", netip.AddrPortFrom(l.guest.Addr4, endPort).String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	end := []byte("end of " + t.Name())
	_, err = conn.Write(end)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		b, err := tail(file, 4096)
		return err == nil && bytes.Contains(b, end)
	}, time.Minute, 20*time.Millisecond)
}

// tail reads the end of a file, at most n bytes.
func tail(file string, n int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-n), n))
}

// checkDecoded requires tshark to decode every packet. The dissector for RPC over RDMA, which is off, takes any
// payload for its own and finds it malformed.
func checkDecoded(t *testing.T, l *lab, file string) {
	ctx := patienceAfter(t, 2*time.Minute)
	out, err := l.host.Run(ctx, "tshark", "-n", "-r", file, "--disable-protocol", "rpcordma", "-Y",
		fmt.Sprintf("udp.port == %d && (_ws.malformed || !infiniband)", verbs.RoCEUDPPort))
	require.NoError(t, err)
	require.Empty(t, out, "packets that tshark does not understand")
}

// checkICRCs recomputes the ICRC of every packet. The capture must have packets of both sides, since an empty one
// proves nothing.
func checkICRCs(t *testing.T, l *lab, file string) {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	sent := map[netip.Addr]int{}
	bad := 0
	n := 0
	require.NoError(t, eachFrame(f, func(frame []byte) error {
		n++
		p, err := parseRoCE(frame)
		if err != nil {
			return fmt.Errorf("packet %d: %w", n, err)
		}
		if p.flow.DstPort == endPort {
			return nil
		}
		sent[p.flow.Src]++
		if got, want := p.icrcs(); got != want {
			bad++
			if bad < 10 {
				t.Errorf("packet %d, %v to %v, opcode %v, id %#x: ICRC %08x, not %08x", n, p.flow.Src, p.flow.Dst,
					wire.Opcode(p.payload[0]), p.id, got, want)
			}
		}
		return nil
	}))
	require.Zero(t, bad)
	require.NotZero(t, sent[l.host.Addr4]+sent[l.host.Addr6], "packets of ours")
	require.NotZero(t, sent[l.guest.Addr4]+sent[l.guest.Addr6], "packets of the guest")
}

// roce is a captured RoCEv2 packet.
type roce struct {
	flow    wire.Flow
	id      uint16
	payload []byte // of UDP
}

// icrcs returns the packet's ICRC and what it should be.
func (p *roce) icrcs() (got, want uint32) {
	c := wire.NewICRC(p.flow)
	body, trailer := p.payload[:len(p.payload)-wire.ICRCLen], p.payload[len(p.payload)-wire.ICRCLen:]
	return binary.LittleEndian.Uint32(trailer), wire.Finish(wire.Update(c.Begin(p.id, len(p.payload), body[:12]), body[12:]))
}

var errNotRoCE = errors.New("no RoCEv2 packet")

// parseRoCE parses an Ethernet frame.
func parseRoCE(b []byte) (p roce, err error) {
	const ethernet, udp = 14, 8
	if len(b) < ethernet+20+udp {
		return p, errNotRoCE
	}
	be := binary.BigEndian
	ip := b[ethernet:]
	switch be.Uint16(b[12:]) {
	case 0x0800:
		if ip[0] != 0x45 || ip[9] != 17 {
			return p, fmt.Errorf("ip header %x: %w", ip[:20], errNotRoCE)
		}
		p.id = be.Uint16(ip[4:])
		p.flow.Src, p.flow.Dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		p.payload = ip[20:]
	case 0x86dd:
		if len(ip) < 40+udp || ip[6] != 17 {
			return p, errNotRoCE
		}
		p.flow.Src, p.flow.Dst = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
		p.payload = ip[40:]
	default:
		return p, errNotRoCE
	}
	p.flow.SrcPort, p.flow.DstPort = be.Uint16(p.payload), be.Uint16(p.payload[2:])
	n := int(be.Uint16(p.payload[4:]))
	if n < udp+wire.MinLen || n > len(p.payload) {
		if p.flow.DstPort == endPort {
			return p, nil
		}
		return p, fmt.Errorf("udp length %d of %d: %w", n, len(p.payload), errNotRoCE)
	}
	p.payload = p.payload[udp:n]
	return p, nil
}

// eachFrame calls f for the packets of a file that tcpdump wrote on this
// machine (pcap-savefile(5)).
func eachFrame(r io.Reader, f func([]byte) error) error {
	var head [24]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	ne := binary.NativeEndian
	if magic, link := ne.Uint32(head[:]), ne.Uint32(head[20:]); magic != 0xa1b2c3d4 || link != 1 {
		return fmt.Errorf("pcap file with magic %#x, link type %d", magic, link)
	}
	var record [16]byte
	for {
		if _, err := io.ReadFull(r, record[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		captured, length := ne.Uint32(record[8:]), ne.Uint32(record[12:])
		if captured != length || length > 1<<18 {
			return fmt.Errorf("packet of %d bytes, %d captured", length, captured)
		}
		frame := make([]byte, captured)
		if _, err := io.ReadFull(r, frame); err != nil {
			return err
		}
		if err := f(frame); err != nil {
			return err
		}
	}
}
