package quicapp

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/quic"

	"github.com/smcgw/smcgw/lab/apps"
)

// protocol is the protocol that both sides name in their handshake.
const protocol = "smcgw-test"

var errUsage = errors.New("usage: serve-quic quic=ADDRESS | get-quic -to ADDRESS [flags]")

// Apps returns the programs: serve-quic and get-quic.
func Apps() []apps.App {
	return []apps.App{{Name: "serve-quic", Run: serve}, {Name: "get-quic", Run: get}}
}

func serverConfig() (*quic.Config, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{protocol}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return nil, err
	}
	return &quic.Config{TLSConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocol},
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}},
	}}, nil
}

// serve answers connections until it is killed.
func serve(args []string, tell func(apps.Event)) error {
	if len(args) != 1 || !strings.HasPrefix(args[0], "quic=") {
		return errUsage
	}
	cfg, err := serverConfig()
	if err != nil {
		return err
	}
	endpoint, err := quic.Listen("udp", strings.TrimPrefix(args[0], "quic="), cfg)
	if err != nil {
		tell(apps.Event{Event: "result", Mode: "quic", Failed: 1, Error: err.Error()})
		return err
	}
	tell(apps.Event{Event: "listening", Mode: "quic", Local: endpoint.LocalAddr().String()})
	for id := 0; ; id++ {
		conn, err := endpoint.Accept(context.Background())
		if err != nil {
			return err
		}
		tell(apps.Event{Event: "accepted", Mode: "quic", ID: id, Remote: conn.RemoteAddr().String()})
		go answer(conn, id, tell)
	}
}

// answer serves the streams of one connection.
func answer(conn *quic.Conn, id int, tell func(apps.Event)) {
	e := apps.Event{Event: "closed", Mode: "quic", ID: id, Remote: conn.RemoteAddr().String()}
	for {
		s, err := conn.AcceptStream(context.Background())
		if err != nil {
			_ = conn.Close()
			tell(e)
			return
		}
		if err := apps.ServeTransfer(s, &e); err != nil {
			e.Failed++
			e.Error = err.Error()
			conn.Abort(err)
			continue
		}
		e.OK++
	}
}

// get makes one connection and exchanges a number of bytes on each of several streams, one after the other.
func get(args []string, tell func(apps.Event)) error {
	var to string
	var count int
	var size int64
	var limit time.Duration
	fs := flag.NewFlagSet("get-quic", flag.ContinueOnError)
	fs.StringVar(&to, "to", "", "address and port of the server")
	fs.IntVar(&count, "count", 1, "streams")
	fs.Int64Var(&size, "size", 1000, "bytes of a stream, each way")
	fs.DurationVar(&limit, "limit", 30*time.Second, "give up after it")
	if err := fs.Parse(args); err != nil || count < 1 || size < 0 {
		return errUsage
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	e := apps.Event{Event: "result", Mode: "get-quic", Remote: to}
	err := exchangeAll(ctx, to, count, size, &e)
	if err != nil {
		e.Failed, e.Error = 1, err.Error()
	}
	tell(e)
	return err
}

func exchangeAll(ctx context.Context, to string, count int, size int64, e *apps.Event) error {
	endpoint, err := quic.Listen("udp", ":0", nil)
	if err != nil {
		return err
	}
	defer func() { _ = endpoint.Close(ctx) }()
	begun := time.Now()
	conn, err := endpoint.Dial(ctx, "udp", to, &quic.Config{TLSConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}, ServerName: protocol,
		// The server makes the certificate for its own lifetime. The bytes are checked instead.
		InsecureSkipVerify: true,
	}})
	if err != nil {
		return fmt.Errorf("dial %s: %w", to, err)
	}
	defer conn.Close()
	e.ConnectMicros = time.Since(begun).Microseconds()
	e.Local = conn.LocalAddr().String()
	var took []int64
	for i := range count {
		begun := time.Now()
		if err := exchange(ctx, conn, uint64(i), size, e); err != nil {
			return err
		}
		took = append(took, time.Since(begun).Microseconds())
		e.OK++
	}
	slices.Sort(took)
	e.Micros, e.MedianMicros = took[len(took)-1], took[len(took)/2]
	return nil
}

func exchange(ctx context.Context, conn *quic.Conn, seed uint64, size int64, e *apps.Event) error {
	s, err := conn.NewStream(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	s.SetReadContext(ctx)
	s.SetWriteContext(ctx)
	return apps.Transfer(s, seed, size, e)
}
