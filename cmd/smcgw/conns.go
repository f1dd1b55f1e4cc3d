package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// connsFlags are the flags of conns.
type connsFlags struct {
	query  report.ConnQuery
	filter filterFlags
}

func newConns(e *env) *cobra.Command {
	f := &connsFlags{}
	c := &cobra.Command{
		Use:   "conns",
		Short: "List connections, which way each goes, and why not another",
		Long: fmt.Sprintf(`Conns lists the connections that are carried, and those in process. With
--closed it lists those that were carried and have ended, with --native those that
stayed native, with --all all three. Of the past the gateway keeps the last %d of
each kind, for TCP and for UDP; "smcgw watch" says how many it missed.

PROGRAM and PID are of the process that has the socket, while there is one that the
gateway may look into. CARRIER of a connection that nothing carries is its state. AT is
when one ended, or was decided to stay native. "smcgw top" shows what connections move a
second.

-o wide adds the user and cgroup of the process; of the queue pair its number, the round
trip, the packets that were sent again (soft), the bytes that wait to be sent, the credits
that the peer has given, and what it waits for (BLOCKED); of connections in process the
bytes of both directions that went by rings and by the kernel, and the tokens that woke a
program. --json -o wide has how far each direction of a queue pair is, too.`, report.HistorySize),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	fs := c.Flags()
	fs.BoolVar(&f.query.Closed, "closed", false, "list the last carried connections that ended")
	fs.BoolVar(&f.query.Native, "native", false, "list the last connections that stayed native")
	fs.BoolVar(&f.query.All, "all", false, "list what is carried, what ended and what stayed native")
	f.filter.register(c)
	return withSocket(e, noun(e, withList(e, c)))
}

func (f *connsFlags) run(ctx context.Context, e *env) error {
	filter, err := f.filter.parse()
	if err != nil {
		return err
	}
	q := f.query
	q.Filter, q.Programs, q.Details = filter, true, e.output == outputWide
	c := e.reach()
	defer c.Close()
	list, err := c.Conns(ctx, q)
	if err != nil {
		return err
	}
	return errors.Join(f.show(e, list), f.hint(e, list))
}

// hint tells an operator at a terminal where to find connections that are not carried.
func (f *connsFlags) hint(e *env, list admin.ConnList) error {
	if len(list.Conns) > 0 || !f.query.Live() || f.query.All || e.json || !e.screen(e.stdout).Terminal() {
		return nil
	}
	_, err := fmt.Fprintln(e.stderr, "none is carried: --closed lists those that ended, --native those left native")
	return printed(err)
}

func (f *connsFlags) show(e *env, list admin.ConnList) error {
	if e.json {
		return e.printJSON(list)
	}
	hidden := append(wideOfEnds(), "STATE", "RTT", "RETRANS")
	if !slices.ContainsFunc(list.Conns, func(c report.ConnInfo) bool { return c.Proto != string(report.ProtoTCP) }) {
		hidden = append(hidden, "PROTO")
	}
	return e.list(screen.Listing{Rows: connRows(list.Conns, f.query.Ended() || f.query.Natives(), false), Wide: hidden, Spare: spareOfConns()})
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, span time.Duration) error {
	wait := time.NewTimer(span)
	defer wait.Stop()
	select {
	case <-wait.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rates sets what connections have moved per second since the previous list, or since they began.
func rates(conns []report.ConnInfo, before map[uint64]report.ConnInfo, seconds float64) {
	for i := range conns {
		c := &conns[i]
		if c.End != "" || seconds <= 0 {
			continue
		}
		was := before[c.ID]
		c.TxRate = float64(c.TxBytes-min(c.TxBytes, was.TxBytes)) / seconds
		c.RxRate = float64(c.RxBytes-min(c.RxBytes, was.RxBytes)) / seconds
	}
}

// connRows makes the table; ended adds the column that says how each ended, measured the columns of the rates.
func connRows(conns []report.ConnInfo, ended, measured bool) [][]string {
	rows := [][]string{{"ID", "PROTO", "SIDE", "LOCAL", "REMOTE", "STATE", "WAY", "CARRIER", "REASON", "TX", "RX", "AGE", "RTT", "RETRANS"}}
	known := slices.ContainsFunc(conns, func(c report.ConnInfo) bool { return c.Program != nil })
	if known {
		rows[0] = append(rows[0], "PROGRAM", "PID", "UID", "CGROUP")
	}
	inProcess := slices.ContainsFunc(conns, func(c report.ConnInfo) bool { return c.InProcess != nil })
	if inProcess {
		rows[0] = append(rows[0], "RING", "SPILLED", "TOKENS")
	}
	paired := slices.ContainsFunc(conns, func(c report.ConnInfo) bool { return c.Pair != nil })
	if paired {
		rows[0] = append(rows[0], "QPN", "UNSENT", "CREDITS", "BLOCKED")
	}
	if measured {
		rows[0] = append(rows[0], "TX/S", "RX/S")
	}
	if ended {
		rows[0] = append(rows[0], "END", "AT")
	}
	now := time.Now()
	for i := range conns {
		c := &conns[i]
		row := []string{
			strconv.FormatUint(c.ID, 10), c.Proto, string(c.Side), c.Local.String(), c.Remote.String(), c.State,
			string(c.Way), howCell(c), reasonCell(c), sizeCell(c, c.TxBytes), sizeCell(c, c.RxBytes), ageCell(c), "", "",
		}
		if known {
			row = append(row, programCells(c.Program)...)
		}
		if inProcess {
			row = append(row, endCells(c.InProcess)...)
		}
		if paired {
			row = append(row, pairCells(c.Pair)...)
		}
		if p := c.Pair; p != nil && p.RoundTripSeconds > 0 {
			row[12], row[13] = screen.RoundTrip(p.RoundTripSeconds), strconv.FormatUint(p.Retransmits, 10)
		}
		if measured {
			row = append(row, rate(c.TxRate), rate(c.RxRate))
		}
		if ended {
			row = append(row, string(c.End), screen.Moment(c.EndedAt, now))
		}
		rows = append(rows, row)
	}
	return rows
}

// spareOfConns returns the columns that say least about why a connection is not carried.
func spareOfConns() []string { return []string{"SIDE", "TX RX", "ID", "AGE", "AT"} }

// wideOfEnds returns the least important columns of programs, queue pairs and connections in process.
func wideOfEnds() []string {
	return []string{"UID", "CGROUP", "RING", "SPILLED", "TOKENS", "QPN", "UNSENT", "CREDITS", "BLOCKED"}
}

// programCells is empty if it is not known which program has the socket, or none has it any more.
func programCells(p *report.Program) []string {
	if p == nil {
		return make([]string, 4)
	}
	pid := ""
	if p.PID != 0 {
		pid = strconv.Itoa(p.PID)
	}
	return []string{p.Name, pid, strconv.FormatUint(uint64(p.UID), 10), p.Cgroup}
}

// endCells shows what is known of the end of a program with the library; bytes are of both directions together.
func endCells(p *report.InProcessEnd) []string {
	if p == nil {
		return make([]string, 3)
	}
	return []string{screen.Size(p.TxRing + p.RxRing), screen.Size(p.TxSpilled + p.RxSpilled), strconv.FormatUint(p.TxTokens+p.RxTokens, 10)}
}

// ageCell is empty for native connections, whose end is not observed, and for those whose beginning was not.
func ageCell(c *report.ConnInfo) string {
	if c.End == report.EndNative || c.AgeSeconds == 0 {
		return ""
	}
	return age(c.AgeSeconds)
}

// howCell shows what carries a connection, or else its state.
func howCell(c *report.ConnInfo) string { return cmp.Or(string(c.Carrier), c.State) }

// sizeCell is empty if bytes are not counted, as for native connections.
func sizeCell(c *report.ConnInfo, n uint64) string {
	if c.Carrier == report.CarrierNone && c.Way != report.WayInProcess {
		return ""
	}
	return screen.Size(n)
}

// rate renders bytes per second, or "" for none.
func rate(n float64) string {
	if n < 1 {
		return ""
	}
	return screen.Size(uint64(n)) + "/s"
}

// reasonCell shows the reason and the side that decided, or else why the connection was demoted.
func reasonCell(c *report.ConnInfo) string {
	if c.Reason == "" && c.Demoted != "" {
		return fmt.Sprintf("demoted(%s)", c.Demoted)
	}
	if c.Reason == "" || c.DecidedBy == "" {
		return c.Reason
	}
	return fmt.Sprintf("%s(%s)", c.Reason, c.DecidedBy)
}

// pairCells shows what is known of the queue pair of a connection.
func pairCells(p *report.PairInfo) []string {
	if p == nil {
		return make([]string, 4)
	}
	return []string{strconv.FormatUint(uint64(p.QPN), 10), screen.Size(uint64(p.Unsent)), strconv.Itoa(p.Credits), p.Blocked}
}

// filterFlags are the flags that select connections.
type filterFlags struct {
	port                              uint16
	peer, carrier, reason, way, ended string
}

func (f *filterFlags) register(c *cobra.Command) {
	f.registerAddress(c)
	fs := c.Flags()
	fs.StringVar(&f.carrier, "carrier", "", "only carried by shm, hw, ib, soft or relay")
	fs.StringVar(&f.reason, "reason", "", "only with this reason: \"smcgw codes\" lists them; operator and peer are those of demotions")
	fs.StringVar(&f.way, "way", "", "only going this way: native, in-process or steered")
	fs.StringVar(&f.ended, "end", "", "only those that ended as closed, aborted or native")
	for name, known := range f.known() {
		_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
}

// registerAddress registers only the flags that select by address.
func (f *filterFlags) registerAddress(c *cobra.Command) {
	c.Flags().Uint16Var(&f.port, "port", 0, "only with this port at either end")
	c.Flags().StringVar(&f.peer, "peer", "", "only with this address, or with those of a prefix")
}

// known returns the values of the flags that have a fixed list of them.
func (*filterFlags) known() map[string][]string {
	carriers := []string{}
	for _, k := range report.DeviceKinds() {
		carriers = append(carriers, string(k))
	}
	for _, c := range report.Carriers() {
		carriers = append(carriers, string(c))
	}
	ways := []string{}
	for _, w := range report.Ways() {
		ways = append(ways, string(w))
	}
	return map[string][]string{
		"carrier": carriers,
		"reason":  append(reasonNames(), report.DemotedByOperator, report.DemotedByPeer),
		"way":     ways,
		"end":     {string(report.EndClosed), string(report.EndAborted), string(report.EndNative)},
	}
}

// parse converts the flags, and refuses values that no connection can have.
func (f *filterFlags) parse() (out report.ConnFilter, err error) {
	known := f.known()
	for name, given := range map[string]string{
		"carrier": f.carrier, "reason": f.reason, "way": f.way, "end": f.ended,
	} {
		if given != "" && !slices.Contains(known[name], given) {
			if name == "reason" {
				return out, usagef("--reason: %q is not a reason%s; \"smcgw codes\" lists them", given, meant(given, known[name]))
			}
			return out, usagef("--%s: %q is not one of %s%s", name, given, strings.Join(known[name], ", "), meant(given, known[name]))
		}
	}
	out = report.ConnFilter{Port: f.port, Reason: f.reason, Way: report.Way(f.way), End: report.End(f.ended)}
	if f.carrier != "" {
		if out.Carrier, err = config.ParseCarrier(f.carrier); err != nil {
			return out, usagef("--carrier: %w", err)
		}
	}
	if f.peer != "" {
		if out.Peer, err = parsePeers(f.peer); err != nil {
			return out, usagef("--peer: %w", err)
		}
	}
	return out, nil
}

// parsePeers parses an address or a prefix.
func parsePeers(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is not an address or a prefix such as 10.0.0.0/8", text)
	}
	return p.Masked(), nil
}
