// Package jobs does for a device what takes longer than a loop or a lock may wait.
package jobs
