package negotiate

import (
	"errors"
	"fmt"
)

// exchange authenticates the CLC messages of one side of one handshake. Without keys it seals nothing and refuses
// messages that have a MAC. The zero value has no keys.
type exchange struct {
	keys    Keys
	binding Binding
	self    Speaker

	key      []byte // of this handshake; nil if none is known yet
	proposal MAC
	last     MAC // of the last message in the chain
}

func newExchange(keys Keys, b Binding, self Speaker) exchange {
	return exchange{keys: keys, binding: b, self: self}
}

// on reports whether this side has keys.
func (x *exchange) on() bool { return len(x.keys) > 0 }

func (x *exchange) chain(from Speaker, prev MAC) Chain {
	return Chain{Binding: x.binding, From: from, Prev: prev}
}

// other returns the speaker of the messages that this side reads.
func (x *exchange) other() Speaker { return FromClient + FromServer - x.self }

// sealProposal seals a PROPOSAL, which begins the chain.
func (x *exchange) sealProposal(msg []byte) []byte {
	if x.key = x.keys.First(); x.key == nil {
		return msg
	}
	msg, x.proposal = Seal(msg, 0, x.key, x.chain(x.self, MAC{}))
	x.last = x.proposal
	return msg
}

// seal seals the next message of the chain: ACCEPT or CONFIRM.
func (x *exchange) seal(msg []byte) []byte {
	if x.key == nil {
		return msg
	}
	msg, x.last = Seal(msg, 0, x.key, x.chain(x.self, x.last))
	return msg
}

// decline returns a sealed DECLINE.
func (x *exchange) decline(r Reason) []byte {
	return x.aside(encodeDecline(Decline{Version: Version, Reason: r}))
}

// ask returns a sealed ASK.
func (x *exchange) ask() []byte { return x.aside(appendAsk(nil, Ask{Version: MinVersion})) }

// aside seals a message that is not part of the chain. Its previous MAC is that of the PROPOSAL, whatever was sent
// since, or zero if no PROPOSAL was believed.
func (x *exchange) aside(msg []byte) []byte {
	key := x.key
	if key == nil {
		key = x.keys.First()
	}
	if key == nil {
		return msg
	}
	msg, _ = Seal(msg, 0, key, x.chain(x.self, x.proposal))
	return msg
}

// verifyProposal checks a PROPOSAL and notes the client's key. It refuses a PROPOSAL that was believed before.
func (x *exchange) verifyProposal(msg []byte, seen *Seen) error {
	key, mac, err := x.keys.Verify(msg, x.chain(x.other(), MAC{}))
	if err == nil && key != nil && seen != nil && !seen.first(mac) {
		err = fmt.Errorf("clc proposal of another connection: %w", ErrAuth)
	}
	if err != nil {
		return err
	}
	x.key, x.proposal, x.last = key, mac, mac
	return nil
}

// verify checks the next message of the chain: ACCEPT or CONFIRM.
func (x *exchange) verify(msg []byte) (err error) {
	if x.key == nil {
		_, _, err = Keys(nil).Verify(msg, Chain{})
		return err
	}
	x.last, err = Verify(msg, x.key, x.chain(x.other(), x.last))
	return err
}

// verifyAsk checks an ASK, whose previous MAC is that of the PROPOSAL.
func (x *exchange) verifyAsk(msg []byte) error {
	if x.key == nil {
		_, _, err := Keys(nil).Verify(msg, Chain{})
		return err
	}
	_, err := Verify(msg, x.key, x.chain(x.other(), x.proposal))
	return err
}

// readDecline returns the reason of a DECLINE. An unauthenticated DECLINE is obeyed, since its sender could as well
// have reset the connection, but its reason is replaced by ReasonAuthFailed.
func (x *exchange) readDecline(msg []byte) (Reason, error) {
	d, _, err := ParseDecline(msg)
	if err != nil || !x.on() {
		return d.Reason, err
	}
	_, _, err = x.keys.Verify(msg, x.chain(x.other(), x.proposal))
	if err != nil {
		_, _, err = x.keys.Verify(msg, x.chain(x.other(), MAC{}))
	}
	if errors.Is(err, ErrAuth) {
		return ReasonAuthFailed, nil
	}
	return d.Reason, nil
}

// inbox collects the bytes of a wire leg until they hold a complete CLC message. It never holds more than one message
// and what arrived with it. Callers must call next after every delivery, so that garbage is refused at its first wrong
// byte.
type inbox struct{ buf []byte }

func (in *inbox) add(b []byte) { in.buf = append(in.buf, b...) }

// next returns the header and all bytes of the first message without consuming it. ErrShort means that more bytes are
// needed.
func (in *inbox) next() (Header, []byte, error) {
	h, _, err := ParseHeader(in.buf)
	if err != nil {
		return h, nil, err
	}
	if (h.Type < TypeProposal || h.Type > TypeDecline) && h.Type != TypeAsk {
		return h, nil, fmt.Errorf("clc %s: %w", h.Type, ErrMalformed)
	}
	if len(in.buf) < h.Len {
		return h, nil, ErrShort
	}
	return h, in.buf[:h.Len], nil
}

// take consumes n bytes.
func (in *inbox) take(n int) { in.buf = in.buf[n:] }

// rest consumes and returns all remaining bytes, or nil if there are none.
func (in *inbox) rest() []byte {
	b := in.buf
	in.buf = nil
	if len(b) == 0 {
		return nil
	}
	return b
}
