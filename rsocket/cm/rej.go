package cm

import (
	"errors"
)

// RejectReason is why a request or a connection is refused (IBTA vol. 1, 12.6.7.2).
type RejectReason uint16

// The reasons, with the names of the Linux kernel (enum ib_cm_rej_reason).
const (
	RejectNoQP                   RejectReason = 1
	RejectNoEEC                  RejectReason = 2
	RejectNoResources            RejectReason = 3
	RejectTimeout                RejectReason = 4 // the sender got no answer; ARI is its CA GUID
	RejectUnsupported            RejectReason = 5
	RejectInvalidCommID          RejectReason = 6
	RejectInvalidCommInstance    RejectReason = 7
	RejectInvalidServiceID       RejectReason = 8 // no listener
	RejectInvalidTransportType   RejectReason = 9
	RejectStaleConn              RejectReason = 10 // the receiver believes the queue pair connected
	RejectRDCNotExist            RejectReason = 11
	RejectInvalidGID             RejectReason = 12
	RejectInvalidLID             RejectReason = 13
	RejectInvalidSL              RejectReason = 14
	RejectInvalidTrafficClass    RejectReason = 15
	RejectInvalidHopLimit        RejectReason = 16
	RejectInvalidPacketRate      RejectReason = 17
	RejectInvalidAltGID          RejectReason = 18
	RejectInvalidAltLID          RejectReason = 19
	RejectInvalidAltSL           RejectReason = 20
	RejectInvalidAltTrafficClass RejectReason = 21
	RejectInvalidAltHopLimit     RejectReason = 22
	RejectInvalidAltPacketRate   RejectReason = 23
	RejectPortCMRedirect         RejectReason = 24
	RejectPortRedirect           RejectReason = 25
	RejectInvalidMTU             RejectReason = 26
	RejectInsufficientRespRes    RejectReason = 27
	RejectConsumerDefined        RejectReason = 28 // the application refused
	RejectInvalidRNRRetry        RejectReason = 29
)

var rejectNames = [...]string{
	"", "no QP", "no EEC", "no resources", "timeout", "unsupported request", "invalid comm ID",
	"invalid comm instance", "invalid service ID", "invalid transport type", "stale connection", "RDC does not exist",
	"invalid GID", "invalid LID", "invalid SL", "invalid traffic class", "invalid hop limit", "invalid packet rate",
	"invalid alternate GID", "invalid alternate LID", "invalid alternate SL", "invalid alternate traffic class",
	"invalid alternate hop limit", "invalid alternate packet rate", "port CM redirect", "port redirect", "invalid MTU",
	"insufficient responder resources", "consumer defined", "invalid RNR retry",
}

// String describes the reason.
func (r RejectReason) String() string { return nameOf(rejectNames[:], int(r), int(r), "REJ") }

// maxARI is the room for additional information in a REJ.
const maxARI = 72

// REJ refuses a message or ends an attempt (IBTA vol. 1, 12.6.7).
type REJ struct {
	LocalID     uint32 // 0 if a REQ is refused
	RemoteID    uint32 // 0 if the sender of a REQ gives up
	Message     MessageKind
	Reason      RejectReason
	ARI         []byte // additional information, at most 72 bytes
	PrivateData []byte // at most MaxREJPrivate
}

// errARI is additional information that exceeds the field.
var errARI = errors.New("additional reject information out of range")

// Attr implements Message.
func (*REJ) Attr() AttrID { return AttrREJ }

func (m *REJ) put(b []byte) {
	put32(b, m.LocalID)
	put32(b[4:], m.RemoteID)
	b[8] = byte(m.Message) << 6
	n := copy(b[12:12+maxARI], m.ARI)
	b[9] = byte(n) << 1
	put16(b[10:], uint16(m.Reason))
	copy(b[84:], m.PrivateData)
}

func (m *REJ) parse(b []byte) error {
	n := int(b[9] >> 1)
	if n > maxARI {
		return errARI
	}
	*m = REJ{
		LocalID: get32(b), RemoteID: get32(b[4:]), Message: MessageKind(b[8] >> 6),
		Reason: RejectReason(get16(b[10:])), ARI: b[12 : 12+n : 12+n], PrivateData: b[84:],
	}
	return nil
}
