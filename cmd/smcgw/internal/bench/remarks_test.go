package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRemarks(t *testing.T) {
	var r remarks
	r.add(measured{count: 5}, carriage{as: 5})
	require.Empty(t, r.String())
	r.add(measured{count: 8, failed: 2}, carriage{as: 1, other: 4, reason: "rate_limit"})
	r.add(measured{}, carriage{other: 1, reason: "mode"})
	r.failure = "connection refused"
	require.Equal(t, "fallback: rate_limit (5 of 11 connections looked up); 2 of 15 connections failed; connection refused", r.String())
}
