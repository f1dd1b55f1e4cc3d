package vector

import "github.com/smcgw/smcgw/verbs"

// job is a function for the token holder to run.
type job struct {
	run  func()
	done chan struct{}
}

// Do runs f with the token held and returns after it. The caller must not hold the token.
func (v *Vector) Do(f func()) error {
	j := job{run: f, done: make(chan struct{})}
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return verbs.ErrClosed
	}
	v.jobs = append(v.jobs, j)
	v.hasJobs.Store(true) // with mu held, so that end, which sets closed first, sees it
	v.mu.Unlock()
	v.Kick()
	<-j.done
	return nil
}

// Try is Do for a function that can fail.
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

// drainJobs runs the jobs that were queued before the vector was closed.
func (v *Vector) drainJobs() {
	v.serve()
	v.driver.Flush()
}
