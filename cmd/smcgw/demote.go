package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

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
