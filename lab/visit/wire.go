package visit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
)

// A client sends a request, up bytes of a stream, and its FIN. The server answers
// with a greeting of greetingSize bytes, down bytes of another stream, and its FIN.
const (
	requestSize  = 24
	greetingSize = 512
)

type request struct{ seed, up, down uint64 }

func (r request) bytes() []byte {
	b := binary.BigEndian.AppendUint64(nil, r.seed)
	b = binary.BigEndian.AppendUint64(b, r.up)
	return binary.BigEndian.AppendUint64(b, r.down)
}

func parseRequest(b []byte) request {
	return request{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
}

// streamOf is the bytes of a seed.
func streamOf(seed uint64) io.Reader {
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}

// send writes n bytes of a stream.
func send(w io.Writer, seed, n uint64) error {
	_, err := io.CopyN(w, streamOf(seed), int64(n))
	return err
}

// receive reads n bytes of a stream and counts those before the first wrong one.
func receive(r io.Reader, seed, n uint64) (good int64, err error) {
	want, got := make([]byte, 16<<10), make([]byte, 16<<10)
	stream := streamOf(seed)
	for n > 0 {
		k, err := r.Read(got[:min(n, uint64(len(got)))])
		_, _ = io.ReadFull(stream, want[:k])
		if !bytes.Equal(got[:k], want[:k]) {
			return good, errWrongByte
		}
		good, n = good+int64(k), n-uint64(k)
		if err != nil && n > 0 {
			return good, err
		}
	}
	return good, nil
}

// finished reads the end of a stream.
func finished(r io.Reader) error {
	n, err := r.Read(make([]byte, 1))
	switch {
	case n > 0:
		return errTooMuch
	case errors.Is(err, io.EOF):
		return nil
	default:
		return err
	}
}

var (
	errWrongByte = errors.New("WRONG_BYTE")
	errTooMuch   = errors.New("TOO_MUCH")
)
