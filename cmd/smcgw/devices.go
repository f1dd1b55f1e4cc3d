package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

func newDevices(e *env) *cobra.Command {
	var counters, details bool
	c := &cobra.Command{
		Use:   "devices",
		Short: "List the RDMA devices of the gateway and the adapters of the host",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := e.reach()
			defer c.Close()
			list, err := c.Devices(cmd.Context())
			if err != nil {
				return err
			}
			switch {
			case e.json:
				return e.printJSON(list)
			case counters:
				return e.list(screen.Listing{Rows: counterRows(list.Devices)})
			case details:
				return e.list(screen.Listing{Rows: adapterDetails(&list.RDMA)})
			}
			if err := e.list(screen.Listing{Rows: deviceRows(list.Devices)}); err != nil {
				return err
			}
			if err := e.printNotes(list.Devices); err != nil {
				return err
			}
			return e.printAdapters(&list.RDMA)
		},
	}
	c.Flags().BoolVar(&details, "adapters", false, "print all that the kernel tells of RDMA adapters instead, one fact per line")
	c.Flags().BoolVar(&counters, "counters", false, "print limits and counters instead, one per line")
	return withSocket(e, noun(e, withList(e, c)))
}

func deviceRows(devices []report.DeviceInfo) [][]string {
	rows := [][]string{{"DEVICE", "CARRIER", "STATE", "UDP", "MTU", "QPS", "GIDS"}}
	for i := range devices {
		d := &devices[i]
		row := []string{d.Name, string(d.Carrier), string(d.State), "", "", strconv.FormatUint(d.Use["qps"], 10), ""}
		if d.UDPPort != 0 {
			row[3] = strconv.Itoa(int(d.UDPPort))
		}
		if d.MTU != 0 {
			row[4] = strconv.Itoa(d.MTU)
		}
		var gids []string
		for _, g := range d.GIDs {
			gids = append(gids, g.Unmap().String())
		}
		row[6] = strings.Join(gids, ",")
		rows = append(rows, row)
	}
	return rows
}

// counterRows lists every number of every device.
func counterRows(devices []report.DeviceInfo) [][]string {
	rows := [][]string{{"DEVICE", "NAME", "VALUE"}}
	for i := range devices {
		d := &devices[i]
		add := func(name string, v uint64) { rows = append(rows, []string{d.Name, name, strconv.FormatUint(v, 10)}) }
		if d.Limits != (report.DeviceLimits{}) {
			add("limit.vectors", uint64(d.Limits.Vectors))
			add("limit.max_qp", uint64(d.Limits.MaxQP))
			add("limit.max_qp_wr", uint64(d.Limits.MaxQPWR))
			add("limit.max_mr", uint64(d.Limits.MaxMR))
			add("limit.max_mr_size", d.Limits.MaxMRSize)
			add("limit.max_msg_size", d.Limits.MaxMsgSize)
		}
		for _, name := range slices.Sorted(maps.Keys(d.Use)) {
			add("use."+name, d.Use[name])
		}
		for _, name := range slices.Sorted(maps.Keys(d.Counters)) {
			add(name, d.Counters[name])
		}
	}
	return rows
}

// printNotes explains, below the table, why a device is not active or not as configured.
func (e *env) printNotes(devices []report.DeviceInfo) error {
	for i := range devices {
		if d := &devices[i]; d.Error != "" || d.Note != "" {
			if _, err := fmt.Fprint(e.stdout, e.screen(e.stdout).Paragraph(d.Name+": "+cmp.Or(d.Error, d.Note))); err != nil {
				return printed(err)
			}
		}
	}
	return nil
}

// printAdapters lists the ports of the host's adapters, why one cannot be used, and what an operator should know. For a
// host without adapters it prints nothing.
func (e *env) printAdapters(h *sysfs.RDMA) error {
	if len(h.Adapters) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(e.stdout); err != nil {
		return printed(err)
	}
	if err := e.list(screen.Listing{Rows: adapterRows(h)}); err != nil {
		return err
	}
	for _, s := range append(unusablePorts(h), h.Hints()...) {
		if _, err := fmt.Fprint(e.stdout, e.screen(e.stdout).Paragraph(s)); err != nil {
			return printed(err)
		}
	}
	return nil
}

func adapterRows(h *sysfs.RDMA) [][]string {
	rows := [][]string{{"ADAPTER", "LAYER", "STATE", "SPEED", "DRIVER", "FIRMWARE", "NODE", "ROCEV2"}}
	eachPort(h, func(a *sysfs.Adapter, p *sysfs.Port) {
		rows = append(rows, []string{a.PortName(p), p.LinkLayer, p.State, speed(p.Rate), driver(a), a.Firmware, node(a), gids(p)})
	})
	return rows
}

func eachPort(h *sysfs.RDMA, f func(*sysfs.Adapter, *sysfs.Port)) {
	for i := range h.Adapters {
		a := &h.Adapters[i]
		for j := range a.Ports {
			f(a, &a.Ports[j])
		}
	}
}

// unusablePorts lists why the gateway cannot use ports.
func unusablePorts(h *sysfs.RDMA) (list []string) {
	eachPort(h, func(a *sysfs.Adapter, p *sysfs.Port) {
		if p.Unusable != "" {
			list = append(list, a.PortName(p)+": cannot be used: "+p.Unusable)
		}
	})
	return list
}

// speed returns a rate without its number of lanes.
func speed(rate string) string {
	short, _, _ := strings.Cut(rate, " (")
	return strings.ReplaceAll(short, " ", "")
}

// driver returns the driver of the adapter; for a software driver with the network device below it.
func driver(a *sysfs.Adapter) string {
	if a.Driver == "" && a.Parent != "" {
		return "software on " + a.Parent
	}
	return a.Driver
}

func node(a *sysfs.Adapter) string {
	if a.Verbs == nil {
		return ""
	}
	return strings.TrimPrefix(a.Verbs.Path, "/dev/infiniband/")
}

// gids lists the entries by which connections can be carried: index and address.
func gids(p *sysfs.Port) string {
	var list []string
	for i := range p.GIDs {
		if g := &p.GIDs[i]; g.Type == sysfs.RoCEv2 {
			list = append(list, strconv.Itoa(g.Index)+"="+g.Addr().String())
		}
	}
	return strings.Join(list, ",")
}

// adapterDetails lists everything, one fact per line.
func adapterDetails(h *sysfs.RDMA) [][]string {
	rows := [][]string{{"ADAPTER", "NAME", "VALUE"}}
	if len(h.Adapters) == 0 {
		return rows
	}
	add := func(of, name, value string) {
		if value != "" {
			rows = append(rows, []string{of, name, value})
		}
	}
	add("", "rdma_namespaces", h.Namespaces)
	add("", "memlock", memlock(h.Memlock))
	for i := range h.Adapters {
		a := &h.Adapters[i]
		add(a.Name, "node_type", a.Node)
		add(a.Name, "driver", driver(a))
		add(a.Name, "firmware", a.Firmware)
		add(a.Name, "board", a.Board)
		add(a.Name, "guid", a.GUID)
		add(a.Name, "pci", a.PCI)
		if a.NUMA >= 0 {
			add(a.Name, "numa", strconv.Itoa(a.NUMA))
		}
		if v := a.Verbs; v != nil {
			add(a.Name, "node", v.Path)
			add(a.Name, "node.problem", v.Problem)
		}
		addNumbers(add, a.Name, "cgroup.", a.Limits)
		addNumbers(add, a.Name, "use.", a.Use)
		for j := range a.Ports {
			addPort(add, a.PortName(&a.Ports[j]), &a.Ports[j])
		}
	}
	return rows
}

func addNumbers(add func(of, name, value string), of, prefix string, m map[string]uint64) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		add(of, prefix+k, strconv.FormatUint(m[k], 10))
	}
}

func addPort(add func(of, name, value string), of string, p *sysfs.Port) {
	add(of, "link_layer", p.LinkLayer)
	add(of, "state", p.State)
	add(of, "physical_state", p.Physical)
	add(of, "rate", p.Rate)
	if p.LID != 0 {
		add(of, "lid", strconv.Itoa(int(p.LID)))
	}
	for i := range p.GIDs {
		g := &p.GIDs[i]
		add(of, "gid."+strconv.Itoa(g.Index), strings.TrimSpace(g.Addr().String()+" "+g.Type+" "+g.Device))
	}
	add(of, "traffic_class", p.TrafficClass)
	add(of, "cm_tos", p.TOS)
	if d := p.Priorities; d != nil {
		add(of, "pfc", strings.Trim(fmt.Sprint(d.PFC), "[]"))
		for _, code := range slices.Sorted(maps.Keys(d.DSCP)) {
			add(of, "dscp."+strconv.Itoa(code), "priority "+strconv.Itoa(d.DSCP[code]))
		}
	}
	add(of, "unusable", p.Unusable)
}

func memlock(n int64) string {
	if n < 0 {
		return "unlimited"
	}
	return screen.Size(uint64(n))
}

// adapterNotes returns check's lines about the host's adapters and what the configuration does with them.
func adapterNotes(c *config.Config, h *sysfs.RDMA) (list []string) {
	eachPort(h, func(a *sysfs.Adapter, p *sysfs.Port) {
		list = append(list, fmt.Sprintf("%s: %s, %s, %s, %s, firmware %s", a.PortName(p), p.LinkLayer, p.State, speed(p.Rate), driver(a), orDash(a.Firmware)))
		if g := gids(p); g != "" {
			list = append(list, a.PortName(p)+": RoCE v2 GIDs "+g)
		}
		if s := beside(c, a, p); s != "" {
			list = append(list, a.PortName(p)+": "+s)
		}
	})
	if len(list) > 0 {
		list = append(list, "this shell may lock "+memlock(h.Memlock)+" of memory")
	}
	return append(append(list, unusablePorts(h)...), h.Hints()...)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// beside returns what an adapter means for the soft device.
func beside(c *config.Config, a *sysfs.Adapter, p *sysfs.Port) string {
	if !slices.Contains(c.Carriers, report.DeviceSoft) || !a.TakesRoCE(p, c.Soft.UDPPort) {
		return ""
	}
	return fmt.Sprintf("takes UDP port %d at its addresses: soft receives on %d there", c.Soft.UDPPort, c.Soft.AlternatePort())
}
