package rogue

import (
	"crypto/rand"
	"fmt"
	"io"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// Self is the identity that the rogue claims.
type Self struct {
	GatewayID, HostID [16]byte
}

// NewSelf invents a gateway.
func NewSelf(hostID [16]byte) Self {
	s := Self{HostID: hostID}
	_, _ = rand.Read(s.GatewayID[:])
	return s
}

// DeclineError means that the server's gateway declined the offer.
type DeclineError struct{ Reason negotiate.Reason }

// Error implements error.
func (e *DeclineError) Error() string { return "declined: " + e.Reason.String() }

// Proposal returns a proposal with the given carriers.
func (w *Wire) Proposal(s Self, carriers ...negotiate.CarrierOffer) negotiate.Proposal {
	return negotiate.Proposal{
		Nonce: w.nonce, MinVersion: 1, MaxVersion: 1, GatewayID: s.GatewayID, HostID: s.HostID,
		Budget: 10 * time.Second, Carriers: carriers,
	}
}

// Propose sends a PROPOSAL and reads the answer.
func (w *Wire) Propose(p negotiate.Proposal) (negotiate.Accept, error) {
	if _, err := w.Write(negotiate.AppendProposal(nil, &p)); err != nil {
		return negotiate.Accept{}, err
	}
	msg := make([]byte, negotiate.HeaderLen, negotiate.MaxMessageLen)
	if _, err := io.ReadFull(w, msg); err != nil {
		return negotiate.Accept{}, fmt.Errorf("answer: %w", err)
	}
	h, _, err := negotiate.ParseHeader(msg)
	if err != nil {
		return negotiate.Accept{}, err
	}
	msg = msg[:h.Len]
	if _, err := io.ReadFull(w, msg[negotiate.HeaderLen:]); err != nil {
		return negotiate.Accept{}, fmt.Errorf("answer: %w", err)
	}
	if d, _, err := negotiate.ParseDecline(msg); err == nil {
		return negotiate.Accept{}, &DeclineError{d.Reason}
	}
	a, _, err := negotiate.ParseAccept(msg)
	return a, err
}

// Confirm says which carrier is used.
func (w *Wire) Confirm(by negotiate.CarrierKind) error {
	_, err := w.Write(negotiate.AppendConfirm(nil, negotiate.Confirm{Version: 1, Carrier: by}))
	return err
}
