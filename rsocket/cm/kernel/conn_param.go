package kernel

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

const (
	maxPrivate    = 256 // RDMA_MAX_PRIVATE_DATA
	connParamSize = 4 + 4 + maxPrivate + 8
)

// connParam is what the two ends of a connection tell each other (struct rdma_ucm_conn_param).
type connParam struct {
	qpn                uint32
	private            []byte // at most 255 bytes
	srq                bool
	responderResources uint8
	initiatorDepth     uint8
	flowControl        bool
	retryCount         uint8
	rnrRetryCount      uint8
}

// append appends the parameter, marked valid.
func (p *connParam) append(b []byte) []byte {
	n := min(len(p.private), maxPrivate-1)
	b = native.AppendUint32(native.AppendUint32(b, p.qpn), 0)
	b = pad(append(b, p.private[:n]...), maxPrivate-n)
	return append(b, byte(n), bit(p.srq), p.responderResources, p.initiatorDepth, bit(p.flowControl), p.retryCount, p.rnrRetryCount, 1)
}

// parse parses a parameter. It copies the private data.
func (p *connParam) parse(b []byte) error {
	if len(b) < connParamSize {
		return fmt.Errorf("connection parameter of %d bytes: %w", len(b), rdmacm.ErrMalformed)
	}
	tail := b[8+maxPrivate:]
	*p = connParam{
		qpn: native.Uint32(b), private: append([]byte(nil), b[8:8+int(tail[0])]...),
		srq: tail[1] != 0, responderResources: tail[2], initiatorDepth: tail[3],
		flowControl: tail[4] != 0, retryCount: tail[5], rnrRetryCount: tail[6],
	}
	return nil
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
