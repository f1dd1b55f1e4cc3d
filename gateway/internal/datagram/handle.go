package datagram

import (
	"time"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// handleAgain is how soon a handle that could not be made is made again: the kernel waits a second
	// for the link address of a host that does not answer.
	handleAgain = 10 * time.Second
	// handlesAtOnce bounds the handles that are being made, of valid links and of others: a host that asks
	// in the names of many delays none that has answered.
	handlesAtOnce = 8
)

// handleJob is an address handle that is being made. Its goroutine ends with the answer of the shard.
type handleJob struct {
	of    *link
	at    verbs.AHAttr
	valid bool // counted among those of valid links
}

// making is how many handles are being made, of valid links and of others.
type making struct{ valid, other int }

// of returns the count that a job belongs to.
func (m *making) of(valid bool) *int {
	if valid {
		return &m.valid
	}
	return &m.other
}

// handle reports whether there is the handle of the peer, and has it made beside the shard. It is made when
// something is to be sent, which a host that only asks does not bring about.
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

// barren reports whether the handle could not be made lately.
func (l *link) barren() bool { return l.port.e.now.Sub(l.failed) < handleAgain }

// run makes the handle. One that the link does not want any more is closed.
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

// made takes the handle, and sends what has waited for it.
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

// forgetHandle closes the handle beside the shard, as an adapter may take its time.
func (l *link) forgetHandle() {
	if ah := l.ah; ah != nil {
		l.port.beside.Go(func() { _ = ah.Close() })
	}
	l.ah, l.job, l.unanswered, l.failed = nil, nil, nil, time.Time{}
}
