package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

func newDrain(e *env) *cobra.Command {
	var timeout time.Duration
	var replaced bool
	c := &cobra.Command{
		Use:   "drain",
		Short: "End the gateway when the connections it carries have ended",
		Long: `Drain leaves all new connections native (reason drained), waits until those that
are carried have ended, and then the daemon ends. What is left after the timeout is
reset. The drain goes on if this command is interrupted; a second one can bring the
end nearer.

Exit status: 0 if every connection ended by itself, 1 if some were reset, 3 if the
daemon has stopped reporting.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout < 0 {
				return usagef("--timeout: %v is negative", timeout)
			}
			if timeout == 0 && cmd.Flags().Changed("timeout") { // the daemon would take it for no timeout
				return usagef("--timeout: 0 is no time: 1ms resets what is carried at once; without --timeout the configuration counts")
			}
			if replaced {
				e.socket = e.daemonAt() + config.DrainingSuffix
			}
			c := e.reach()
			defer c.Close()
			last, err := c.Drain(cmd.Context(), timeout, e.drainProgress())
			if err != nil {
				return err
			}
			if e.json {
				err = e.printJSON(last)
			}
			if err == nil && last.Flows+last.Lingering > 0 {
				return &exitError{exitFailed, fmt.Errorf("%s reset by the drain", plural(last.Flows+last.Lingering, "connection"))}
			}
			return err
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", 0, "time for the connections to end (default: what the configuration of the daemon says)")
	c.Flags().BoolVar(&replaced, "replaced", false, "drain the gateway that another has replaced at the socket")
	return withSocket(e, verb(e, c))
}

// drainProgress returns a function that shows the progress of a drain: as lines, or on a terminal as a bar of the
// connections that have ended.
func (e *env) drainProgress() func(report.DrainInfo) {
	out := e.screen(e.stdout)
	bar, most := out.Progress(), 0
	return func(i report.DrainInfo) {
		left := i.Flows + i.Lingering
		most = max(most, left)
		switch {
		case e.json:
		case i.Done:
			bar.Clear()
			fmt.Fprintf(e.stdout, "drained, %s left\n", plural(left, "connection"))
		case out.Terminal():
			bar.Show(float64(most-left), float64(most), drainText(i))
		default:
			fmt.Fprintln(e.stdout, drainText(i))
		}
	}
}

// drainText describes the progress of a drain.
func drainText(i report.DrainInfo) string {
	return fmt.Sprintf("%s left, reset in %s", plural(i.Flows+i.Lingering, "connection"), age(i.RemainingSeconds))
}

func newDemote(e *env) *cobra.Command {
	var q admin.DemoteQuery
	var carrier string
	c := &cobra.Command{
		Use:   "demote [ID...]",
		Short: "Have carried connections go on over the relay",
		Long: `Demote takes connections from their queue pairs: they go on, without losing a byte,
over the connection between the gateways that TCP's own addresses name ("relay").
That is final for a connection; new ones are carried as before. IDs are those of
"smcgw conns". With --carrier only connections of that carrier leave it. With --device
the connections of an RDMA adapter leave it, and the gateway closes it, so that its
driver can be unloaded; it is used again when it has been away, or after a reload.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				id, err := strconv.ParseUint(arg, 10, 64)
				if err != nil {
					return usagef("%q is no id of a connection: \"smcgw conns\" lists them", arg)
				}
				q.IDs = append(q.IDs, id)
			}
			if carrier != "" {
				var err error
				if q.Carrier, err = config.ParseCarrier(carrier); err != nil {
					return usagef("--carrier: %w", err)
				}
			}
			if !q.All && len(q.IDs) == 0 && q.Carrier == "" && q.Device == "" {
				return usagef("name connections, --carrier, --device or --all")
			}
			c := e.reach()
			defer c.Close()
			return e.answered(c.Demote(cmd.Context(), q))
		},
	}
	c.Flags().BoolVar(&q.All, "all", false, "all connections")
	c.Flags().StringVar(&carrier, "carrier", "", "those of a carrier: shm, hw, ib or soft")
	c.Flags().StringVar(&q.Device, "device", "", "close an RDMA adapter, as named by \"smcgw devices\"")
	return withSocket(e, verb(e, c))
}
