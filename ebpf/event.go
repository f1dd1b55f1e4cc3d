package ebpf

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/policy"
	"github.com/smcgw/smcgw/packet"
)

// EventKind says what an [Event] is about.
type EventKind uint8

// The kinds of events.
const (
	// EventNative: the connection stays or became native, for Reason. A datagram tuple gets one event each time its
	// reason changes.
	EventNative EventKind = iota + 1
	// EventReplaced: an entry that user space works on was replaced or deleted because the connection is over, by a SYN
	// with another ISN from the local application, or by the client's SYN without option. ISN is that of the old
	// entry. The owner aborts the old flow and leaves the entry alone.
	EventReplaced
	// EventDatagram: a datagram that a rule selects went natively because nothing is known about its peer
	// ([Datapath.SetDatagramPeer]). There is at most one such event per second and peer address.
	EventDatagram
	// EventProbe: the application's kernel probed its peer with the segment Seq, Ack, and the segment was held. If the
	// gateway has heard from the peer, it gives the probe to its own socket ([ProbeSegment]), which answers it.
	EventProbe
	// EventOptions: the options of the application's socket have changed to Options.
	EventOptions
)

// Event is one decision of the programs.
type Event struct {
	// At is the time of the decision.
	At time.Time
	// Tuple is the connection and Proto its protocol.
	Tuple Tuple
	Proto Proto
	// ISN is the initial sequence number of the connection's SYN, or 0 if the decision was made before it was known.
	ISN uint32
	// Kind says what happened.
	Kind EventKind
	// Reason is a number of docs/PROTOCOL.md "Reasons". For EventReplaced it is why the programs gave the connection
	// back to the kernel, which an EventNative reports, too; 0 if they did not.
	Reason uint8
	// Side is the side of the local application.
	Side Side
	// Rule is the index of the policy rule that decided, or NoRule.
	Rule int
	// Seq and Ack are numbers of the segment of an EventProbe.
	Seq, Ack uint32
	// Options are those of an EventOptions.
	Options SocketOptions
}

// SocketOptions are the options by which an application's kernel notices a silent peer.
type SocketOptions struct {
	// UserTimeout is TCP_USER_TIMEOUT, or the equivalent of a tcp_retries2 below the default; 0 if there is neither.
	UserTimeout time.Duration
	Own         bool // UserTimeout was set by TCP_USER_TIMEOUT
	Kept        bool // SO_KEEPALIVE
	// Sent says that the segment that revealed the options has payload or a FIN.
	Sent bool
}

// The flags of SocketOptions as the programs encode them.
const (
	optionKept = 1 << iota
	optionOwn
	optionSent
)

// drainPeriod is how often native decisions are collected. They do not wake the reader.
const drainPeriod = 100 * time.Millisecond

// Events calls fn for every event until ctx ends or d is closed, and returns the cause. Native decisions and options
// are collected every 100 ms; replaced flows and probes come immediately. The buffer is bounded, and holds at most 512
// native connections besides other events; what does not fit is counted as event_lost. Concurrent calls take turns. fn
// may call d, but must not wait for Close.
func (d *Datapath) Events(ctx context.Context, fn func(Event)) error {
	// This is not an operation: the reader has its own lock and notices Close, and fn may begin operations while Close
	// waits.
	d.eventLock.Lock()
	defer d.eventLock.Unlock()
	stop := d.drainEvents(ctx)
	defer stop()
	var rec ringbuf.Record
	for ctx.Err() == nil {
		err := d.events.ReadInto(&rec)
		if errors.Is(err, ringbuf.ErrFlushed) {
			continue
		}
		if err != nil {
			return fmt.Errorf("events: %w", err)
		}
		e, err := parseEvent(rec.RawSample)
		if err != nil {
			return err
		}
		fn(e)
	}
	return context.Cause(ctx)
}

// drainEvents makes the reader return every drainPeriod if there are events that have not woken it, and when ctx ends,
// until stop is called. Looking takes no system call, whereas a reader with a deadline would keep the runtime's monitor
// busy.
func (d *Datapath) drainEvents(ctx context.Context) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(drainPeriod)
		defer tick.Stop()
		ended := ctx.Done()
		for {
			select {
			case <-quit:
				return
			case <-ended:
				ended = nil
				d.flushEvents(true)
			case <-tick.C:
				d.flushEvents(false)
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// flushEvents makes the reader return, either always or if there is something to read.
func (d *Datapath) flushEvents(always bool) {
	d.drain.Lock()
	defer d.drain.Unlock()
	if !d.drained && (always || d.events.AvailableBytes() > 0) {
		_ = d.events.Flush() // an error means closed: the reader returns anyway
	}
}

// closeEvents ends Events.
func (d *Datapath) closeEvents() error {
	d.drain.Lock()
	defer d.drain.Unlock()
	if d.events == nil || d.drained {
		return nil
	}
	d.drained = true
	return d.events.Close()
}

// parseEvent decodes a record of the ring buffer.
func parseEvent(b []byte) (Event, error) {
	var v smcgwEvent
	if _, err := binary.Decode(b, binary.NativeEndian, &v); err != nil {
		return Event{}, fmt.Errorf("event of %d bytes: %w", len(b), err)
	}
	e := Event{
		At: wallTime(v.At), Tuple: v.Key.tuple(), ISN: v.Isn, Kind: EventKind(v.Kind),
		Proto: Proto(v.Proto), Reason: v.Reason, Side: Side(v.Side), Rule: ruleIndex(v.Rule),
	}
	switch e.Kind {
	case EventProbe:
		e.Seq, e.Ack = v.Value[0], v.Value[1]
	case EventOptions:
		flags := v.Value[1]
		e.Options = SocketOptions{
			UserTimeout: time.Duration(v.Value[0]) * time.Millisecond,
			Own:         flags&optionOwn != 0, Kept: flags&optionKept != 0, Sent: flags&optionSent != 0,
		}
	case EventNative, EventReplaced, EventDatagram:
	}
	return e, nil
}

// wallTime converts a time on the kernel's monotonic clock.
func wallTime(at uint64) time.Time {
	return time.Now().Add(time.Duration(at) - time.Duration(Now()))
}

// Reasons that the programs decide by themselves (numbers of docs/PROTOCOL.md "Reasons"; negotiate has their names and
// texts).
const (
	ReasonOff              uint8 = 1
	ReasonPolicy           uint8 = policy.ReasonPolicy
	ReasonNeverList        uint8 = policy.ReasonNeverList
	ReasonGatewayStale     uint8 = 4
	ReasonNAT              uint8 = 5
	ReasonForwarded        uint8 = 6
	ReasonSYNOptions       uint8 = 7
	ReasonAddress          uint8 = 8
	ReasonCanary           uint8 = policy.ReasonCanary
	ReasonAppLegBlocked    uint8 = 10
	ReasonPeerNoOption     uint8 = 20
	ReasonOptionMirrored   uint8 = 21
	ReasonOptionBlackholed uint8 = 22
	ReasonAcceptLost       uint8 = 23
	ReasonClientGone       uint8 = 24
	ReasonPeerUnresolved   uint8 = 25
	ReasonOptionRejected   uint8 = 26
	ReasonPeerRefused      uint8 = 27
	ReasonOfferUnanswered  uint8 = 28
	ReasonHandshakeTimeout uint8 = 32
	ReasonFlowLimit        uint8 = 36
	ReasonRateLimit        uint8 = 37
	ReasonMode             uint8 = 43
	ReasonNotWorthIt       uint8 = policy.ReasonNotWorthIt
)

// ProbeSegment rebuilds the probe of an [EventProbe] for [Datapath.InjectApp]. The gateway's socket then answers it on
// behalf of a peer that has been heard.
func ProbeSegment(t Tuple, seq, ack uint32) []byte {
	return packet.Segment{Src: t.Local, Dst: t.Remote, Seq: seq, Ack: ack, Flags: packet.FlagACK, Window: 0xffff}.Append(nil)
}

// Now returns the time on the programs' clock, that of bpf_ktime_get_ns: CLOCK_MONOTONIC without the offset of the time
// namespace. time.Now includes that offset; a heartbeat from the future would keep the gateway alive long after it has
// died.
func Now() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano() - int64(clockOffset()))
}

// clockOffset returns what our time namespace adds to CLOCK_MONOTONIC. It does not change once a process is in the
// namespace (time_namespaces(7)).
var clockOffset = sync.OnceValue(func() time.Duration {
	f, err := os.Open("/proc/self/timens_offsets")
	if err != nil {
		return 0 // a kernel without time namespaces
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var clock string
		var s, ns int64
		if n, _ := fmt.Sscan(lines.Text(), &clock, &s, &ns); n == 3 && clock == "monotonic" {
			return time.Duration(s)*time.Second + time.Duration(ns)
		}
	}
	return 0
})
