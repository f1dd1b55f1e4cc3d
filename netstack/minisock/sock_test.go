package minisock

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/smcgw/smcgw/netstack/internal/segment"
	"github.com/smcgw/smcgw/packet"
)

// TestReceive: every kind of segment, at a Sock whose peer is at 5001 and which has itself sent
// ten bytes from 101 on.
func TestReceive(t *testing.T) {
	plain := Segment{Seq: 5001, Ack: 101, Flags: packet.FlagACK, Window: 512, TSVal: 900}
	with := func(change func(*Segment)) Segment {
		s := plain
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		seg     Segment
		options packet.OptionList // instead of timestamps
		want    Verdict
		read    string
	}{
		"bytes in order":              {seg: with(func(s *Segment) { s.Payload = []byte("news") }), want: Taken, read: "news"},
		"an acknowledgement":          {seg: with(func(s *Segment) { s.Ack = 111 }), want: Taken},
		"one that is overtaken":       {seg: with(func(s *Segment) { s.Ack = 90 }), want: Taken},
		"one of long ago":             {seg: with(func(s *Segment) { s.Ack, s.Payload = math.MaxUint32-Flight, []byte("blind") }), want: Answer},
		"of what was not sent":        {seg: with(func(s *Segment) { s.Ack = 112 }), want: Answer},
		"of half the numbers":         {seg: with(func(s *Segment) { s.Ack, s.Payload = 101+1<<31, []byte("blind") }), want: Answer},
		"bytes that came":             {seg: with(func(s *Segment) { s.Seq, s.Payload = 4999, []byte("ol") }), want: Answer},
		"some of which came":          {seg: with(func(s *Segment) { s.Seq, s.Payload = 4999, []byte("olnews") }), want: Taken, read: "news"},
		"a gap":                       {seg: with(func(s *Segment) { s.Seq, s.Payload = 5002, []byte("x") }), want: Beyond},
		"after the window":            {seg: with(func(s *Segment) { s.Seq, s.Payload = 5001+window, []byte("x") }), want: Answer},
		"half the numbers away":       {seg: with(func(s *Segment) { s.Seq = 5001 + 1<<31 }), want: Answer},
		"bytes half of them away":     {seg: with(func(s *Segment) { s.Seq, s.Payload = 5001+1<<31, []byte("x") }), want: Answer},
		"the last in the window":      {seg: with(func(s *Segment) { s.Seq, s.Payload = 5000+window, []byte("x") }), want: Beyond},
		"more than there is room for": {seg: with(func(s *Segment) { s.Payload = make([]byte, Room+1) }), want: Beyond},
		"a keepalive probe":           {seg: with(func(s *Segment) { s.Seq = 5000 }), want: Answer},
		"an old timestamp":            {seg: with(func(s *Segment) { s.TSVal, s.Payload = 899, []byte("old") }), want: Answer},
		"the SYN-ACK again":           {seg: with(func(s *Segment) { s.Seq, s.Flags = 5000, packet.FlagSYN|packet.FlagACK }), want: Answer},
		"another SYN-ACK":             {seg: with(func(s *Segment) { s.Seq, s.Flags = 7000, packet.FlagSYN|packet.FlagACK }), want: Answer},
		"a SYN":                       {seg: with(func(s *Segment) { s.Flags = packet.FlagSYN }), want: Answer},
		"a FIN":                       {seg: with(func(s *Segment) { s.Flags |= packet.FlagFIN }), want: Beyond},
		"a FIN that came":             {seg: with(func(s *Segment) { s.Seq, s.Flags = 4999, s.Flags|packet.FlagFIN }), want: Answer},
		"a FIN behind bytes that did": {seg: with(func(s *Segment) { s.Seq, s.Flags, s.Payload = 4999, s.Flags|packet.FlagFIN, []byte("ol") }), want: Beyond},
		"a FIN after the window":      {seg: with(func(s *Segment) { s.Seq, s.Flags = 5001+window, s.Flags|packet.FlagFIN }), want: Answer},
		"urgent":                      {seg: with(func(s *Segment) { s.Flags |= packet.FlagURG }), want: Beyond},
		"the exact reset":             {seg: with(func(s *Segment) { s.Flags = packet.FlagRST }), want: Over},
		"a reset in the window":       {seg: with(func(s *Segment) { s.Flags, s.Seq = packet.FlagRST, 5002 }), want: Answer},
		"a reset after it":            {seg: with(func(s *Segment) { s.Flags, s.Seq = packet.FlagRST, 5001+window }), want: Dropped},
		"a reset before it":           {seg: with(func(s *Segment) { s.Flags, s.Seq = packet.FlagRST, 5000 }), want: Dropped},
		"without ACK":                 {seg: with(func(s *Segment) { s.Flags = packet.FlagPSH }), want: Dropped},
		"without timestamps":          {seg: plain, options: packet.OptionList{packet.KindNOP, packet.KindNOP, packet.KindNOP, packet.KindNOP}, want: Beyond},
		"of half an option":           {seg: plain, options: packet.OptionList{packet.KindTimestamps, packet.TimestampsLen, 0, 0}, want: Beyond},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Config{Seq: 101, Ack: 5001, Window: 1 << 16, Scale: 7, PeerScale: 7, Stamp: 3, Recent: 900, Timeout: testTimeout})
			s.Write([]byte("ten  bytes"))
			_, ok := s.Next(0, 1400)
			require.True(t, ok)
			h := c.seg.header()
			if c.options != nil {
				h = append(h[:packet.TCPMinLen], c.options...)
				h.SetHeaderLen(len(h))
			}
			require.Equal(t, c.want, s.Receive(0, h, c.seg.Payload), "%v", c.want)
			b := make([]byte, 100)
			require.Equal(t, c.read, string(b[:s.Read(b)]))
			require.Equal(t, len(c.read), s.Owes())
			if c.want != Taken {
				require.Len(t, s.Numbers(0).Written, 10)
			}
		})
	}
}

// TestSend: segments are no larger than asked, the last has PSH, the peer's window is kept to.
func TestSend(t *testing.T) {
	s := New(Config{Seq: 101, Ack: 5001, Window: 25, Scale: 3, Stamp: 3, Recent: 900, Timeout: testTimeout})
	require.Equal(t, 30, s.Write(make([]byte, 30)))
	var sizes []int
	for seg, ok := s.Next(7*time.Millisecond, 10); ok; seg, ok = s.Next(7*time.Millisecond, 10) {
		sizes = append(sizes, len(seg.Payload))
		require.Equal(t, Segment{Seq: seg.Seq, Ack: 5001, Flags: packet.FlagACK, Window: window >> 3, TSVal: 10, TSEcr: 900, Payload: seg.Payload}, seg)
	}
	require.Equal(t, []int{10, 10, 5}, sizes)
	require.True(t, s.Stuck())
	wider := Segment{Seq: 5001, Ack: 111, Flags: packet.FlagACK, Window: 100, TSVal: 901}
	require.Equal(t, Taken, s.Receive(8*time.Millisecond, wider.header(), nil))
	require.False(t, s.Stuck())
	seg, ok := s.Next(8*time.Millisecond, 10)
	require.True(t, ok)
	require.Equal(t, Segment{Seq: 126, Ack: 5001, Flags: packet.FlagACK | packet.FlagPSH, Window: window >> 3, TSVal: 11, TSEcr: 901, Payload: make([]byte, 5)}, seg)
	require.Equal(t, Segment{Seq: 131, Ack: 5001, Flags: packet.FlagACK | packet.FlagRST, Window: window >> 3, TSVal: 12, TSEcr: 901}, s.Reset(9*time.Millisecond))
	require.Equal(t, Flight-20, s.Write(make([]byte, 2*Flight)), "it holds no more")
}

// TestRepeat: bytes that are not acknowledged leave twice more, each time behind twice the
// wait; then it takes an endpoint.
func TestRepeat(t *testing.T) {
	s := New(Config{Seq: 101, Ack: 5001, Window: 1 << 16, Stamp: 3, Recent: 900, Timeout: testTimeout})
	_, ok := s.Deadline()
	require.False(t, ok)
	s.Write([]byte("bytes"))
	s.Next(0, 1400)
	now := time.Duration(0)
	for _, wait := range []time.Duration{testTimeout, 2 * testTimeout} {
		at, ok := s.Deadline()
		require.True(t, ok)
		require.Equal(t, now+wait, at)
		require.Equal(t, Nothing, s.Expire(at-1))
		now = at
		require.Equal(t, Repeat, s.Expire(now))
		seg, ok := s.Next(now, 1400)
		require.True(t, ok)
		require.Equal(t, uint32(101), seg.Seq)
		require.Equal(t, "bytes", string(seg.Payload))
		_, ok = s.Next(now, 1400)
		require.False(t, ok)
	}
	at, _ := s.Deadline()
	require.Equal(t, TooLate, s.Expire(at))
	n := s.Numbers(at)
	require.Equal(t, Numbers{Seq: 101, Sent: 106, Ack: 5001, Window: 1 << 16, Stamp: 3 + uint32(at.Milliseconds()), Recent: segment.Recent{Value: 900}, Written: []byte("bytes")}, n)
}

// TestKeepalive: an idle peer is asked; one that answers is idle anew, one that does not is
// Silent. A process that slept does not count what it missed.
func TestKeepalive(t *testing.T) {
	a, b := newPair(0, 100, 5000, 7)
	require.Equal(t, Taken, b.Receive(0, a.Ack(0).header(), nil))
	const idle, interval = time.Second, 300 * time.Millisecond
	a.SetKeepalive(0, idle, interval, 2)
	require.Equal(t, Nothing, a.Expire(idle-1))
	require.Equal(t, Probe, a.Expire(idle))
	require.Equal(t, Answer, b.Receive(idle, a.Probe(idle).header(), nil))
	require.Equal(t, Taken, a.Receive(idle, b.Ack(idle).header(), nil))
	now := 10 * time.Second // late
	require.Equal(t, Probe, a.Expire(now))
	require.Equal(t, Nothing, a.Expire(now))
	require.Equal(t, Probe, a.Expire(now+interval))
	require.Equal(t, Silent, a.Expire(now+2*interval))
	a.SetKeepalive(now, 0, 0, 0)
	_, ok := a.Deadline()
	require.False(t, ok)
	a.SetKeepalive(now, idle, interval, math.MaxInt32)
	for range 1000 {
		at, ok := a.Deadline()
		require.True(t, ok)
		require.Equal(t, Probe, a.Expire(at))
	}
}

// TestChallenges: two ends that disagree do not answer each other for ever.
func TestChallenges(t *testing.T) {
	s := New(Config{Seq: 101, Ack: 5001, Window: 1 << 16, Recent: 900, Timeout: testTimeout})
	blind := Segment{Seq: 5001 + 1<<20, Ack: 101, Flags: packet.FlagACK, TSVal: 900}
	for now := time.Second; now < 4*time.Second; now += time.Second {
		answers := 0
		for range 1000 {
			if s.Receive(now, blind.header(), nil) == Answer {
				answers++
			}
		}
		require.Equal(t, challengesMost, answers)
	}
	plain := Segment{Seq: 5001, Ack: 101, Flags: packet.FlagACK, TSVal: 900}
	require.Equal(t, Taken, s.Receive(3*time.Second, plain.header(), []byte("the peer's own")))
}

// FuzzReceive: no segment makes a Sock hold more than its room, or forget what it has to send.
func FuzzReceive(f *testing.F) {
	seg := Segment{Seq: 5001, Ack: 101, Flags: packet.FlagACK, Window: 512, TSVal: 900}
	for n := packet.TCPMinLen; n <= len(seg.header()); n++ {
		f.Add([]byte(seg.header()[:n]), []byte("payload"))
	}
	for _, far := range []uint32{1, window, 1<<31 - 1, 1 << 31, 1<<31 + 1, math.MaxUint32} {
		away := seg
		away.Seq += far
		f.Add([]byte(away.header()), []byte("payload"))
		f.Add([]byte(away.header()), []byte(nil))
		away = seg
		away.Ack += far
		f.Add([]byte(away.header()), []byte("payload"))
	}
	f.Fuzz(func(t *testing.T, header, payload []byte) {
		if len(header) < packet.TCPMinLen {
			return // packet.IP.TCP refuses it
		}
		s := New(Config{Seq: 101, Ack: 5001, Window: 1 << 16, Scale: 7, PeerScale: 14, Stamp: 3, Recent: 900, Timeout: testTimeout})
		s.Write([]byte("bytes"))
		s.Next(0, 3)
		for range 2 {
			switch s.Receive(0, packet.TCP(header), payload) {
			case Dropped, Taken, Answer, Over, Beyond:
			default:
				t.Fatal("another verdict")
			}
			require.LessOrEqual(t, s.Unread(), Room)
			n := s.Numbers(0)
			require.LessOrEqual(t, n.Sent-n.Seq, uint32(5))
			require.Equal(t, "bytes"[5-len(n.Written):], string(n.Written))
		}
	})
}

// TestIdleForLong: the peer's clock has gone round half since its last segment.
func TestIdleForLong(t *testing.T) {
	s := New(Config{Seq: 101, Ack: 5001, Window: 1 << 16, Stamp: 3, Recent: 900, Timeout: testTimeout})
	const days = 24 * time.Hour
	news := Segment{Seq: 5001, Ack: 101, Flags: packet.FlagACK, TSVal: 900 + 1<<31 + 5, Payload: []byte("news")}
	require.Equal(t, Answer, s.Receive(20*days, news.header(), news.Payload))
	require.Equal(t, Taken, s.Receive(25*days, news.header(), news.Payload))
	news.Seq, news.TSVal = 5005, 900+1<<31
	require.Equal(t, Answer, s.Receive(25*days, news.header(), news.Payload))
}

const testTimeout = 40 * time.Millisecond

// header makes the TCP header of seg.
func (seg Segment) header() packet.TCP {
	b := make(packet.TCP, packet.TCPMinLen, packet.TCPMaxLen)
	b.SetSeq(seg.Seq)
	b.SetAck(seg.Ack)
	b.SetFlags(seg.Flags)
	b.SetWindow(seg.Window)
	b = append(b, packet.KindNOP, packet.KindNOP, packet.KindTimestamps, packet.TimestampsLen)
	b = binary.BigEndian.AppendUint32(b, seg.TSVal)
	b = binary.BigEndian.AppendUint32(b, seg.TSEcr)
	b.SetHeaderLen(len(b))
	return b
}

// newPair returns two ends of one connection, of which the first owes an acknowledgement.
func newPair(now time.Duration, iss, irs uint32, scale uint8) (a, b *Sock) {
	a = New(Config{
		Seq: iss + 1, Ack: irs + 1, Owed: true, Window: 64 << 10, Scale: scale, PeerScale: 7,
		Stamp: 1<<32 - 5, Recent: 900, Timeout: testTimeout, Now: now,
	})
	b = New(Config{
		Seq: irs + 1, Ack: iss + 1, Window: 64 << 10, Scale: 7, PeerScale: scale,
		Stamp: 900, Recent: 1<<32 - 5, Timeout: testTimeout, Now: now,
	})
	return a, b
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
