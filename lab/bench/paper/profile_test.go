package paper

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCost(t *testing.T) {
	// Half of two processors, or a second of each second.
	for unit, want := range map[string]float64{"Gbit/s": 0.5, "kreq/s": 62.5, "1/s": 62500} {
		cost, in := (&Profile{Value: 16, Unit: unit}).Cost(0.5, 2)
		require.InDelta(t, want, cost, 1e-9, unit)
		require.Equal(t, map[bool]string{true: "s/GB", false: "µs"}[unit == "Gbit/s"], in)
	}
	for _, p := range []Profile{{Value: 16, Unit: "µs"}, {Value: 0, Unit: "1/s"}, {Value: -1, Unit: "1/s"}} {
		_, in := p.Cost(0.5, 2)
		require.Empty(t, in)
	}
}

func TestItems(t *testing.T) {
	p := func(shares ...float64) (p Profile) {
		for i, s := range shares {
			p.Parts = append(p.Parts, Part{Item: strings.Fields("idle a b c")[i], Share: s})
		}
		return p
	}
	list := []Profile{p(0.5, 0.1, 0.2, 0.2), p(0.2, 0.1, 0.1, 0.6)}
	require.Equal(t, []string{"c", "b", "a", "idle"}, Items(list, 9))
	require.Equal(t, []string{"c", "idle"}, Items(list, 2))
	require.Equal(t, []string{"idle"}, Items(list, 1))
	require.Empty(t, Items(list, 0))
	require.Empty(t, Items(nil, 9))
	require.InDelta(t, 0.8, list[1].Busy(), 1e-9)
	require.Equal(t, "TCP", example().Profiles[0].Largest(1)[0].Item)
	require.Len(t, list[0].Largest(9), 3, "idle does not count")
}

func TestProfileMarkdown(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, example().ProfileMarkdown(&b, "none"))
	require.Empty(t, b.String())
	require.NoError(t, example().ProfileMarkdown(&b, "bulk, 1 stream"))
	rows := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, rows, 2+itemsShown+2)
	require.Equal(t, "| item | tcp | shm |", rows[0])
	require.Equal(t, "|---|---:|---:|", rows[1])
	require.Equal(t, "| TCP | 50.0 | 0.0 |", rows[2])
	require.Equal(t, "| busy | 70.0 (0.35 s/GB) | 100.0 (0.4 s/GB) |", rows[len(rows)-1])
}

func TestProfilesInJSON(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, example().JSON(&b))
	var back Report
	require.NoError(t, json.Unmarshal(b.Bytes(), &back))
	require.Equal(t, example().Profiles, back.Profiles)
	require.Equal(t, []string{"bulk, 1 stream"}, back.ProfiledWorks())
}
