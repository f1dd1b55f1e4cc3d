package bench

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"strings"
)

// Token is the secret that lets a host measure against a server: a client that has it may make the server send and
// receive as fast as it can. It is never transmitted.
type Token [16]byte

// ErrToken is an invalid token.
var ErrToken = errors.New("no token of smcgw bench --serve: 26 letters and digits")

var tokenText = base32.StdEncoding.WithPadding(base32.NoPadding)

// NewToken makes a token.
func NewToken() (t Token) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// String returns the token as text for users.
func (t Token) String() string { return strings.ToLower(tokenText.EncodeToString(t[:])) }

// ParseToken parses the output of String, in either case.
func ParseToken(s string) (t Token, err error) {
	b, err := tokenText.DecodeString(strings.ToUpper(strings.TrimSpace(s)))
	if err != nil || len(b) != len(t) {
		return t, ErrToken
	}
	return Token(b), nil
}

// proof proves that its maker knows the token. It includes the maker's side, so that one side's proof cannot be
// replayed as the other's.
func (t Token) proof(side string, server, client [nonceSize]byte) (p [proofSize]byte) {
	m := hmac.New(sha256.New, t[:])
	m.Write([]byte("smcgw bench " + side))
	m.Write(server[:])
	m.Write(client[:])
	copy(p[:], m.Sum(nil))
	return p
}

// The makers of proofs.
const (
	measuring = "measuring"
	serving   = "serving"
)

func equal(a, b [proofSize]byte) bool { return hmac.Equal(a[:], b[:]) }
