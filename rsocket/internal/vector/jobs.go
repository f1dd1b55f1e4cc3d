package vector

import "github.com/smcgw/smcgw/verbs"

// job is a function to run by the holder of the token.
type job struct {
	run  func()
	done chan struct{}
}

// Do runs f with the token and returns after it. It must not be called with the token held.
func (v *Vector) Do(f func()) error {
	j := job{run: f, done: make(chan struct{})}
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return verbs.ErrClosed
	}
	v.jobs = append(v.jobs, j)
	v.hasJobs.Store(true) // with mu held: end looks after closed
	v.mu.Unlock()
	v.Kick()
	<-j.done
	return nil
}

// Try is Do for what can fail.
func (v *Vector) Try(f func() error) (err error) {
	if doErr := v.Do(func() { err = f() }); doErr != nil {
		return doErr
	}
	return err
}

func (v *Vector) runJobs() {
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
func (v *Vector) drainJobs() {
	v.serve()
	v.driver.Flush()
}
