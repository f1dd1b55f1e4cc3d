package datagram

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	ippacket "github.com/smcgw/smcgw/packet"
)

// steered is a packet as A gives it.
func steered(e endPair, payload []byte) []byte {
	b := make([]byte, headroom+len(payload))
	copy(b[headroom:], payload)
	return b[putUDP(b, headroom, len(payload), e):]
}

func TestUDPPacketsThereAndBack(t *testing.T) {
	for _, e := range []endPair{ends4, ends6} {
		for _, n := range []int{0, 1, 2, 1472, 8972, 65507} {
			payload := randomBytes(n)
			b := steered(e, payload)
			p, err := parseUDP(b)
			require.NoError(t, err)
			require.Equal(t, e, p.endPair)
			require.True(t, bytes.Equal(payload, p.payload))
			require.Equal(t, len(b)-n, e.payloadAt())
			checkSum(t, b)
			padded, err := parseUDP(append(b, 0, 0)) // a short Ethernet frame was padded
			require.NoError(t, err)
			require.Equal(t, p, padded)
		}
	}
}

func TestUDPPacketTruncated(t *testing.T) {
	for _, e := range []endPair{ends4, ends6} {
		b := steered(e, []byte("payload"))
		for n := range b {
			_, err := parseUDP(b[:n])
			require.ErrorIs(t, err, errNotCarried, n)
		}
	}
}

// TestPacketsThatAreNotCarried: those that would not arrive as they are.
func TestPacketsThatAreNotCarried(t *testing.T) {
	spoil := func(e endPair, fn func(ip []byte)) []byte {
		b := steered(e, []byte("payload"))
		fn(b[vnetLen:])
		return b
	}
	for name, b := range map[string][]byte{
		"super-packet": append([]byte{0, 5}, steered(ends4, []byte("payload"))[2:]...),
		"version":      spoil(ends4, func(ip []byte) { ip[0] = 0x55 }),
		"options":      spoil(ends4, func(ip []byte) { ip[0] = 0x46 }),
		"first piece":  spoil(ends4, func(ip []byte) { ip[6] = 0x20 }),
		"later piece":  spoil(ends4, func(ip []byte) { ip[7] = 1 }),
		"tcp":          spoil(ends4, func(ip []byte) { ip[9] = 6 }),
		"traceroute":   spoil(ends4, func(ip []byte) { ip[8] = 1 }),
		"udp length":   spoil(ends4, func(ip []byte) { ip[ippacket.IPv4MinLen+5]++ }),
		"udp short":    spoil(ends4, func(ip []byte) { ip[ippacket.IPv4MinLen+5] = 7 }),
		"ip length":    spoil(ends4, func(ip []byte) { ip[3] = 19 }),
		"ip too long":  spoil(ends4, func(ip []byte) { ip[2] = 1 }),
		"next header":  spoil(ends6, func(ip []byte) { ip[6] = 44 }),
		"hop limit":    spoil(ends6, func(ip []byte) { ip[7] = 3 }),
		"ip6 length":   spoil(ends6, func(ip []byte) { binary.BigEndian.PutUint16(ip[4:], 7) }),
		"ip6 too long": spoil(ends6, func(ip []byte) { ip[4] = 1 }),
		"mapped":       spoil(ends6, func(ip []byte) { copy(ip[8:], append(make([]byte, 10), 0xff, 0xff, 1, 2, 3, 4)) }),
	} {
		_, err := parseUDP(b)
		require.ErrorIs(t, err, errNotCarried, name)
	}
}

func FuzzUDPPacket(f *testing.F) {
	f.Add(steered(ends4, []byte("payload")))
	f.Add(steered(ends6, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parseUDP(b)
		if err != nil {
			return
		}
		require.True(t, p.fits(len(p.payload)))
		again, err := parseUDP(steered(p.endPair, p.payload))
		require.NoError(t, err)
		require.Equal(t, p.endPair, again.endPair)
		require.True(t, bytes.Equal(p.payload, again.payload))
	})
}

// TestPacketsDoNotAllocate: neither way.
func TestPacketsDoNotAllocate(t *testing.T) {
	buf := make([]byte, 4096)
	for _, e := range []endPair{ends4, ends6} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			start := putUDP(buf, headroom, 100, e)
			p, err := parseUDP(buf[start : headroom+100])
			if err != nil || len(p.payload) != 100 {
				panic("packet")
			}
			msg := p.append(buf[:0])
			if _, _, err := parseMessage(msg); err != nil {
				panic("headers")
			}
		}))
	}
}
