package kernel

import (
	"encoding/binary"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// native is the byte order of the interface.
var native = binary.NativeEndian

// pad appends zeros.
func pad(b []byte, n int) []byte { return append(b, make([]byte, n)...) }

// destroyID destroys an identifier: an unanswered request is refused, an attempt given up (struct rdma_ucm_destroy_id).
type destroyID struct{ id uint32 }

func (destroyID) Number() rdmacm.Number { return rdmacm.NumDestroyID }
func (destroyID) AnswerSize() int       { return 4 }
func (c destroyID) Append(b []byte, answer uint64) []byte {
	return pad(native.AppendUint32(native.AppendUint64(b, answer), c.id), 4)
}

// bind sets the address of an identifier (struct rdma_ucm_bind).
type bind struct {
	id   uint32
	addr rdmacm.Sockaddr
}

func (bind) Number() rdmacm.Number { return rdmacm.NumBind }
func (bind) AnswerSize() int       { return 0 }
func (c bind) Append(b []byte, _ uint64) []byte {
	b = native.AppendUint16(native.AppendUint32(b, c.id), c.addr.Size())
	return c.addr.Append(pad(b, 2))
}

// listen starts listening (struct rdma_ucm_listen).
type listen struct{ id, backlog uint32 }

func (listen) Number() rdmacm.Number { return rdmacm.NumListen }
func (listen) AnswerSize() int       { return 0 }
func (c listen) Append(b []byte, _ uint64) []byte {
	return native.AppendUint32(native.AppendUint32(b, c.id), c.backlog)
}

// eceSize is the size of struct rdma_ucm_ece. Enhanced connection establishment is not used here.
const eceSize = 8

// connect sends the request (struct rdma_ucm_connect).
type connect struct {
	id    uint32
	param connParam
}

func (connect) Number() rdmacm.Number { return rdmacm.NumConnect }
func (connect) AnswerSize() int       { return 0 }
func (c connect) Append(b []byte, _ uint64) []byte {
	return pad(native.AppendUint32(c.param.append(b), c.id), 4+eceSize)
}

// accept answers a request or, without a parameter, confirms the answer to our own (struct rdma_ucm_accept). Later
// events carry uid.
type accept struct {
	id    uint32
	uid   uint64
	param *connParam
}

func (accept) Number() rdmacm.Number { return rdmacm.NumAccept }
func (accept) AnswerSize() int       { return 0 }
func (c accept) Append(b []byte, _ uint64) []byte {
	b = native.AppendUint64(b, c.uid)
	if c.param != nil {
		b = c.param.append(b)
	} else {
		b = pad(b, connParamSize)
	}
	return pad(native.AppendUint32(b, c.id), 4+eceSize)
}

// reject refuses a request or an answer (struct rdma_ucm_reject). Programs can give only the consumer defined reason.
type reject struct {
	id      uint32
	private []byte
}

func (reject) Number() rdmacm.Number { return rdmacm.NumReject }
func (reject) AnswerSize() int       { return 0 }
func (c reject) Append(b []byte, _ uint64) []byte {
	n := min(len(c.private), cm.MaxREJPrivate)
	b = append(native.AppendUint32(b, c.id), byte(n), byte(cm.RejectConsumerDefined), 0, 0)
	return pad(append(b, c.private[:n]...), maxPrivate-n)
}

// disconnect ends a connection, or confirms that the peer has ended it (struct rdma_ucm_disconnect).
type disconnect struct{ id uint32 }

func (disconnect) Number() rdmacm.Number              { return rdmacm.NumDisconnect }
func (disconnect) AnswerSize() int                    { return 0 }
func (c disconnect) Append(b []byte, _ uint64) []byte { return native.AppendUint32(b, c.id) }

// notify tells the kernel's manager that the peer's data has arrived, which proves that the peer has our answer (struct
// rdma_ucm_notify).
type notify struct{ id uint32 }

func (notify) Number() rdmacm.Number { return rdmacm.NumNotify }
func (notify) AnswerSize() int       { return 0 }
func (c notify) Append(b []byte, _ uint64) []byte {
	return native.AppendUint32(native.AppendUint32(b, c.id), uint32(verbs.EventCommEst))
}
