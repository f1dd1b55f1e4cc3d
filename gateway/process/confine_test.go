package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/testnet"
)

// confineVariable has the test binary confine itself and print what is left.
const confineVariable = "SMCGW_TEST_CONFINE"

// confined is the child of TestConfineChangesEveryThread.
func confined() int {
	if alreadyConfined([]cap.Value{cap.NET_ADMIN}) {
		fmt.Println("confined before")
		return 1
	}
	if err := confineTo(cap.NET_ADMIN); err != nil {
		fmt.Println(err)
		return 1
	}
	if !alreadyConfined([]cap.Value{cap.NET_ADMIN}) || alreadyConfined(nil) {
		fmt.Println("not confined, or to nothing")
		return 1
	}
	tasks, _ := filepath.Glob("/proc/self/task/*/status")
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		fmt.Printf("%s", text)
	}
	return 0
}

// settled is the child of TestSettleBeginsAnew: it confines itself and begins again.
func settled() int {
	if os.Getenv(LegsEnv) == "" {
		r, _, err := os.Pipe()
		if err == nil {
			err = errors.Join(os.Setenv(LegsEnv, strconv.Itoa(int(r.Fd()))), confineTo(cap.NET_ADMIN), Settle())
		}
		fmt.Println("not begun anew:", err)
		return 1
	}
	if err := Settle(); err != nil || !alreadyConfined([]cap.Value{cap.NET_ADMIN}) {
		fmt.Println("not settled:", err)
		return 1
	}
	keeper, err := InheritedLegs()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("settled with", keeper.Name())
	return 0
}

// TestSettleBeginsAnew: a process that has confined itself begins again once, confined, and
// with its keeper.
func TestSettleBeginsAnew(t *testing.T) {
	testnet.Require(t, "root")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), confineVariable+"=settle")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "settled with connection to the keeper of the legs\n", string(out))
	t.Setenv(LegsEnv, "")
	require.ErrorIs(t, Settle(), errNotInherited)
}

func TestConfineChangesEveryThread(t *testing.T) {
	testnet.Require(t, "root")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), confineVariable+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	want := map[string]string{
		"CapInh": fmt.Sprintf("%016x", 0), "CapAmb": fmt.Sprintf("%016x", 0), "NoNewPrivs": "1",
		"CapPrm": fmt.Sprintf("%016x", 1<<unix.CAP_NET_ADMIN),
	}
	want["CapEff"], want["CapBnd"] = want["CapPrm"], want["CapPrm"]
	threads := bytes.Count(out, []byte("CapEff:"))
	require.Greater(t, threads, 1, "%s", out)
	for name, value := range want {
		require.Equal(t, threads, strings.Count(string(out), name+":\t"+value+"\n"), "%s\n%s", name, out)
	}
}

// TestRaiseMemlock: the soft limit is what the hard one allows, at least.
func TestRaiseMemlock(t *testing.T) {
	var before, after unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before))
	low := before
	low.Cur = 64 << 10
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low))
	raiseMemlock()
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &after))
	require.Equal(t, after.Max, after.Cur)
	require.GreaterOrEqual(t, after.Cur, before.Cur)
}

func TestGarbagePercent(t *testing.T) {
	require.Equal(t, 800, garbagePercent(0))
	require.Equal(t, 800, garbagePercent(4<<20))
	require.Equal(t, 100, garbagePercent(garbageFloor))
	require.Equal(t, 100, garbagePercent(1<<30))
	require.Equal(t, 100, garbagePercent(math.MaxUint64))
}

func TestMemoryIsGivenBack(t *testing.T) {
	var g Garbage
	now := time.Unix(1000, 0)
	require.False(t, g.Due(garbageFloor-1, now))
	require.True(t, g.Due(garbageFloor, now))
	require.False(t, g.Due(garbageFloor+1, now), "nothing since")
	require.False(t, g.Due(3*garbageFloor, now.Add(freePause-1)), "too often")
	require.True(t, g.Due(3*garbageFloor, now.Add(freePause)))
	require.False(t, g.Due(3*garbageFloor, now.Add(9*freePause)))
}

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	switch os.Getenv(confineVariable) {
	case "":
	case "settle":
		os.Exit(settled())
	default:
		os.Exit(confined())
	}
	if os.Getenv(lastsEnv) != "" {
		time.Sleep(time.Second)
		os.Exit(0)
	}
	if os.Getenv(succeedEnv) != "" {
		fmt.Println(CanSucceed())
		os.Exit(0)
	}
	os.Exit(leak.Main(m))
}

// What the kernel holds keeps its caller no longer than the caller wants, and there is one of it.
func TestLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lane
		errFile, server := errors.New("stale file handle"), make(chan struct{})
		var begun atomic.Int32
		look := func() (int32, error) {
			n := begun.Add(1)
			<-server
			return n, errFile
		}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := Through(ctx, &l, look)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		require.EqualValues(t, 1, begun.Load())
		close(server)
		n, err := Through(t.Context(), &l, look)
		require.ErrorIs(t, err, errFile)
		require.EqualValues(t, 2, n)
	})
}
