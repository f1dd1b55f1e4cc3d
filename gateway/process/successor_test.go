package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// lastsEnv makes the program of the tests one that does nothing for a while.
const lastsEnv = "SMCGW_TEST_LASTS"

// succeedEnv makes the program of the tests one that tells whether another one could take over.
const succeedEnv = "SMCGW_TEST_SUCCEED"

// A container ends with its first process, and the gateways in it.
func TestCanSucceed(t *testing.T) {
	require.NoError(t, CanSucceed())
	testnet.Require(t, "root")
	self, err := os.Executable()
	require.NoError(t, err)
	for first, want := range map[string]error{"smcgw-guardian": errContainer, "init": nil} {
		c := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", "echo "+first+" >/proc/self/comm; "+self+"; true")
		c.Env = append(os.Environ(), succeedEnv+"=1")
		said, err := c.CombinedOutput()
		require.NoError(t, err, "%s", said)
		require.Equal(t, fmt.Sprintln(want), string(said), first)
	}
}

// script is a program that does this.
func script(t *testing.T, text string) Program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "smcgw")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700))
	return Program{Path: path, Args: []string{"-c", "some.yaml"}}
}

func TestProgramReplaced(t *testing.T) {
	p, err := OwnProgram("-c", "x")
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(p.Path))
	replaced, err := p.Replaced()
	require.NoError(t, err)
	require.False(t, replaced)
	replaced, err = script(t, "").Replaced()
	require.NoError(t, err)
	require.True(t, replaced)
	_, err = Program{Path: filepath.Join(t.TempDir(), "none")}.Replaced()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A successor that ends is told; one that is released is not ended, and its helper is
// what goes.
func TestSuccessor(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	s, err := script(t, `echo "$@" >`+said+`; exit 1`).Start()
	require.NoError(t, err)
	require.ErrorIs(t, <-s.Ended(), errSuccessorEnded)
	s.Release()
	text, err := os.ReadFile(said)
	require.NoError(t, err)
	require.Equal(t, "succeed -c some.yaml", strings.TrimSpace(string(text)))

	s, err = script(t, fmt.Sprint("exit ", noNamespace)).Start()
	require.NoError(t, err)
	require.ErrorIs(t, <-s.Ended(), errNoNamespace)
	s.Release()

	s, err = script(t, "cat").Start()
	require.NoError(t, err)
	select {
	case err := <-s.Ended():
		require.NoError(t, err, "it is not released")
	case <-time.After(100 * time.Millisecond):
	}
	s.Release()
	<-s.Ended()
	s, err = script(t, "cat >"+said).Start()
	require.NoError(t, err)
	s.End()
	<-s.Ended()
	text, err = os.ReadFile(said)
	require.NoError(t, err)
	require.Equal(t, string(endIt), string(text), "the helper is told")
	_, err = Program{Path: filepath.Join(t.TempDir(), "none")}.Start()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, os.ErrClosed)
}

// The helper returns with its program's end, or leaves it alone.
func TestStartDetached(t *testing.T) {
	lifeline, hold := io.Pipe()
	err := StartDetached([]string{"-test.list=^$"}, lifeline)
	require.ErrorIs(t, err, errSuccessorEnded)
	require.NoError(t, hold.Close())
	lifeline, hold = io.Pipe()
	require.NoError(t, hold.CloseWithError(errors.New("gone")))
	t.Setenv(lastsEnv, "1")
	require.NoError(t, StartDetached([]string{"-test.list=^$"}, lifeline))
	err = StartDetached([]string{"-test.list=^$"}, strings.NewReader(string(endIt)))
	require.ErrorIs(t, err, errSuccessorLate)
	require.ErrorContains(t, err, "terminated", "it is ended")
}

// The manager hears of the process that follows, and nothing after that.
func TestServiceManagerHandOver(t *testing.T) {
	f := newFakeManager(t)
	m, err := NewServiceManager(nil)
	require.NoError(t, err)
	m.HandOver(4711)
	require.Equal(t, "MAINPID=4711", f.next())
	m.Stopping()
	require.NoError(t, f.conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = f.conn.Read(make([]byte, 100))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	m, err = NewServiceManager(nil)
	require.NoError(t, err)
	var through []string
	m.Through(func(state string) error {
		through = append(through, state)
		return nil
	})
	m.HandOver(0) // a successor that does not tell
	m.Ready()
	require.Empty(t, through)
	var none *ServiceManager
	none.HandOver(1)
	none.Through(nil)
}
