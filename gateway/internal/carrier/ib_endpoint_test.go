package carrier

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// TestCheckEndpoint: a queue pair counts only at the end of the path, and where its partition and
// ours let packets pass.
func TestCheckEndpoint(t *testing.T) {
	peer := negotiate.IBEndpoint{GID: ibGID(2), LID: 7, PKey: 0x8005}
	for name, c := range map[string]struct {
		own    uint16
		path   func(*rdmacm.Path)
		change func(*negotiate.IBEndpoint)
		want   error
	}{
		"the peer":            {own: 0x8005},
		"we are limited":      {own: 0x0005},
		"the peer is limited": {own: 0x8005, change: func(e *negotiate.IBEndpoint) { e.PKey = 5 }},
		"both are":            {own: 0x0005, change: func(e *negotiate.IBEndpoint) { e.PKey = 5 }, want: errPartition},
		"other partition":     {own: 0x8006, want: errPartition},
		"other LID":           {own: 0x8005, change: func(e *negotiate.IBEndpoint) { e.LID++ }, want: errOtherPath},
		"other GID":           {own: 0x8005, change: func(e *negotiate.IBEndpoint) { e.GID[15]++ }, want: errOtherPath},
		"behind a router": {
			own: 0x8005, path: func(p *rdmacm.Path) { p.HopLimit = 64 },
			change: func(e *negotiate.IBEndpoint) { e.LID++ },
		},
		"other GID behind a router": {
			own: 0x8005, path: func(p *rdmacm.Path) { p.HopLimit = 64 },
			change: func(e *negotiate.IBEndpoint) { e.GID[0]++ }, want: errOtherPath,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, at := ibPath, peer
			if c.path != nil {
				c.path(&p)
			}
			if c.change != nil {
				c.change(&at)
			}
			err := checkEndpoint(&p, c.own, &at)
			require.ErrorIs(t, err, c.want)
			require.Equal(t, errors.Is(c.want, errOtherPath), errors.Is(err, ErrNoPath), "what lasts, and what may pass")
		})
	}
}

func TestPathAddress(t *testing.T) {
	p := ibPath
	require.Equal(t, verbs.AHAttr{DLID: 7, SL: 3, Port: 1}, pathAddress(&p, 3, 4, false), "within the subnet")
	p.SLID = 5
	require.EqualValues(t, 2, pathAddress(&p, 3, 4, false).SrcPathBits)
	require.Equal(t, verbs.AHAttr{
		DGID: ibGID(2), DLID: 7, SL: 3, SrcPathBits: 2, SGIDIndex: 4, FlowLabel: 0x1234, TrafficClass: 0x20, Port: 1,
	}, pathAddress(&p, 3, 4, true), "a port that needs a global header")
	p.SLID, p.HopLimit = 3, 64
	require.Equal(t, verbs.AHAttr{
		DGID: ibGID(2), DLID: 7, SL: 3, SGIDIndex: 4, FlowLabel: 0x1234, HopLimit: 64, TrafficClass: 0x20, Port: 1,
	}, pathAddress(&p, 3, 4, false))
}

func TestBeginsAt(t *testing.T) {
	p := ibPath
	require.True(t, beginsAt(&p, ibGID(1), 3))
	require.True(t, beginsAt(&p, ibGID(1), 2), "a LID of several")
	require.False(t, beginsAt(&p, ibGID(1), 4))
	require.False(t, beginsAt(&p, ibGID(3), 3))
	p.SLID = 0
	require.False(t, beginsAt(&p, ibGID(1), 0), "no LID yet")
	p.SLID = 0xc000
	require.False(t, beginsAt(&p, ibGID(1), 0xc000), "a multicast LID")
}

func TestCheckPartition(t *testing.T) {
	require.NoError(t, checkPartition(0x8005))
	require.NoError(t, checkPartition(5))
	require.ErrorIs(t, checkPartition(0), ErrNoPath)
	require.ErrorIs(t, checkPartition(0x8000), ErrNoPath)
}

func TestSamePath(t *testing.T) {
	other := ibPath
	other.Rate, other.PacketLifetime = 1, 1
	require.True(t, samePath(ibPath, other))
	other.SL++
	require.False(t, samePath(ibPath, other))
}
