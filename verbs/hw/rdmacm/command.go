package rdmacm

import (
	"encoding/binary"

	"github.com/smcgw/smcgw/verbs"
)

// Number identifies a command (RDMA_USER_CM_CMD_*).
type Number uint32

// The commands in use.
const (
	NumCreateID     Number = 0
	NumDestroyID    Number = 1
	NumResolveRoute Number = 4
	NumConnect      Number = 6
	NumListen       Number = 7
	NumAccept       Number = 8
	NumReject       Number = 9
	NumDisconnect   Number = 10
	NumInitQPAttr   Number = 11
	NumGetEvent     Number = 12
	NumNotify       Number = 15
	NumQuery        Number = 19
	NumBind         Number = 20
	NumResolveAddr  Number = 21
)

var commandNames = map[Number]string{
	NumCreateID: "CREATE_ID", NumDestroyID: "DESTROY_ID", NumResolveRoute: "RESOLVE_ROUTE", NumConnect: "CONNECT",
	NumListen: "LISTEN", NumAccept: "ACCEPT", NumReject: "REJECT", NumDisconnect: "DISCONNECT",
	NumInitQPAttr: "INIT_QP_ATTR", NumGetEvent: "GET_EVENT", NumNotify: "NOTIFY", NumQuery: "QUERY", NumBind: "BIND",
	NumResolveAddr: "RESOLVE_ADDR",
}

// String returns the kernel's name of the command.
func (n Number) String() string { return commandNames[n] }

// Command is a command to the kernel.
type Command interface {
	// Number returns the command's number.
	Number() Number
	// AnswerSize returns the maximum size of the kernel's answer; 0: none.
	AnswerSize() int
	// Append appends the command without its header. The kernel writes its answer to the address answer.
	Append(b []byte, answer uint64) []byte
}

// native is the byte order of the interface.
var native = binary.NativeEndian

// Encode returns the bytes to write to the device: struct rdma_ucm_cmd_hdr and the command.
func Encode(c Command, answer uint64) []byte {
	b := native.AppendUint32(make([]byte, 0, 512), uint32(c.Number()))
	b = native.AppendUint32(b, 0)
	b = c.Append(b, answer)
	native.PutUint16(b[4:], uint16(len(b)-headerSize))
	native.PutUint16(b[6:], uint16(c.AnswerSize()))
	return b
}

// headerSize is the size of struct rdma_ucm_cmd_hdr.
const headerSize = 8

// pad appends zeros.
func pad(b []byte, n int) []byte { return append(b, make([]byte, n)...) }

// CreateID makes an identifier, whose events carry UID (struct rdma_ucm_create_id).
type CreateID struct {
	UID   uint64
	Space uint16 // of port numbers (RDMA_PS_*)
	QP    verbs.QPType
}

// Number implements Command.
func (CreateID) Number() Number { return NumCreateID }

// AnswerSize implements Command.
func (CreateID) AnswerSize() int { return 4 }

// Append implements Command.
func (c CreateID) Append(b []byte, answer uint64) []byte {
	b = native.AppendUint64(b, c.UID)
	b = native.AppendUint64(b, answer)
	b = native.AppendUint16(b, c.Space)
	return pad(append(b, byte(c.QP)), 5)
}

// ResolveAddr resolves device and next hop (struct rdma_ucm_resolve_addr). Without a source the kernel chooses it.
type ResolveAddr struct {
	ID        uint32
	TimeoutMS uint32
	Src, Dst  Sockaddr
}

// Number implements Command.
func (ResolveAddr) Number() Number { return NumResolveAddr }

// AnswerSize implements Command.
func (ResolveAddr) AnswerSize() int { return 0 }

// Append implements Command.
func (c ResolveAddr) Append(b []byte, _ uint64) []byte {
	b = native.AppendUint32(native.AppendUint32(b, c.ID), c.TimeoutMS)
	b = native.AppendUint16(native.AppendUint16(b, c.Src.Size()), c.Dst.Size())
	return c.Dst.Append(c.Src.Append(pad(b, 4)))
}

// ResolveRoute resolves the path, from the subnet administrator or, on Ethernet, from the kernel itself (struct
// rdma_ucm_resolve_route).
type ResolveRoute struct{ ID, TimeoutMS uint32 }

// Number implements Command.
func (ResolveRoute) Number() Number { return NumResolveRoute }

// AnswerSize implements Command.
func (ResolveRoute) AnswerSize() int { return 0 }

// Append implements Command.
func (c ResolveRoute) Append(b []byte, _ uint64) []byte {
	return native.AppendUint32(native.AppendUint32(b, c.ID), c.TimeoutMS)
}

// Query queries what an identifier has resolved (struct rdma_ucm_query).
type Query struct {
	ID     uint32
	Option QueryOption
}

// QueryOption selects what to query (RDMA_USER_CM_QUERY_*).
type QueryOption uint32

// What can be queried.
const (
	QueryAddr QueryOption = 0 // the addresses of both ends
	QueryPath QueryOption = 1
	QueryGID  QueryOption = 2 // the GIDs of both ends
)

// Number implements Command.
func (Query) Number() Number { return NumQuery }

// AnswerSize implements Command.
func (c Query) AnswerSize() int {
	if c.Option == QueryPath {
		return pathAnswerSize
	}
	return AddrAnswerSize
}

// Append implements Command.
func (c Query) Append(b []byte, answer uint64) []byte {
	return native.AppendUint32(native.AppendUint32(native.AppendUint64(b, answer), c.ID), uint32(c.Option))
}

// InitQPAttr queries the attributes that move the queue pair to a state (struct rdma_ucm_init_qp_attr).
type InitQPAttr struct {
	ID    uint32
	State verbs.QPState
}

// Number implements Command.
func (InitQPAttr) Number() Number { return NumInitQPAttr }

// AnswerSize implements Command.
func (InitQPAttr) AnswerSize() int { return qpAttrSize }

// Append implements Command.
func (c InitQPAttr) Append(b []byte, answer uint64) []byte {
	return native.AppendUint32(native.AppendUint32(native.AppendUint64(b, answer), c.ID), uint32(c.State))
}

// GetEvent takes the next event (struct rdma_ucm_get_event).
type GetEvent struct{}

// Number implements Command.
func (GetEvent) Number() Number { return NumGetEvent }

// AnswerSize implements Command.
func (GetEvent) AnswerSize() int { return EventSize }

// Append implements Command.
func (GetEvent) Append(b []byte, answer uint64) []byte { return native.AppendUint64(b, answer) }
