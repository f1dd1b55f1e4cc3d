package admin

import (
	"context"
	"net/http"
)

// Page returns the status page as HTML, with the headers that a browser should receive.
func (c *Client) Page(ctx context.Context) ([]byte, http.Header, error) {
	return c.fetch(ctx, http.MethodGet, "/", nil)
}
