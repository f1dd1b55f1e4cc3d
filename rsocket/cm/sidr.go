package cm

import "errors"

// SIDRREQ asks for the queue pair of a service (IBTA vol. 1, 12.11.1).
type SIDRREQ struct {
	RequestID   uint32
	PKey        uint16
	Service     ServiceID
	PrivateData []byte // at most MaxSIDRREQPrivate
}

// Attr implements Message.
func (*SIDRREQ) Attr() AttrID { return AttrSIDRREQ }

func (m *SIDRREQ) put(b []byte) {
	put32(b, m.RequestID)
	put16(b[4:], m.PKey)
	put64(b[8:], uint64(m.Service))
	copy(b[16:], m.PrivateData)
}

func (m *SIDRREQ) parse(b []byte) error {
	*m = SIDRREQ{RequestID: get32(b), PKey: get16(b[4:]), Service: ServiceID(get64(b[8:])), PrivateData: b[16:]}
	return nil
}

// SIDRStatus is the answer to a SIDR_REQ (IBTA vol. 1, 12.11.2).
type SIDRStatus uint8

// The statuses.
const (
	SIDRSuccess     SIDRStatus = 0
	SIDRUnsupported SIDRStatus = 1 // no such service
	SIDRRejected    SIDRStatus = 2
)

// SIDRREP answers a SIDRREQ (IBTA vol. 1, 12.11.2).
type SIDRREP struct {
	RequestID   uint32
	Status      SIDRStatus
	QPN         uint32 // 24 bits
	Service     ServiceID
	QKey        uint32
	Info        []byte // additional information, at most 72 bytes
	PrivateData []byte // at most MaxSIDRREPPrivate
}

// errInfo is additional information that exceeds the field.
var errInfo = errors.New("additional information out of range")

// Attr implements Message.
func (*SIDRREP) Attr() AttrID { return AttrSIDRREP }

func (m *SIDRREP) put(b []byte) {
	put32(b, m.RequestID)
	b[4] = byte(m.Status)
	put24(b[8:], m.QPN)
	put64(b[12:], uint64(m.Service))
	put32(b[20:], m.QKey)
	b[5] = byte(copy(b[24:24+maxARI], m.Info))
	copy(b[96:], m.PrivateData)
}

func (m *SIDRREP) parse(b []byte) error {
	n := int(b[5])
	if n > maxARI {
		return errInfo
	}
	*m = SIDRREP{
		RequestID: get32(b), Status: SIDRStatus(b[4]), QPN: get24(b[8:]), Service: ServiceID(get64(b[12:])),
		QKey: get32(b[20:]), Info: b[24 : 24+n : 24+n], PrivateData: b[96:],
	}
	return nil
}
