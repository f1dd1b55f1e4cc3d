package policy

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

func TestSteeringConfigHasTheProtocol(t *testing.T) {
	c := config.Config{Policy: []config.Rule{
		{Match: config.Match{Proto: report.ProtoUDP, Ports: config.Ports(53)}, Action: report.ActionAccelerate},
		{Match: config.Match{Ports: config.Ports(53)}, Action: report.ActionAccelerate},
		{},
	}}.WithDefaults()
	c.StateDir = t.TempDir()
	s := Translate(c, false, slog.New(slog.DiscardHandler))
	var got []ebpf.Proto
	for _, r := range s.Policy {
		got = append(got, r.Proto)
	}
	require.EqualValues(t, 4790, s.DatagramPort)
	require.Equal(t, time.Hour, s.Retry)
	require.Equal(t, []ebpf.Proto{ebpf.ProtoUDP, ebpf.ProtoTCP, ebpf.ProtoTCP}, got)
}
