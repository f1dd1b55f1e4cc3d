package cm

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// QPParams describes the queue pair of one side of a connection.
type QPParams struct {
	// QP is an RC or UC queue pair in RESET or INIT. The manager moves it to RTS, on the passive side before it answers.
	QP verbs.QP
	// Do runs a function in the loop of the queue pair's vector and returns after it. Nil: the function is called
	// directly.
	Do func(func()) error
	// Access is the access granted to the peer if QP is in RESET.
	Access verbs.Access
	// MinRNRTimer is how long the peer waits when no receive is posted, see
	// verbs.RNRTimer. Default 12, 0.64 ms.
	MinRNRTimer uint8
	// RNRRetry is how often the peer then tries again. Default 7, forever; see NoRetry.
	RNRRetry uint8
	// RetryCount is how often both queue pairs repeat a packet; only the active side sets it. Default 7; see NoRetry.
	RetryCount uint8
	// NoRetry makes RNRRetry and RetryCount of 0 mean no retries.
	NoRetry bool
	// ResponderResources is how many READs and atomics of the peer are served at a time, InitiatorDepth how many of ours
	// may be in flight. On the passive side both are bounded by what the active side asked for, and 0 means that bound.
	ResponderResources uint8
	InitiatorDepth     uint8
}

// Check reports a queue pair that cannot be connected.
func (p *QPParams) Check() error {
	switch {
	case p.QP == nil:
		return fmt.Errorf("queue pair missing: %w", verbs.ErrInvalid)
	case p.QP.Type() != verbs.QPTRC && p.QP.Type() != verbs.QPTUC:
		return fmt.Errorf("%v queue pair: %w", p.QP.Type(), verbs.ErrInvalid)
	case p.MinRNRTimer > 31 || p.RNRRetry > 7 || p.RetryCount > 7:
		return fmt.Errorf("timer or retries of queue pair: %w", verbs.ErrInvalid)
	}
	return nil
}

// WithDefaults sets defaults, within the limits of the device.
func (p QPParams) WithDefaults(dev verbs.DeviceAttr) QPParams {
	setDefault(&p.MinRNRTimer, 12)
	if !p.NoRetry {
		setDefault(&p.RNRRetry, 7)
		setDefault(&p.RetryCount, 7)
	}
	limit := uint8(min(dev.MaxRDAtomic, 255))
	p.ResponderResources = min(p.ResponderResources, limit)
	p.InitiatorDepth = min(p.InitiatorDepth, limit)
	return p
}

func (p *QPParams) transport() Transport {
	if p.QP.Type() == verbs.QPTUC {
		return TransportUC
	}
	return TransportRC
}

// Connect moves the queue pair to RTS, in its loop.
func (p *QPParams) Connect(attr verbs.QPAttr) error {
	return runIn(p.Do, func() error {
		if p.QP.State() == verbs.QPSReset {
			if err := verbs.Init(p.QP, p.Access); err != nil {
				return err
			}
		}
		if p.QP.Type() == verbs.QPTUC {
			return verbs.ConnectUC(p.QP, attr)
		}
		return verbs.Connect(p.QP, attr)
	})
}

// Fail moves the queue pair to ERR, in its loop. A queue pair that its owner has closed is no error.
func (p *QPParams) Fail() error {
	err := runIn(p.Do, func() error {
		switch p.QP.State() {
		case verbs.QPSErr, verbs.QPSReset:
			return nil
		default:
			return p.QP.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState)
		}
	})
	if errors.Is(err, verbs.ErrClosed) {
		return nil
	}
	return err
}

// ackTimeout returns the coded time that a queue pair waits for an acknowledgement: the delay of the peer's adapter
// plus the round trip. As in the Linux kernel, the sum of two times is the longer one, or its double if they are within
// a factor of two.
func ackTimeout(ackDelay, packetLifetime uint8) uint8 {
	long, short := max(ackDelay, packetLifetime+1), min(ackDelay, packetLifetime+1)
	if long-short <= 1 {
		long++
	}
	return min(long, 31)
}
