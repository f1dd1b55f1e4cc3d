package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
)

// Bounds of the page's server, which has one reader.
const (
	webTimeout   = 30 * time.Second
	webMaxHeader = 8 << 10
)

// showWeb serves the status page of a daemon on a loopback port until ctx ends. Its address contains a secret, because
// other users of the host may not query the admin socket.
func (e *env) showWeb(ctx context.Context, c *admin.Client) error {
	if _, _, err := c.Page(ctx); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for a browser: %w", err)
	}
	path := "/" + rand.Text() + "/"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path+"{$}", func(w http.ResponseWriter, r *http.Request) { passPage(w, r, c) })
	srv := &http.Server{Handler: mux, ReadTimeout: webTimeout, WriteTimeout: webTimeout, IdleTimeout: webTimeout, MaxHeaderBytes: webMaxHeader}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if _, err := fmt.Fprintf(e.stdout, "http://127.0.0.1:%s%s\n", port, path); err != nil {
		return errors.Join(printed(err), l.Close())
	}
	fmt.Fprintf(e.stderr, "Served until this command ends. From another machine: ssh -L %s:127.0.0.1:%s HOST\n", port, port)
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the status page: %w", err)
	}
	return nil
}

// passPage forwards the daemon's page with its headers.
func passPage(w http.ResponseWriter, r *http.Request, c *admin.Client) {
	text, header, err := c.Page(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	for _, name := range []string{"Content-Type", "Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Cache-Control"} {
		w.Header().Set(name, header.Get(name))
	}
	_, _ = w.Write(text)
}
