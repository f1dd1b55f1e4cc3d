package daemon

import (
	"context"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/gateway/admin"
)

// Metrics are those of a gateway, by name and labels.
type Metrics map[string]float64

// ReadMetrics reads the metrics of the gateway behind an admin socket.
func ReadMetrics(ctx context.Context, c *admin.Client) (Metrics, error) {
	text, err := c.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	m := Metrics{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			if m[line[:i]], err = strconv.ParseFloat(line[i+1:], 64); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

// Sum adds up the series of one name.
func (m Metrics) Sum(name string) (v float64) {
	for series, x := range m {
		if series == name || strings.HasPrefix(series, name+"{") {
			v += x
		}
	}
	return v
}
