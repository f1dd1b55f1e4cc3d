package carrier

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

// OfferReason returns the reason for an error of Provider.Offer. A local address without an adapter has a reason of its
// own, so that it is not remembered as the peer's lack of carriers.
func OfferReason(err error) negotiate.Reason {
	if errors.Is(err, ErrNoAdapter) {
		return negotiate.ReasonAddress
	}
	return AnswerReason(err)
}

// AnswerReason returns the reason for an error of Provider.Answer.
func AnswerReason(err error) negotiate.Reason {
	switch short := Shortage(err); {
	case short != negotiate.ReasonNone:
		return short
	case errors.Is(err, rmb.ErrNoMemory), errors.Is(err, verbs.ErrNoMemory):
		return negotiate.ReasonNoMemory
	case errors.Is(err, ErrFull):
		return negotiate.ReasonFlowLimit
	case errors.Is(err, ErrYielded): // not remembered
		return negotiate.ReasonDrained
	case errors.Is(err, ErrNoPath):
		return negotiate.ReasonCarrierUnreachable
	case errors.Is(err, ErrTranslated):
		return negotiate.ReasonNAT
	case errors.Is(err, ErrNotHere), errors.Is(err, fs.ErrNotExist): // no rendezvous: other kernel or shm_dir
		return negotiate.ReasonNoCommonCarrier
	default:
		return negotiate.ReasonDeviceFailed
	}
}

// Shortage returns the reason for a kernel error that reports a lack of resources, or ReasonNone.
func Shortage(err error) negotiate.Reason {
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return negotiate.ReasonFlowLimit
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOSPC):
		return negotiate.ReasonNoMemory
	default:
		return negotiate.ReasonNone
	}
}

// MoreLocal returns which of two reasons for the lack of carriers to report: preferably one that says nothing about the
// peer.
func MoreLocal(a, b negotiate.Reason) negotiate.Reason {
	if a == negotiate.ReasonNoCommonCarrier || a == negotiate.ReasonCarrierUnreachable {
		return b
	}
	return a
}
