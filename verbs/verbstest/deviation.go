package verbstest

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
)

// deviantPatience is enough for a rule that holds after all; rules that wait in vain take this long.
const deviantPatience = 2 * time.Second

// breaks runs a rule that the device is known to break.
func breaks(t *testing.T, p *Pair, c test, how string) {
	known := *p
	known.Patience = deviantPatience
	r := &recorder{TB: t}
	r.do(func() { c.run(newEnv(r, &known)) })
	r.end()
	if r.failure == "" {
		t.Errorf("the device deviates no more: %s", how)
		return
	}
	t.Logf("known deviation: %s", how)
}

// recorder is a test that is expected to fail.
type recorder struct {
	testing.TB

	failure  string
	cleanups []func()
}

// do runs a part of the test in its own goroutine, which FailNow can end.
func (r *recorder) do(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// end cleans up, as the end of a test does.
func (r *recorder) end() {
	for _, f := range slices.Backward(r.cleanups) {
		r.do(f)
	}
}

func (r *recorder) note(text string) {
	if r.failure == "" {
		r.failure = text
	}
}

// Failed and the methods below are those of testing.TB that concern failures.
func (r *recorder) Failed() bool { return r.failure != "" }

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Fail() { r.note("failed") }

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Error(args ...any) { r.note(fmt.Sprint(args...)) }

func (r *recorder) Errorf(format string, args ...any) { r.note(fmt.Sprintf(format, args...)) }

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
