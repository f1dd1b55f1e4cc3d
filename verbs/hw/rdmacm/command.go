package rdmacm

import (
	"encoding/binary"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/cm"
)

// number says which command it is (RDMA_USER_CM_CMD_*).
type number uint32

// The commands in use.
const (
	numCreateID     number = 0
	numDestroyID    number = 1
	numResolveRoute number = 4
	numConnect      number = 6
	numListen       number = 7
	numAccept       number = 8
	numReject       number = 9
	numDisconnect   number = 10
	numInitQPAttr   number = 11
	numGetEvent     number = 12
	numNotify       number = 15
	numQuery        number = 19
	numBind         number = 20
	numResolveAddr  number = 21
)

var numberNames = map[number]string{
	numCreateID: "CREATE_ID", numDestroyID: "DESTROY_ID", numResolveRoute: "RESOLVE_ROUTE", numConnect: "CONNECT",
	numListen: "LISTEN", numAccept: "ACCEPT", numReject: "REJECT", numDisconnect: "DISCONNECT",
	numInitQPAttr: "INIT_QP_ATTR", numGetEvent: "GET_EVENT", numNotify: "NOTIFY", numQuery: "QUERY", numBind: "BIND",
	numResolveAddr: "RESOLVE_ADDR",
}

// String returns the name that the kernel has for the command.
func (n number) String() string { return numberNames[n] }

// command is what the kernel is asked to do.
type command interface {
	number() number
	// answerSize is how many bytes the kernel writes at most; 0: none.
	answerSize() int
	// append appends the command without its header. The kernel writes its answer to the address.
	append(b []byte, answer uint64) []byte
}

// native is the byte order of the interface.
var native = binary.NativeEndian

// encode returns what is written to the device: struct rdma_ucm_cmd_hdr and the command.
func encode(c command, answer uint64) []byte {
	b := native.AppendUint32(make([]byte, 0, 512), uint32(c.number()))
	b = native.AppendUint32(b, 0)
	b = c.append(b, answer)
	native.PutUint16(b[4:], uint16(len(b)-headerSize))
	native.PutUint16(b[6:], uint16(c.answerSize()))
	return b
}

// headerSize is that of struct rdma_ucm_cmd_hdr.
const headerSize = 8

// pad appends zeros.
func pad(b []byte, n int) []byte { return append(b, make([]byte, n)...) }

// createID makes an identifier, whose events carry uid (struct rdma_ucm_create_id).
type createID struct {
	uid   uint64
	space cm.PortSpace
	qp    verbs.QPType
}

func (createID) number() number  { return numCreateID }
func (createID) answerSize() int { return 4 }
func (c createID) append(b []byte, answer uint64) []byte {
	b = native.AppendUint64(b, c.uid)
	b = native.AppendUint64(b, answer)
	b = native.AppendUint16(b, uint16(c.space))
	return pad(append(b, byte(c.qp)), 5)
}

// destroyID ends an identifier and what it stands for: a request that was not answered is refused, an attempt given up
// (struct rdma_ucm_destroy_id).
type destroyID struct{ id uint32 }

func (destroyID) number() number  { return numDestroyID }
func (destroyID) answerSize() int { return 4 }
func (c destroyID) append(b []byte, answer uint64) []byte {
	return pad(native.AppendUint32(native.AppendUint64(b, answer), c.id), 4)
}

// bind gives an identifier its address (struct rdma_ucm_bind).
type bind struct {
	id   uint32
	addr sockaddr
}

func (bind) number() number  { return numBind }
func (bind) answerSize() int { return 0 }
func (c bind) append(b []byte, _ uint64) []byte {
	b = native.AppendUint16(native.AppendUint32(b, c.id), c.addr.size())
	return c.addr.append(pad(b, 2))
}

// resolveAddr finds device and next hop (struct rdma_ucm_resolve_addr). Without a source the kernel chooses it.
type resolveAddr struct {
	id        uint32
	timeoutMS uint32
	src, dst  sockaddr
}

func (resolveAddr) number() number  { return numResolveAddr }
func (resolveAddr) answerSize() int { return 0 }
func (c resolveAddr) append(b []byte, _ uint64) []byte {
	b = native.AppendUint32(native.AppendUint32(b, c.id), c.timeoutMS)
	b = native.AppendUint16(native.AppendUint16(b, c.src.size()), c.dst.size())
	return c.dst.append(c.src.append(pad(b, 4)))
}

// resolveRoute asks the subnet administrator, or on Ethernet the kernel itself, for the path
// (struct rdma_ucm_resolve_route).
type resolveRoute struct{ id, timeoutMS uint32 }

func (resolveRoute) number() number  { return numResolveRoute }
func (resolveRoute) answerSize() int { return 0 }
func (c resolveRoute) append(b []byte, _ uint64) []byte {
	return native.AppendUint32(native.AppendUint32(b, c.id), c.timeoutMS)
}

// query asks for what an identifier has resolved (struct rdma_ucm_query).
type query struct {
	id     uint32
	option queryOption
}

// queryOption says what query asks for (RDMA_USER_CM_QUERY_*).
type queryOption uint32

const (
	queryAddr queryOption = 0
	queryPath queryOption = 1
	queryGID  queryOption = 2
)

func (query) number() number { return numQuery }
func (c query) answerSize() int {
	if c.option == queryPath {
		return pathAnswerSize
	}
	return addrAnswerSize
}

func (c query) append(b []byte, answer uint64) []byte {
	return native.AppendUint32(native.AppendUint32(native.AppendUint64(b, answer), c.id), uint32(c.option))
}

// initQPAttr asks which attributes take the queue pair to a state (struct rdma_ucm_init_qp_attr).
type initQPAttr struct {
	id    uint32
	state verbs.QPState
}

func (initQPAttr) number() number  { return numInitQPAttr }
func (initQPAttr) answerSize() int { return qpAttrSize }
func (c initQPAttr) append(b []byte, answer uint64) []byte {
	return native.AppendUint32(native.AppendUint32(native.AppendUint64(b, answer), c.id), uint32(c.state))
}

// listen begins to take requests (struct rdma_ucm_listen).
type listen struct{ id, backlog uint32 }

func (listen) number() number  { return numListen }
func (listen) answerSize() int { return 0 }
func (c listen) append(b []byte, _ uint64) []byte {
	return native.AppendUint32(native.AppendUint32(b, c.id), c.backlog)
}

// eceSize is that of struct rdma_ucm_ece, the enhanced connection establishment that no side here uses.
const eceSize = 8

// connect sends the request (struct rdma_ucm_connect).
type connect struct {
	id    uint32
	param connParam
}

func (connect) number() number  { return numConnect }
func (connect) answerSize() int { return 0 }
func (c connect) append(b []byte, _ uint64) []byte {
	return pad(native.AppendUint32(c.param.append(b), c.id), 4+eceSize)
}

// accept answers a request; without a parameter it confirms the answer to our own (struct rdma_ucm_accept). Events
// carry uid from then on.
type accept struct {
	id    uint32
	uid   uint64
	param *connParam
}

func (accept) number() number  { return numAccept }
func (accept) answerSize() int { return 0 }
func (c accept) append(b []byte, _ uint64) []byte {
	b = native.AppendUint64(b, c.uid)
	if c.param != nil {
		b = c.param.append(b)
	} else {
		b = pad(b, connParamSize)
	}
	return pad(native.AppendUint32(b, c.id), 4+eceSize)
}

// reject refuses a request or an answer (struct rdma_ucm_reject). The reason is that of the consumer: programs may give
// no other.
type reject struct {
	id      uint32
	private []byte
}

func (reject) number() number  { return numReject }
func (reject) answerSize() int { return 0 }
func (c reject) append(b []byte, _ uint64) []byte {
	n := min(len(c.private), cm.MaxREJPrivate)
	b = append(native.AppendUint32(b, c.id), byte(n), byte(cm.RejectConsumerDefined), 0, 0)
	return pad(append(b, c.private[:n]...), maxPrivate-n)
}

// disconnect ends a connection, or confirms that the peer has ended it (struct rdma_ucm_disconnect).
type disconnect struct{ id uint32 }

func (disconnect) number() number                     { return numDisconnect }
func (disconnect) answerSize() int                    { return 0 }
func (c disconnect) append(b []byte, _ uint64) []byte { return native.AppendUint32(b, c.id) }

// notify tells the manager that the peer's data has arrived, so that the peer has our answer (struct rdma_ucm_notify).
type notify struct{ id uint32 }

func (notify) number() number  { return numNotify }
func (notify) answerSize() int { return 0 }
func (c notify) append(b []byte, _ uint64) []byte {
	return native.AppendUint32(native.AppendUint32(b, c.id), uint32(verbs.EventCommEst))
}

// getEvent takes the next event (struct rdma_ucm_get_event).
type getEvent struct{}

func (getEvent) number() number                        { return numGetEvent }
func (getEvent) answerSize() int                       { return eventSize }
func (getEvent) append(b []byte, answer uint64) []byte { return native.AppendUint64(b, answer) }
