// Package replay reads events that were written to a file or come by a pipe.
package replay
