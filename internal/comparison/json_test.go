package comparison

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJSONRoundsThatFailedAreNull(t *testing.T) {
	r := &Report{Rounds: 3, Series: []Series{{Work: "a<b>&\"", Variant: TCP, Unit: "µs", Better: Less, Values: []float64{1, nan, math.Inf(-1)}}}}
	var b bytes.Buffer
	require.NoError(t, r.JSON(&b))
	require.Equal(t, 1, strings.Count(b.String(), "\n"))
	require.Contains(t, b.String(), `"values":[1,null,null]`)
	require.Contains(t, b.String(), `"schema":"smcgw.bench/v1"`)
	require.Contains(t, b.String(), `"spread":{"median":1,"min":1,"max":1,"n":1}`)
	require.Contains(t, b.String(), `"commands":[],"rounds":3,`)

	var back Report
	require.NoError(t, json.Unmarshal(b.Bytes(), &back))
	require.Equal(t, r.Series[0].Work, back.Series[0].Work)
	require.Equal(t, Less, back.Series[0].Better)
	require.Len(t, back.Series[0].Values, 3)
	require.True(t, math.IsNaN(back.Series[0].Values[1]))
	require.Equal(t, 1, back.Series[0].Spread().N)
}

func TestJSONEmpty(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, (&Report{}).JSON(&b))
	require.Contains(t, b.String(), `"series":[]`)
	require.Contains(t, b.String(), `"notes":[]`)
	b.Reset()
	require.NoError(t, (&Report{Series: []Series{{Work: "w", Note: "not installed"}}}).JSON(&b))
	require.Contains(t, b.String(), `"values":[],"note":"not installed"`)
}

func TestJSONRefusesOtherDirections(t *testing.T) {
	var s Series
	require.ErrorContains(t, json.Unmarshal([]byte(`{"work":"w","variant":"v","better":"sideways"}`), &s), `"sideways"`)
	require.Error(t, json.Unmarshal([]byte(`{"values":"x"}`), &s))
}

// What is read is written as it was, wherever the text ends.
func FuzzSeries(f *testing.F) {
	f.Add([]byte(`{"work":"w","variant":"tcp","unit":"µs","better":"less","values":[1.5,null],"note":"n"}`))
	f.Add([]byte(`{"better":"more"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s, again Series
		if s.UnmarshalJSON(b) != nil {
			return
		}
		text, err := s.MarshalJSON()
		require.NoError(t, err)
		require.NoError(t, again.UnmarshalJSON(text))
		second, err := again.MarshalJSON()
		require.NoError(t, err)
		require.Equal(t, string(text), string(second))
	})
}

func TestSeriesTruncated(t *testing.T) {
	text := []byte(`{"work":"w","variant":"tcp","better":"less","values":[1.5,null]}`)
	var s Series
	require.NoError(t, s.UnmarshalJSON(text))
	for i := range text {
		require.Error(t, s.UnmarshalJSON(text[:i]), "%s", text[:i])
	}
}

func TestThisMachine(t *testing.T) {
	m := ThisMachine("reno")
	require.Positive(t, m.CPUs)
	require.NotEmpty(t, m.Kernel)
	require.NotEmpty(t, m.GoVersion)
	require.Equal(t, "reno", m.CongestionControl)
	require.False(t, m.Time.IsZero())
	require.NotEmpty(t, ThisMachine("").CongestionControl)
}

func TestCPUModel(t *testing.T) {
	require.Equal(t, "A B @ 2GHz", cpuModel("processor\t: 0\nmodel name\t: A B @ 2GHz\nprocessor: 1\nmodel name: C\n"))
	require.Empty(t, cpuModel("Hardware: none"))
	require.Empty(t, text("/proc/no such file"))
}
