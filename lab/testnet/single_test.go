package testnet

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

// TestNativeThroughBoxes: what the boxes do that look at single packets, ordinary
// TCP survives, on both families, and the boxes do it.
func TestNativeThroughBoxes(t *testing.T) {
	n, h1, h2 := start(t, Config{Hosts: []string{"h1", "h2"}, NoOffload: true})
	startApp(t, h2, "serve", "transfer=[::]:7001")
	for _, c := range []struct {
		name string
		box  Box
		did  func(BoxStats) uint64
	}{
		{"corrupt payload", Box{Corrupt: Corruption{Chance: 10}}, func(s BoxStats) uint64 { return s.Corrupted }},
		{"corrupt headers", Box{Corrupt: Corruption{Chance: 10, Headers: true}}, func(s BoxStats) uint64 { return s.Corrupted }},
		{"sequences", Box{Sequences: true}, func(s BoxStats) uint64 { return s.Shifted }},
		{"sequences and loss", Box{Sequences: true, Loss: 2}, func(s BoxStats) uint64 { return s.Shifted }},
		{"no timestamps", Box{Options: Options{StripSYN: []byte{packet.KindTimestamps}}}, func(s BoxStats) uint64 { return s.Options }},
		{"no timestamps in the answer", Box{Options: Options{StripSYNACK: []byte{packet.KindTimestamps}}}, func(s BoxStats) uint64 { return s.Options }},
		{"no scale", Box{Options: Options{StripSYN: []byte{packet.KindWindowScale}, StripSYNACK: []byte{packet.KindWindowScale}}}, func(s BoxStats) uint64 { return s.Options }},
		{"no SACK", Box{Loss: 5, Options: Options{StripSYN: []byte{packet.KindSACKPermitted}, StripRest: []byte{packet.KindSACK}}}, func(s BoxStats) uint64 { return s.Options }},
		{"turned", Box{Options: Options{Turn: true}}, func(s BoxStats) uint64 { return s.Options }},
		{"split", Box{Split: true}, func(s BoxStats) uint64 { return s.Cut }},
		{"join", Box{Split: true, Join: true}, func(s BoxStats) uint64 { return s.Joined }},
		{"proxy", Box{Proxy: Proxy{On: true}}, func(s BoxStats) uint64 { return s.Proxied }},
		{"firewall", Box{Firewall: Firewall{Idle: time.Minute}}, func(s BoxStats) uint64 { return s.Segments }},
		{"bad", Box{
			Loss: 10, Dup: 10, Delay: 200 * time.Microsecond, Jitter: 300 * time.Microsecond, Reorder: 20, ReorderBy: time.Millisecond,
		}, func(s BoxStats) uint64 { return min(s.Lost, s.Duplicated, s.Reordered, s.Hopped) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := boxStats(t, n)
			require.NoError(t, n.SetBox(c.box))
			for _, to := range []netip.AddrPort{h2.AddrPort4(7001), h2.AddrPort6(7001)} {
				e := runApp(t, h1, "transfer", "-to", to.String(), "-up", "2000000", "-down", "2000000", "-write", "9000")
				require.Equal(t, 1, e.OK, e.Error)
				e = runApp(t, h1, "churn", "-to", to.String(), "-count", "20", "-parallel", "4", "-size", "20000")
				require.Equal(t, 20, e.OK, e.Error)
			}
			require.Greater(t, c.did(boxStats(t, n)), c.did(before))
		})
	}
}

// TestPathMTU: a sender that is told sends less; one that is not finds out in the
// end, if its kernel probes.
func TestPathMTU(t *testing.T) {
	n, h1, h2 := start(t, Config{Hosts: []string{"h1", "h2"}, MTU: 4500, NoOffload: true})
	require.NoError(t, h1.SetSysctl("net.ipv4.tcp_mtu_probing", "1"))
	startApp(t, h2, "serve", "transfer=[::]:7001")
	for _, c := range []struct {
		name string
		to   netip.AddrPort
		mtu  PathMTU
	}{
		{"told, IPv4", h2.AddrPort4(7001), PathMTU{Bytes: 1400}},
		{"told, IPv6", h2.AddrPort6(7001), PathMTU{Bytes: 1400}},
		{"silent, IPv6", h2.AddrPort6(7001), PathMTU{Bytes: 1300, Silent: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := boxStats(t, n).TooBig
			require.NoError(t, h1.SetBox(Box{PathMTU: c.mtu}))
			e := runApp(t, h1, "transfer", "-to", c.to.String(), "-up", "500000")
			require.Equal(t, 1, e.OK, e.Error)
			require.Greater(t, boxStats(t, n).TooBig, before)
		})
	}
}

// TestCorruptionIsOneBit of the part it names, and mended if it says so.
func TestCorruptionIsOneBit(t *testing.T) {
	_, h1, h2 := fakeHosts()
	luck := rand.New(rand.NewPCG(1, 2))
	for _, c := range []Corruption{{Chance: 1000}, {Chance: 1000, Headers: true}, {Chance: 1000, Mend: true}} {
		for range 2000 {
			clean := buildFrame(h1.AddrPort6(1), h2.AddrPort6(2), mac(h1), mac(h2), flagACK, testOption(3), []byte("payload"))
			frame := append([]byte(nil), clean...)
			require.True(t, c.apply(frame, luck))
			v, _ := viewPacket(clean)
			bits := 0
			for i := range frame {
				if d := frame[i] ^ clean[i]; d != 0 && (!c.Mend || i < v.checksum() || i >= v.checksum()+2) {
					require.Equal(t, c.Headers, i < v.payload(), "byte %d", i)
					require.Zero(t, d&(d-1))
					bits++
				}
			}
			require.Equal(t, 1, bits)
			if w, ok := viewFrame(frame); ok && !c.Headers {
				require.Equal(t, c.Mend, w.goodChecksum())
			}
		}
	}
	only := Corruption{Chance: 1000, UDPPort: 4791}
	require.False(t, only.apply(buildFrame(h1.AddrPort4(1), h2.AddrPort4(2), mac(h1), mac(h2), flagACK, nil, []byte("x")), luck))
}

// TestTooBigQuotes the packet, with right checksums.
func TestTooBigQuotes(t *testing.T) {
	_, h1, h2 := fakeHosts()
	for _, frame := range [][]byte{
		buildFrame(h1.AddrPort4(1), h2.AddrPort4(2), mac(h1), mac(h2), flagACK, nil, make([]byte, 2000)),
		buildFrame(h1.AddrPort6(1), h2.AddrPort6(2), mac(h1), mac(h2), flagACK, nil, make([]byte, 2000)),
	} {
		p := PathMTU{Bytes: 1400}
		answer, dropped := p.drops(frame, addr4(254), addr6(254))
		require.True(t, dropped)
		v, ok := viewPacket(answer)
		require.True(t, ok)
		sent, _ := viewPacket(frame)
		require.Equal(t, frame[sent.ip:sent.ip+icmpQuote], answer[v.l4+8:v.last])
		require.Equal(t, []byte(mac(h1)), answer[vnetHeaderLen:vnetHeaderLen+6])
		pseudo := uint16(0)
		if v.v6 {
			require.EqualValues(t, 1400, binary.BigEndian.Uint32(answer[v.l4+4:]))
			pseudo = packet.PseudoSum(answer[v.ip:v.l4], packet.ProtoICMPv6, v.last-v.l4)
		} else {
			require.EqualValues(t, 1400, binary.BigEndian.Uint16(answer[v.l4+6:]))
			require.EqualValues(t, 0xffff, packet.Sum(answer[v.ip:v.l4], 0))
		}
		require.EqualValues(t, 0xffff, packet.Sum(answer[v.l4:v.last], pseudo))
		p.Silent = true
		answer, dropped = p.drops(frame, addr4(254), addr6(254))
		require.True(t, dropped && answer == nil)
		_, dropped = PathMTU{}.drops(frame, addr4(254), addr6(254))
		require.False(t, dropped)
	}
}

// TestSingleTruncated: no box fails at a frame that ends early, and those that keep
// state about connections have met the whole one before.
func TestSingleTruncated(t *testing.T) {
	_, h1, h2 := fakeHosts()
	for seed := range uint64(30) { // each of the settings below with each other
		luck := rand.New(rand.NewPCG(seed, 1))
		s := single{luck: luck, mtu: 1500}
		b := Box{
			Firewall: Firewall{Idle: time.Minute}, Proxy: Proxy{On: seed%3 == 0, Offers: seed%2 == 0}, Sequences: seed%2 == 0,
			Options: Options{StripSYN: []byte{8}, StripSYNACK: []byte{3}, StripRest: []byte{5}, Turn: seed%2 == 1},
			Split:   true, Join: seed%5 == 0, PathMTU: PathMTU{Bytes: 1400}, Corrupt: Corruption{Chance: int(seed % 7)},
		}
		var did BoxStats
		for _, flags := range []byte{flagSYN, flagSYN | flagACK, flagACK, flagRST} {
			for _, frame := range [][]byte{
				buildFrame(h1.AddrPort4(1), h2.AddrPort4(2), mac(h1), mac(h2), flags, testOption(1), nil),
				buildFrame(h1.AddrPort6(1), h2.AddrPort6(2), mac(h1), mac(h2), flags, nil, make([]byte, 3000)),
			} {
				ends := []int{len(frame), len(frame) - 1}
				for n := vnetHeaderLen + 14; n < min(len(frame), 150); n++ {
					ends = append(ends, n)
				}
				for _, n := range ends {
					one := append([]byte(nil), frame[:n]...)
					require.True(t, complete(one))
					for _, out := range append(s.pass(b, one, &did), s.join.flush()...) {
						_, _ = viewPacket(out)
					}
				}
			}
		}
	}
}
