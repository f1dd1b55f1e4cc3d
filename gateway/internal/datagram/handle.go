package datagram

import (
	"time"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// handleAgain is how soon a failed address handle is retried: the kernel waits a second
	// for the link address of a host that does not answer.
	handleAgain = 10 * time.Second
	// handlesAtOnce bounds the handles being made, separately for valid links and for others,
	// so that a host that queries in the name of many others does not delay hosts that have
	// answered.
	handlesAtOnce = 8
)

// handleJob is an address handle being made. Its goroutine ends with the shard's answer.
type handleJob struct {
	of    *link
	at    verbs.AHAttr
	valid bool // counted with those of valid links
}

// making counts the handles being made, for valid links and for others.
type making struct{ valid, other int }

// of returns the counter that a job belongs to.
func (m *making) of(valid bool) *int {
	if valid {
		return &m.valid
	}
	return &m.other
}

// handle reports whether the address handle of the peer exists; if not, it starts making one
// on a goroutine. Handles are made only when something is to be sent, so a host that merely
// sends queries causes none.
func (l *link) handle() bool {
	e := l.port.e
	if l.ah != nil || l.job != nil || l.barren() {
		return l.ah != nil
	}
	n := e.making.of(l.valid)
	if *n >= handlesAtOnce {
		return false
	}
	*n++
	j := &handleJob{of: l, at: l.at, valid: l.valid}
	l.job = j
	l.port.beside.Go(j.run)
	return false
}

// barren reports whether making the handle failed recently.
func (l *link) barren() bool { return l.port.e.now.Sub(l.failed) < handleAgain }

// run makes the handle, and closes it if the link no longer wants it.
func (j *handleJob) run() {
	p := j.of.port
	ah, err := p.pd.CreateAH(j.at)
	taken := false
	p.e.s.Call(func() {
		*p.e.making.of(j.valid)--
		if j.of.job == j && !p.e.stopped {
			j.of.job, taken = nil, err == nil
			j.of.made(ah, err)
		}
	})
	if err == nil && !taken {
		_ = ah.Close()
	}
}

// made receives the handle and sends what was waiting for it.
func (l *link) made(ah verbs.AH, err error) {
	e := l.port.e
	msg := l.unanswered
	l.unanswered = nil
	if err != nil {
		l.failed = e.now
		e.log.Debug("address handle", "peer", l.remote, "carrier", l.port.kind, "error", err)
		if proof := l.proof; proof != 0 {
			l.proof = 0
			e.act(e.resolve.Proved(l.remote, proof, false, e.now))
		}
		return
	}
	l.ah = ah
	if l.proof != 0 {
		l.probe(l.mtu)
	}
	if msg != nil {
		l.answer(msg)
	}
}

// forgetHandle closes the handle on a goroutine, since an adapter may take long.
func (l *link) forgetHandle() {
	if ah := l.ah; ah != nil {
		l.port.beside.Go(func() { _ = ah.Close() })
	}
	l.ah, l.job, l.unanswered, l.failed = nil, nil, nil, time.Time{}
}
