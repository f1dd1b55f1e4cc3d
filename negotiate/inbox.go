package negotiate

import "fmt"

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
