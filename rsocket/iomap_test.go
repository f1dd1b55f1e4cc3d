package rsocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// The announcement of the protocol reference, in both byte orders.
func TestIOMapVectors(t *testing.T) {
	m := IOMapping{Offset: 0, Region: SGE{Addr: 0x7f0000c00000, Key: 0x1003, Length: 4096}}
	b := iomapBytes(m, false)
	require.Equal(t, unhex(t, "0000000000000000 0000c000007f0000 03100000 00100000"), b[:])
	require.Equal(t, m, readIOMap(b[:], false))
	m.Offset = 0x0102030405060708
	b = iomapBytes(m, true)
	require.Equal(t, unhex(t, "0102030405060708 00007f0000c00000 00001003 00001000"), b[:])
	require.Equal(t, m, readIOMap(b[:], true))
	b = iomapBytes(m, false)
	require.Equal(t, unhex(t, "0807060504030201 0000c000007f0000 03100000 00100000"), b[:])
	for n := range iomapSize { // entries lie in memory of a fixed size: a shorter one cannot be read
		require.Panics(t, func() { readIOMap(b[:n:n], false) })
	}
}

func TestIOMapCovers(t *testing.T) {
	m := IOMapping{Offset: 100, Region: SGE{Length: 10}}
	for offset, want := range map[uint64]int{0: 0, 99: 0, 100: 10, 109: 1, 110: 0, math.MaxUint64: 0} {
		require.Equal(t, want, m.covers(offset), offset)
	}
	require.False(t, m.overflows())
	m.Offset = math.MaxUint64 - 5
	require.True(t, m.overflows())
	require.True(t, (&IOMapping{Region: SGE{Addr: math.MaxUint64, Length: 2}}).overflows())
}

func TestIOMapSlots(t *testing.T) {
	for n, want := range map[int]int{-1: 0, 0: 0, 1: 1, 128: 128, 255: 128, 512: 512, 1000: 768, 1 << 20: 0x7f00} {
		require.Equal(t, want, IOMapSlots(n))
	}
	for name, cfg := range map[string]Config{
		"half an entry":  {IOMaps: make([]byte, 12)},
		"unsayable":      {IOMaps: make([]byte, 130*iomapSize)},
		"with a gateway": {IOMaps: make([]byte, iomapSize), Dialect: Gateway},
	} {
		_, err := NewStream(memory(cfg, 64, 2))
		require.ErrorIs(t, err, ErrConfig, name)
	}
	require.NoError(t, CheckDevice(verbs.DeviceAttr{Ops: verbs.OpRDMAWrite}))
	require.ErrorIs(t, CheckDevice(verbs.DeviceAttr{Ops: verbs.OpSend}), ErrMessageMode)
}

func mapped(slots int) stockConfig {
	return stockConfig{sq: 384, rq: 384, rbuf: 131072, sbuf: 131072, iomapSlots: slots, firstByte: 1, expectsFirstAt: 2}
}

// Direct writes of both sides, large ones in pieces, across mappings that touch, until one that is not there.
func TestDirectPlacement(t *testing.T) {
	for _, big := range []bool{false, true} {
		cfg := mapped(8)
		cfg.big = big
		w := newStockWorld(t, EndpointConfig{IOMaps: 8, Inline: 32}, cfg, false)
		w.settle()
		for _, offset := range []uint64{1000, 201_000} {
			m := w.newMemory(offset, 200_000)
			w.theirs = append(w.theirs, m)
			require.True(t, w.stock.mapMemory(m.IOMapping))
		}
		_, _, _, ok := w.RemoteMap(1000)
		require.False(t, ok)
		require.Zero(t, w.direct([]byte{1}, 1000), "not announced yet")
		w.settle()
		require.True(t, w.seen.Has(EventIOMap))
		addr, key, n, ok := w.RemoteMap(1001)
		require.True(t, ok)
		require.Equal(t, 199_999, n)
		require.Equal(t, w.theirs[0].Region.Addr+1, addr)
		require.Equal(t, w.theirs[0].Region.Key, key)

		p := bytes.Repeat(pattern, 6)[:399_000]
		n, err := w.WriteDirect(p, 2000)
		require.NoError(t, err)
		require.Equal(t, directSize, n, "the buffer is full")
		for n < len(p) {
			w.seen = 0
			w.settle()
			require.True(t, w.seen.Has(EventWritable))
			k, err := w.WriteDirect(p[n:], 2000+uint64(n))
			require.NoError(t, err)
			require.NotZero(t, k)
			n += k
		}
		w.settle()
		require.Equal(t, p, append(bytes.Clone(w.theirs[0].mem[1000:]), w.theirs[1].mem...))
		n, err = w.WriteDirect([]byte("end"), 400_999)
		require.ErrorIs(t, err, ErrNotMapped)
		require.Equal(t, 1, n, "a short count")
		w.settle()
		require.Equal(t, byte('e'), w.theirs[1].mem[199_999])

		require.NoError(t, w.offer(100_000))
		w.settle()
		require.Equal(t, 99_999, w.stock.writeDirect(p[:100_000], 1))
		w.settle()
		require.Equal(t, p[:99_999], w.ours[0].mem[1:])
		require.Zero(t, w.SentOffset()+w.ReceivedOffset(), "no offset moves")
		require.NoError(t, w.Close())
		require.NoError(t, w.Release())
		require.Zero(t, w.pool.Stats().Used)
	}
}

// A direct write goes after the bytes produced before it and in front of those after it, and lets nothing gather.
func TestDirectWriteKeepsOrder(t *testing.T) {
	w := newStockWorld(t, EndpointConfig{IOMaps: 8}, mapped(8), false)
	m := w.newMemory(0, 100)
	require.True(t, w.stock.mapMemory(m.IOMapping))
	w.stock.sendMaps()
	w.settle()
	for range 5 {
		w.produce(1)
		w.pump()
	}
	require.Equal(t, 3, w.Unposted())
	require.Equal(t, 1, w.direct([]byte{7}, 0))
	w.produce(1)
	require.Zero(t, w.Unposted()-1)
	for w.qp.transfer() && m.mem[0] == 0 {
	}
	w.stock.recv(100)
	require.EqualValues(t, 5, w.stock.received)
	w.settle()
	require.EqualValues(t, 6, w.stock.received)
}

// Announcements go in front of the data produced after them, even if they have to wait for a slot or a credit.
func TestAnnouncementsGoFirst(t *testing.T) {
	w := newStockWorld(t, EndpointConfig{}, mapped(16), false)
	w.settle()
	for range announceSlots + 2 {
		require.NoError(t, w.offer(10))
	}
	require.Len(t, w.qp.sends, announceSlots)
	w.produce(1)
	w.pump()
	require.Equal(t, BlockedIOMap, w.Blocked())
	require.Equal(t, 1, w.Unposted())
	require.Empty(t, w.WriteSpan())
	require.NoError(t, w.Shutdown())
	require.Equal(t, StateOpen, w.State())
	w.settle()
	require.EqualValues(t, 1, w.stock.received)
	for _, m := range w.ours {
		to, ok := w.stock.find(m.Offset)
		require.True(t, ok)
		require.Equal(t, m.Region, to)
	}
	require.NotZero(t, w.stock.state&rsWritable)
	require.Zero(t, w.stock.state&rsReadable)
}

func TestIOMapErrors(t *testing.T) {
	w := newStockWorld(t, EndpointConfig{}, mapped(2), false)
	region := SGE{Addr: 1, Key: 1, Length: 1}
	require.ErrorIs(t, w.AddIOMap(IOMapping{}), ErrIOMap)
	require.ErrorIs(t, w.AddIOMap(IOMapping{Offset: math.MaxUint64, Region: region}), syscall.EINVAL)
	require.NoError(t, w.AddIOMap(IOMapping{Offset: 1, Region: region}))
	require.NoError(t, w.AddIOMap(IOMapping{Offset: 2, Region: region}))
	err := w.AddIOMap(IOMapping{Offset: 3, Region: region})
	require.ErrorIs(t, err, ErrIOMapSlots)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.True(t, w.RemoveIOMap(IOMapping{Offset: 1, Region: region}))
	require.False(t, w.RemoveIOMap(IOMapping{Offset: 1, Region: region}))
	require.NoError(t, w.AddIOMap(IOMapping{Offset: 3, Region: region}), "the slot is used again")
	w.settle()
	_, ok := w.stock.find(3)
	require.True(t, ok)
	_, ok = w.stock.find(1)
	require.False(t, ok)
	_, err = w.WriteDirect([]byte{1}, 0)
	require.ErrorIs(t, err, ErrNotMapped)
	n, err := w.WriteDirect(nil, 0)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, w.Shutdown())
	require.ErrorIs(t, w.AddIOMap(IOMapping{Offset: 9, Region: region}), ErrState)
	_, err = w.WriteDirect([]byte{1}, 0)
	require.ErrorIs(t, err, ErrState)
	w.stream.Fail(syscall.EIO)
	require.ErrorIs(t, w.AddIOMap(IOMapping{Offset: 9, Region: region}), syscall.EIO)
	_, err = w.WriteDirect([]byte{1}, 0)
	require.ErrorIs(t, err, syscall.EIO)

	none := newStockWorld(t, EndpointConfig{}, mapped(0), false)
	require.ErrorIs(t, none.AddIOMap(IOMapping{Region: region}), ErrIOMapSlots)
	a, _, g := gatewayEndpoints(t, true, true)
	require.ErrorIs(t, a.AddIOMap(IOMapping{Region: region}), ErrIOMapSlots)
	require.NotNil(t, g)
}

// A mapping that is taken back before it was announced is not announced.
func TestRemovedWhileWaiting(t *testing.T) {
	w := newStockWorld(t, EndpointConfig{}, mapped(16), false)
	for range announceSlots + 2 {
		require.NoError(t, w.offer(10))
	}
	last := w.ours[announceSlots+1]
	require.True(t, w.RemoveIOMap(last.IOMapping))
	w.settle()
	_, ok := w.stock.find(last.Offset)
	require.False(t, ok)
	_, ok = w.stock.find(w.ours[announceSlots].Offset)
	require.True(t, ok)
	w.produce(10)
	w.settle()
	require.EqualValues(t, 10, w.stock.received)
}

// Stock peers do not return the credits of announcements: half of them stay for data. Peers like us do.
func TestAnnouncementsLeaveCredits(t *testing.T) {
	w := newStockWorld(t, EndpointConfig{}, mapped(1), false)
	m := IOMapping{Region: SGE{Addr: 1, Key: 1, Length: 1}}
	n := 0
	for ; w.AddIOMap(m) == nil; n++ {
		w.settle()
		require.True(t, w.RemoveIOMap(m))
	}
	require.Equal(t, 384/2, n)
	require.ErrorIs(t, w.AddIOMap(m), ErrIOMapCredits)
	for range 1000 {
		require.Equal(t, 1, w.produce(1))
		w.settle()
	}
	require.EqualValues(t, 1000, w.stock.received)
	require.ErrorIs(t, w.AddIOMap(m), ErrIOMapCredits)

	a, b, _ := stockEndpoints(t, EndpointConfig{IOMaps: 1, Credits: 20})
	for range 1000 {
		require.NoError(t, a.AddIOMap(m))
		settleOwners(a, b)
		require.True(t, a.RemoveIOMap(m))
		a.write(3)
		settleOwners(a, b)
	}
	require.EqualValues(t, 3000, b.ConsumedOffset())
	addr, key, left, ok := b.RemoteMap(0)
	require.True(t, ok)
	require.Equal(t, SGE{Addr: addr, Key: key, Length: uint32(left)}, m.Region)
}

func iomapPeers() []hostile {
	entry := func(slot int, m IOMapping) func(v, p *side) {
		return func(v, _ *side) {
			b := iomapBytes(m, v.bigEndian)
			copy(v.cfg.IOMaps[slot*iomapSize:], b[:])
		}
	}
	imm := func(slot uint32) Imm { return MakeImm(OpIomapSGL, slot) }
	return []hostile{
		{"slot beyond", Stock, nil, imm(2), iomapSize, ViolationIOMap},
		{"slot far beyond", Stock, nil, imm(immMask), iomapSize, ViolationIOMap},
		{"half an entry", Stock, nil, imm(0), 12, ViolationLength},
		{"no entry", Stock, nil, imm(0), 0, ViolationLength},
		{"mapping over the address space", Stock, entry(0, IOMapping{Region: SGE{Addr: math.MaxUint64, Length: 9}}), imm(0), iomapSize, ViolationIOMap},
		{"mapping over the offsets", Stock, entry(1, IOMapping{Offset: math.MaxUint64, Region: SGE{Length: 9}}), imm(1), iomapSize, ViolationIOMap},
		{"mapping after shutdown", Stock, func(v, p *side) {
			p.Shutdown()
			p.control()
			p.transfer()
			v.receive()
		}, imm(0), iomapSize, ViolationShutdown},
		{"mapping without credit", Stock, func(v, p *side) {
			for range 8 {
				p.write(1)
			}
			for p.transfer() {
			}
			for v.receive() {
			}
		}, imm(0), iomapSize, ViolationCredit},
	}
}

func TestHostileMappings(t *testing.T) {
	for _, tc := range iomapPeers() {
		t.Run(tc.name, func(t *testing.T) {
			cfg := func() Config {
				return memory(Config{Credits: 8, SendDepth: 16, IOMaps: make([]byte, 2*iomapSize)}, 64, 2)
			}
			victim, peer := newPair(t, cfg(), cfg(), false, false)
			settle(victim, peer)
			if tc.prepare != nil {
				tc.prepare(victim, peer)
			}
			_, err := victim.Receive(tc.imm, tc.length)
			var violation *ProtocolError
			require.ErrorAs(t, err, &violation)
			require.Equal(t, tc.want, violation.Violation)
			require.NotEmpty(t, err.Error())
			_, err = victim.Receive(tc.imm, tc.length)
			require.ErrorIs(t, err, ErrProtocol)
			_, ok := victim.RemoteMap(0)
			require.False(t, ok)
		})
	}
}

// What was announced is copied: a peer that rewrites its entry changes nothing, until it announces it again.
func TestMappingsAreReadOnce(t *testing.T) {
	cfg := func() Config { return memory(Config{IOMaps: make([]byte, iomapSize)}, 64, 2) }
	s, _ := newPair(t, cfg(), cfg(), false, false)
	set := func(m IOMapping) {
		b := iomapBytes(m, s.bigEndian)
		copy(s.cfg.IOMaps, b[:])
	}
	first := SGE{Addr: 10, Key: 1, Length: 5}
	set(IOMapping{Region: first})
	_, ok := s.RemoteMap(0)
	require.False(t, ok, "nothing was announced")
	ev, err := s.Receive(MakeImm(OpIomapSGL, 0), iomapSize)
	require.NoError(t, err)
	require.Equal(t, EventIOMap, ev)
	set(IOMapping{Region: SGE{Addr: math.MaxUint64, Key: 9, Length: 50}})
	got, ok := s.RemoteMap(0)
	require.True(t, ok)
	require.Equal(t, first, got)
	set(IOMapping{}) // empty: taken back
	_, err = s.Receive(MakeImm(OpIomapSGL, 0), iomapSize)
	require.NoError(t, err)
	_, ok = s.RemoteMap(0)
	require.False(t, ok)
}

// iWARP's messages are refused for what they are, whether they fit a receive or not.
func TestMessageModeIsRefused(t *testing.T) {
	for _, wc := range []verbs.WC{
		{WRID: RecvID, Opcode: verbs.WCRecv, ByteLen: 4},
		{WRID: RecvID, Opcode: verbs.WCRecv, ByteLen: 0},
		{WRID: RecvID, Opcode: verbs.WCRecv, Flags: verbs.WCWithImm, ImmData: uint32(MakeImm(OpData, 4)), ByteLen: 4},
		{WRID: RecvID, Status: verbs.WCLocLenErr},
	} {
		a, b, w := stockEndpoints(t, EndpointConfig{})
		require.True(t, a.HandleWC(&wc).Has(EventFailed))
		require.ErrorIs(t, a.Err(), ErrMessageMode)
		require.ErrorIs(t, a.Err(), ErrProtocol)
		require.Equal(t, ErrMessageMode.Error(), a.Err().Error())
		require.Zero(t, a.ReceivedOffset())
		w.close(t, a, b)
	}
	require.NotErrorIs(t, &ProtocolError{Violation: ViolationData}, ErrMessageMode)
}

// An error completion is only the end of what can be sent: the peer's data and last words after it still count.
func TestLastWordsBehindAnError(t *testing.T) {
	a, b, w := stockEndpoints(t, EndpointConfig{})
	b.write(10)
	require.NoError(t, b.Shutdown())
	for b.qp.transfer() {
	}
	lost := a.HandleWC(&verbs.WC{Status: verbs.WCRetryExcErr})
	require.True(t, lost.Has(EventFailed))
	require.ErrorIs(t, a.Err(), syscall.ECONNRESET)
	require.Equal(t, StateFailed, a.State())
	require.Empty(t, a.WriteSpan())
	for a.poll() {
	}
	require.Len(t, a.ReadSpan(), 10)
	require.True(t, a.PeerShut(), "a reader finds the end, a writer the error")
	var failed *CompletionError
	require.ErrorAs(t, a.Err(), &failed, "the first reason stays")
	require.Equal(t, verbs.WCRetryExcErr, failed.Status)
	require.True(t, a.Settled())
	require.NoError(t, a.Consume(10))
	w.close(t, a, b)
}

func TestDirectWritesAllocateNothing(t *testing.T) {
	w := newStockWorld(t, EndpointConfig{IOMaps: 8}, mapped(8), false)
	m := w.newMemory(0, 100_000)
	require.True(t, w.stock.mapMemory(m.IOMapping))
	w.stock.sendMaps()
	w.settle()
	p := make([]byte, 10_000)
	round := func() {
		_, _ = w.WriteDirect(p, 5)
		for w.qp.transfer() || w.poll() {
		}
	}
	for range 100 {
		round()
	}
	require.Zero(t, testing.AllocsPerRun(1000, round))
	require.Greater(t, w.stream.DirectFreed(), uint64(10_000_000))
}

// FuzzIOMaps feeds any announcements with any entries to a stream: no panic, no mapping that is not whole, and a
// violation ends the stream. Input is a sequence of {slot, length, entry}.
func FuzzIOMaps(f *testing.F) {
	step := func(slot, length uint32, m IOMapping) []byte {
		b := binary.BigEndian.AppendUint32(nil, slot)
		b = binary.BigEndian.AppendUint32(b, length)
		e := iomapBytes(m, nativeBigEndian())
		return append(b, e[:]...)
	}
	f.Add(uint64(5), step(0, iomapSize, IOMapping{Offset: 5, Region: SGE{Addr: 1, Key: 2, Length: 3}}))
	f.Add(uint64(0), append(step(1, iomapSize, IOMapping{}), step(1, iomapSize, IOMapping{Region: SGE{Length: math.MaxUint32}})...))
	f.Add(uint64(math.MaxUint64), step(3, iomapSize, IOMapping{Offset: math.MaxUint64, Region: SGE{Length: 1}}))
	f.Add(uint64(0), step(4, iomapSize, IOMapping{}))
	f.Add(uint64(0), step(0, 23, IOMapping{}))
	f.Fuzz(func(t *testing.T, offset uint64, in []byte) {
		s, err := NewStream(memory(Config{Credits: 8, SendDepth: 16, IOMaps: make([]byte, 4*iomapSize)}, 64, 4))
		require.NoError(t, err)
		require.NoError(t, s.Connect(exampleConn()))
		for ; len(in) >= 32; in = in[32:] {
			slot, length := binary.BigEndian.Uint32(in), binary.BigEndian.Uint32(in[4:])
			if slot < 4 {
				copy(s.maps.own[slot*iomapSize:], in[8:32])
			}
			_, err := s.Receive(MakeImm(OpIomapSGL, slot), length)
			checkVictim(t, s, err)
			if to, ok := s.RemoteMap(offset); ok {
				require.NotZero(t, to.Length)
				require.False(t, to.overflows())
				if _, err := s.SendDirect(offset, 1, true); err != nil {
					require.True(t, s.err != nil || errors.Is(err, ErrBlocked))
				}
			}
		}
	})
}
