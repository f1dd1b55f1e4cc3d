package netdev

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestWhole(t *testing.T) {
	other := errors.New("other")
	for _, test := range []struct {
		name  string
		errs  []error // of the first questions
		want  error
		asked int
	}{
		{"at once", nil, nil, 1},
		{"links came and went", []error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted}, nil, 3},
		{"programs came", []error{fmt.Errorf("query programs: %w", unix.ENOSPC)}, nil, 2},
		{"another error", []error{unix.ENOSPC, other}, other, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			asked := 0
			list, err := Whole(func() (int, error) {
				asked++
				if asked <= len(test.errs) {
					return 0, test.errs[asked-1]
				}
				return asked, nil
			})
			require.ErrorIs(t, err, test.want)
			require.Equal(t, test.asked, asked)
			if test.want == nil {
				require.Equal(t, asked, list)
			}
		})
	}
}

// A list that never settles is an error in the end.
func TestWholeGivesUp(t *testing.T) {
	asked := 0
	_, err := Whole(func() (int, error) { asked++; return 0, netlink.ErrDumpInterrupted })
	require.ErrorIs(t, err, netlink.ErrDumpInterrupted)
	require.Equal(t, tries, asked)
}
