package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// agent is other software that decides about connections, and how to detect it.
type agent struct {
	name string
	// processes are names of processes in this network namespace, sockets suffixes of names of Unix sockets, chains
	// prefixes of names of tables or chains, and programs prefixes of names of eBPF programs.
	processes, sockets, chains, programs []string
	// effect is what it means for carried connections. remedy is set for agents that smcgw is not tested with, or that
	// keep connections native.
	effect, remedy string
}

// asNative is the effect of agents that the tests compare with native TCP.
const asNative = "its rules decide about carried connections as about native ones"

// tryFirst is the remedy for agents without a test.
const tryFirst = "begin with one rule, and look at smcgw ping and smcgw conns --all"

func agents(e *exam) []Line {
	processes, sockets, programs := e.processes(), e.sockets(), e.programs()
	tables, chains := e.chains()
	var lines []Line
	var known []string // prefixes of names of chains and tables
	for _, a := range agentTable() {
		known = append(known, a.chains...)
		var signs []string
		for _, s := range []struct {
			kind  string
			found string
		}{
			{"process", first(processes, a.processes, func(have, want string) bool { return have == want })},
			{"socket", first(sockets, a.sockets, strings.HasSuffix)},
			{"rules", first(chains, a.chains, strings.HasPrefix)},
			{"program", first(programs, a.programs, strings.HasPrefix)},
		} {
			if s.found != "" {
				signs = append(signs, s.kind+" "+s.found)
			}
		}
		if signs == nil {
			continue
		}
		l := ok("%s (%s): %s", a.name, strings.Join(signs, ", "), a.effect)
		if a.remedy != "" {
			l = warning(a.remedy, "%s", l.Text)
		}
		lines = append(lines, l)
	}
	if own := tablesOfNone(tables, known); len(own) > 0 {
		lines = append(lines, ok("rules of nftables (%s): they decide about carried connections as about native ones, and have to let the UDP port of soft pass between gateways: nft list ruleset", strings.Join(own, ", ")))
	}
	if lines == nil {
		return []Line{ok("no firewall, mesh or container engine that is known")}
	}
	return lines
}

// agentTable lists the agents to look for.
func agentTable() []agent {
	return []agent{
		{
			name: "Cilium", processes: []string{"cilium-agent"}, sockets: []string{"/cilium/cilium.sock"}, chains: []string{"CILIUM_"}, programs: []string{"cil_"},
			effect: "its programs are attached beside the gateway's, and translate service addresses first; not tested together", remedy: tryFirst,
		},
		{
			name: "Calico", processes: []string{"calico-node", "calico-felix"}, chains: []string{"cali-"}, programs: []string{"cali_"},
			effect: "its rules come first; not tested together", remedy: tryFirst,
		},
		{
			name: "Kmesh", processes: []string{"kmesh-daemon"}, programs: []string{"kmesh"},
			effect: "where it moves bytes between the sockets of this host, connections are native (app_leg_blocked); not tested together", remedy: tryFirst,
		},
		{
			name: "Istio ambient", processes: []string{"ztunnel", "install-cni"}, chains: []string{"ISTIO_PRERT", "ISTIO_OUTPUT_NAT"},
			effect: "in pods of the ambient mode connections are native (app_leg_blocked)", remedy: "run the gateway where connections are to be carried: on nodes, or in pods with sidecars",
		},
		{
			name: "Istio sidecar", processes: []string{"pilot-agent", "envoy"}, chains: []string{"ISTIO_REDIRECT", "ISTIO_INBOUND"},
			effect: "the sidecar serves carried connections as native ones",
		},
		{name: "kube-proxy", processes: []string{"kube-proxy"}, chains: []string{"KUBE-SERVICES", "kube-proxy"}, effect: asNative + "; a translated connection of this host is native (nat)"},
		{name: "firewalld", processes: []string{"firewalld"}, chains: []string{"firewalld"}, effect: asNative},
		{name: "ufw", chains: []string{"ufw-", "ufw6-"}, effect: asNative},
		{name: "Docker", processes: []string{"dockerd"}, sockets: []string{"/docker.sock"}, chains: []string{"DOCKER"}, effect: "published ports are served by the same container, carried or not"},
		{name: "Podman", processes: []string{"conmon"}, chains: []string{"NETAVARK", "netavark"}, effect: "published ports are served by the same container, carried or not"},
	}
}

// first returns the first of have that fits one of want, or "".
func first(have, want []string, fits func(have, want string) bool) string {
	i := slices.IndexFunc(have, func(h string) bool {
		return slices.ContainsFunc(want, func(w string) bool { return fits(h, w) })
	})
	if i < 0 {
		return ""
	}
	return have[i]
}

// processes returns the names of the processes in this network namespace, and of those whose namespace cannot be
// determined.
func (e *exam) processes() (names []string) {
	entries, _ := fs.ReadDir(e.files, "proc")
	own, _ := fs.ReadLink(e.files, "proc/self/ns/net")
	for _, d := range entries {
		if name := d.Name(); name[0] < '0' || name[0] > '9' {
			continue
		}
		dir := path.Join("proc", d.Name())
		if ns, err := fs.ReadLink(e.files, dir+"/ns/net"); err == nil && ns != own {
			continue
		}
		if name, found := e.text(dir + "/comm"); found {
			names = append(names, name)
		}
	}
	return names
}

// sockets returns the names of Unix sockets.
func (e *exam) sockets() (names []string) {
	text, _ := e.text("proc/net/unix")
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 7 {
			names = append(names, f[7])
		}
	}
	return names
}

// chains returns the nftables chains of each table, and the names of tables and chains.
func (e *exam) chains() (tables map[string][]string, names []string) {
	list, err := e.host.Chains()
	if err != nil {
		return nil, nil // no CAP_NET_ADMIN, or a kernel without nftables
	}
	tables = map[string][]string{}
	for _, c := range list {
		tables[c.Table] = append(tables[c.Table], c.Name)
		names = append(names, c.Table, c.Name)
	}
	return tables, names
}

// mostTables bounds how many tables a line lists.
const mostTables = 4

// tablesOfNone returns the tables for which neither the name nor that of a chain has the prefix of an agent.
func tablesOfNone(tables map[string][]string, known []string) (names []string) {
	isKnown := func(name string) bool {
		return slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(name, k) })
	}
	for table, chains := range tables {
		if !isKnown(table) && !slices.ContainsFunc(chains, isKnown) {
			names = append(names, "table "+table)
		}
	}
	slices.Sort(names)
	if more := len(names) - mostTables; more > 0 {
		names = append(names[:mostTables], fmt.Sprintf("%d more", more))
	}
	return names
}

// programs returns the names of programs at the hooks to which the gateway attaches.
func (e *exam) programs() (names []string) {
	for _, h := range e.host.Hooks(e.cgroup, e.devices) {
		names = append(names, h.Programs...)
	}
	return names
}
