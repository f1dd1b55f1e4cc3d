package negotiate

import "fmt"

// inbox collects the bytes of a wire leg until they hold a whole CLC message. It never holds more than one message and
// what arrived with it; callers look after every delivery, so that garbage is refused by its first wrong byte.
type inbox struct{ buf []byte }

func (in *inbox) add(b []byte) { in.buf = append(in.buf, b...) }

// next returns the header and the whole bytes of the first message, without taking it. ErrShort: wait.
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

// take drops n bytes.
func (in *inbox) take(n int) { in.buf = in.buf[n:] }

// rest hands out everything that is left, nil when nothing is.
func (in *inbox) rest() []byte {
	b := in.buf
	in.buf = nil
	if len(b) == 0 {
		return nil
	}
	return b
}
