package loop

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReaperKeepsOrder: what a job puts is done after what was put before, and Close waits
// for all.
func TestReaperKeepsOrder(t *testing.T) {
	r := NewReaper()
	var did []int
	began, goOn := make(chan struct{}), make(chan struct{})
	r.Put(func() {
		close(began)
		<-goOn
		did = append(did, 0)
		r.Put(func() { did = append(did, 3) })
	})
	<-began
	r.Put(func() { did = append(did, 1) })
	r.Put(func() { did = append(did, 2) })
	close(goOn)
	r.Close()
	require.Equal(t, []int{0, 1, 2, 3}, did)
}
