package admin

import (
	"context"
	"net"
	"net/http"
)

// pageMux routes the listener of the status page. A browser that another site has sent
// here under a name of its own gets nothing: that site must not read the page.
func (s *Server) pageMux() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", orNotFound(s.Page))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopbackName(r.Host) {
			writeError(w, http.StatusMisdirectedRequest, "ask by a loopback address or localhost")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// loopbackName tells whether the Host of a request is this host's own.
func loopbackName(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Page asks for the status page, as HTML with the headers that a browser should get.
func (c *Client) Page(ctx context.Context) ([]byte, http.Header, error) {
	return c.fetch(ctx, http.MethodGet, "/", nil)
}
