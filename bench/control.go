package bench

import (
	"errors"
	"fmt"
)

// control is one end of a control connection, without I/O: bytes go in, bytes
// to send and what they mean come out.
//
//	           opening            hello, proof right
//	 closed ◄── expecting ──► challenged ──► open ──► sample: reading
//	                              │ proof wrong: refusal
//	                              ▼
//	                            closed          the serving end; the measuring
//	end goes: greeting ──► (challenge) proving ──► (welcome) open
type control struct {
	token   Token
	state   controlState
	in      []byte
	nonce   [nonceSize]byte // of this end
	other   [nonceSize]byte // of the other
	session [sessionSize]byte
}

type controlState uint8

const (
	stateChallenged controlState = iota // serving: the challenge is out
	stateGreeting                       // measuring: the opening is out
	stateProving                        // measuring: the proof is out
	stateOpen
	stateClosed
)

// ErrRefused is wrapped by the error that says why the server refused.
var ErrRefused = errors.New("refused by the serving host")

// newServing returns the serving end and its challenge, to be used once the
// opening has come.
func newServing(t Token, nonce [nonceSize]byte, session [sessionSize]byte) (*control, []byte) {
	c := &control{token: t, state: stateChallenged, nonce: nonce, session: session}
	return c, appendMessage(nil, challenge{nonce})
}

// newMeasuring returns the measuring end and its opening.
func newMeasuring(t Token, nonce [nonceSize]byte) (*control, []byte) {
	return &control{token: t, state: stateGreeting, nonce: nonce}, opening(controlVersion)
}

// receive takes bytes of the other end and calls got for each message that is
// not settled here; what it returns is to be sent. An error closes the
// connection, after what is to be sent.
func (c *control) receive(b []byte, got func(message)) (out []byte, err error) {
	c.in = append(c.in, b...)
	for c.state != stateClosed {
		m, n, err := parseMessage(c.in)
		if errors.Is(err, errShort) {
			return out, nil
		}
		if err == nil {
			c.in = c.in[n:]
			out, err = c.step(out, m, got)
		}
		if err != nil {
			c.state = stateClosed
			return out, err
		}
	}
	return out, nil
}

func (c *control) step(out []byte, m message, got func(message)) ([]byte, error) {
	switch m := m.(type) {
	case hello:
		if c.state != stateChallenged {
			break
		}
		if !equal(m.proof, c.token.proof(measuring, c.nonce, m.nonce)) {
			return appendMessage(out, refusal{refusedToken, "the token is not the one that smcgw bench --serve printed"}), malformed("wrong token")
		}
		c.other, c.state = m.nonce, stateOpen
		got(m)
		return out, nil
	case challenge:
		if c.state != stateGreeting {
			break
		}
		c.other, c.state = m.nonce, stateProving
		return appendMessage(out, hello{c.nonce, c.token.proof(measuring, m.nonce, c.nonce)}), nil
	case welcome:
		if c.state != stateProving {
			break
		}
		if !equal(m.proof, c.token.proof(serving, c.other, c.nonce)) {
			return out, malformed("the serving host does not know the token")
		}
		c.session, c.state = m.session, stateOpen
		got(m)
		return out, nil
	case refusal:
		if c.state != stateChallenged {
			return out, fmt.Errorf("%w: %q", ErrRefused, m.text)
		}
	case sample, reading, weigh, weight:
		if c.state == stateOpen {
			got(m)
			return out, nil
		}
	}
	return out, malformed("message of type %d out of place", m.kind())
}

// welcome answers a hello that was right.
func (c *control) welcome(note string) []byte {
	return appendMessage(nil, welcome{c.token.proof(serving, c.nonce, c.other), c.session, note})
}
