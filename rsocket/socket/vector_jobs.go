package socket

import "github.com/smcgw/smcgw/verbs"

// job is a function to run by the holder of the token.
type job struct {
	run  func()
	done chan struct{}
}

// do runs f with the token and returns after it. It must not be called with the token held.
func (v *vector) do(f func()) error {
	j := job{run: f, done: make(chan struct{})}
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return verbs.ErrClosed
	}
	v.jobs = append(v.jobs, j)
	v.hasJobs.Store(true) // with mu held: end looks behind closed
	v.mu.Unlock()
	v.kick()
	<-j.done
	return nil
}

// try is do for what can fail.
func (v *vector) try(f func() error) (err error) {
	if doErr := v.do(func() { err = f() }); doErr != nil {
		return doErr
	}
	return err
}

func (v *vector) runJobs() {
	v.hasJobs.Store(false)
	v.mu.Lock()
	jobs := v.jobs
	v.jobs = nil
	v.mu.Unlock()
	for _, j := range jobs {
		j.run()
		close(j.done)
	}
}

// drainJobs runs what was given to do before it was closed.
func (v *vector) drainJobs() {
	v.serve()
	v.driver.Flush()
}
