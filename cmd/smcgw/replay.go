package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
)

// replayed reads a stream of events from a file until the context ends. A read that waits
// for more ends with the program.
func replayed(ctx context.Context, stdin io.Reader, name string, f report.ConnFilter, fn func(report.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	came, ended := make(chan report.Event), make(chan error, 1)
	go func() {
		ended <- eventsOf(stdin, name, func(ev report.Event) error {
			if ev.Conn != nil && !f.Matches(ev.Conn) {
				return nil
			}
			select {
			case came <- ev:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended: // what came before has been taken
			return err
		case ev := <-came:
			if err := fn(ev); err != nil {
				return err
			}
		}
	}
}

// eventsOf reads the events of a file.
func eventsOf(stdin io.Reader, name string, fn func(report.Event) error) error {
	if name == "-" {
		return admin.ReadEvents(stdin, fn)
	}
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	defer file.Close()
	return admin.ReadEvents(file, fn)
}
