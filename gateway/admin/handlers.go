package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
)

// adminMux routes the admin socket. Nouns are GETs and change nothing; verbs are POSTs.
func (s *Server) adminMux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", gated(s.totals, s.getStatus))
	mux.HandleFunc("GET /v1/stats", gated(s.totals, s.getStats))
	mux.HandleFunc("GET /v1/conns", gated(s.lists, s.getConns))
	mux.HandleFunc("GET /v1/watch", s.getWatch)
	mux.HandleFunc("GET /v1/peers", gated(s.lists, s.getPeers))
	mux.HandleFunc("GET /v1/policy", gated(s.totals, s.getPolicy))
	mux.HandleFunc("GET /v1/devices", s.getDevices)
	mux.HandleFunc("GET /v1/version", s.getVersion)
	mux.Handle("GET /metrics", orNotFound(s.Metrics))
	s.probes(mux)
	mux.Handle("GET /{$}", orNotFound(s.Page))
	mux.HandleFunc("POST /v1/set", s.postSet)
	mux.HandleFunc("POST /v1/off", func(w http.ResponseWriter, r *http.Request) { s.postOff(w, true, r.URL.Query().Get("now") == "true") })
	mux.HandleFunc("POST /v1/on", func(w http.ResponseWriter, _ *http.Request) { s.postOff(w, false, false) })
	mux.HandleFunc("POST /v1/peers/flush", s.postFlush)
	mux.HandleFunc("POST /v1/demote", s.postDemote)
	mux.HandleFunc("POST /v1/optin", s.postOptIn)
	mux.HandleFunc("POST /v1/trial", s.postTrial)
	mux.HandleFunc("POST /v1/drain", s.postDrain)
	mux.HandleFunc("POST /v1/reload", s.postReload)
	mux.HandleFunc("POST /v1/handover", s.postHandover)
	return authorise(mux)
}

// metricsMux routes the metrics listener, which serves only what changes nothing and names no
// address.
func (s *Server) metricsMux() http.Handler {
	mux := http.NewServeMux()
	s.probes(mux)
	mux.Handle("GET /metrics", orNotFound(s.Metrics))
	return mux
}

// probes routes the probes of supervisors.
func (s *Server) probes(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", getLive)
	mux.HandleFunc("GET /readyz", s.getReady)
}

// orNotFound replaces a missing handler by one that answers 404.
func orNotFound(h http.Handler) http.Handler {
	if h == nil {
		return http.NotFoundHandler()
	}
	return h
}

// gated limits the number of concurrent requests. A request counts until its client has read
// the answer or has run out of time to.
func gated(g *gate, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		leave, ok := g.Enter(r.Context(), peerAccess(r.Context()) == accessWrite)
		if !ok {
			w.Header().Set("Retry-After", "1")
			writeError(w, http.StatusServiceUnavailable, "too many clients ask for this at once: ask again")
			return
		}
		defer leave()
		h(w, r)
	}
}

// authorise restricts peers to what their credentials allow.
func authorise(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		need := accessWrite
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			need = accessRead
		}
		if peerAccess(r.Context()) < need {
			writeError(w, http.StatusForbidden, "not permitted for this user")
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, adminMaxBody)
		next.ServeHTTP(w, r)
	})
}

func (s *Server) getStatus(w http.ResponseWriter, _ *http.Request) {
	st := s.ctl.Status()
	st.Schema = statusSchema
	if st.Version == "" {
		st.Version = s.version
	}
	st.Draining, st.Predecessor = s.ctl.Draining(), s.Predecessor()
	if err := s.lasts(); err != nil {
		st.Notes = append(slices.Clip(st.Notes), fmt.Sprintf("state_dir: smcgw off would not outlast this gateway: %v", err))
	}
	writeJSON(w, st.Filled())
}

func (s *Server) getStats(w http.ResponseWriter, _ *http.Request) {
	st := s.ctl.Stats()
	st.Schema = statsSchema
	writeJSON(w, st.Filled())
}

func (s *Server) getConns(w http.ResponseWriter, r *http.Request) {
	query, err := parseConnQuery(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	list := slices.DeleteFunc(s.ctl.Conns(query), func(c report.ConnInfo) bool { return !query.Filter.Matches(&c) })
	for i := range list {
		list[i].TellWay()
	}
	writeJSON(w, ConnList{Schema: connsSchema, Conns: orEmpty(list)})
}

func (s *Server) getPeers(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, PeerList{Schema: peersSchema, Peers: orEmpty(s.ctl.Peers())})
}

func (s *Server) getDevices(w http.ResponseWriter, _ *http.Request) {
	list := s.ctl.Devices()
	list.Schema, list.Devices, list.RDMA.Adapters = devicesSchema, orEmpty(list.Devices), orEmpty(list.RDMA.Adapters)
	writeJSON(w, list)
}

func (s *Server) getVersion(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, NewVersionInfo(s.version))
}

// postOff writes the flag before it tells the datapath: a daemon that dies in between comes
// back in the requested state. now resets carried connections.
func (s *Server) postOff(w http.ResponseWriter, off, now bool) {
	inForce, errFlag := atFlag(noDeadline, s, func() (bool, error) {
		err := s.off.Set(off)
		return off || s.off.IsSet(), err
	})
	if errors.Is(errFlag, errFlagLate) {
		if !off { // the file may still exist
			writeError(w, http.StatusInternalServerError, errFlag.Error())
			return
		}
		inForce = true
	}
	var problem string
	switch errCtl := s.ctl.SetOff(inForce); {
	case errCtl != nil:
		problem = errors.Join(errFlag, fmt.Errorf("switch datapath: %w", errCtl)).Error()
	case errFlag != nil && off:
		problem = "new connections are native from now on, but not after a restart of the gateway: " + errFlag.Error()
	case errFlag != nil:
		problem = errFlag.Error()
	case inForce && !off:
		problem = fmt.Sprintf("all gateways of this machine are off (%s): smcgw on, without -c and --socket", MachineOff().Path())
	}
	if problem != "" {
		s.log.Error("off switch not applied as asked", "off", off, "in_force", inForce, "error", problem)
		if now && errFlag != nil {
			s.ctl.ResetFlows()
		}
		writeError(w, http.StatusInternalServerError, problem)
		return
	}
	s.log.Info("off switch changed", "off", off)
	if now {
		n := s.ctl.ResetFlows()
		s.log.Warn("carried connections are to be reset", "count", n)
		writeJSON(w, Result{
			Schema: ResultSchema, Verb: "off", Count: n,
			Message: fmt.Sprintf("new connections stay native; carried ones (%d) are reset", n),
		})
		return
	}
	verb, msg := "on", "new connections are offered and accepted as the mode says"
	if off {
		verb, msg = "off", "new connections stay native; carried ones go on"
	}
	writeJSON(w, Result{Schema: ResultSchema, Verb: verb, Message: msg})
}

func (s *Server) postFlush(w http.ResponseWriter, _ *http.Request) {
	n, err := s.ctl.FlushPeers()
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	msg := fmt.Sprintf("%d remembered peers forgotten", n)
	if n == 1 {
		msg = "1 remembered peer forgotten"
	}
	writeJSON(w, Result{Schema: ResultSchema, Verb: "peers flush", Message: msg, Count: n})
}

// NewVersionInfo describes this binary and the kernel it runs on.
func NewVersionInfo(version string) report.VersionInfo {
	return report.VersionInfo{
		Schema: versionSchema, Version: version, Go: runtime.Version(),
		OS: runtime.GOOS, Arch: runtime.GOARCH, Kernel: kernelRelease(),
	}
}

// kernelRelease returns what uname -r prints.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// readRequest strictly decodes the body of a POST, and reads it to its end. An empty one is io.EOF.
func readRequest(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	// The end of the connection is noticed only after the end of the body has been read,
	// which also ends the read timeout.
	if n, err := io.Copy(io.Discard, io.MultiReader(dec.Buffered(), r.Body)); err != nil || n > 2 {
		return errors.New("more than one document")
	}
	return nil
}

// readOptional is readRequest for a body that may be empty.
func readOptional(r *http.Request, into any) error {
	if err := readRequest(r, into); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// answerAndHold confirms that something applies, and returns when it is over: when ctx ends,
// which is that of the request or bounds it, or the daemon.
func (s *Server) answerAndHold(ctx context.Context, w http.ResponseWriter, res Result) {
	res.Schema = ResultSchema
	writeJSON(w, res)
	if http.NewResponseController(w).Flush() != nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-s.life.Done():
	}
}

// writeJSON sends a document. It ignores errors, since the client may be gone.
func writeJSON(w http.ResponseWriter, doc any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(doc)
}

func writeError(w http.ResponseWriter, code int, msg string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(errorDoc{Schema: errorSchema, Error: msg})
}

// postDemote moves connections to the relay. Its body is a [DemoteQuery].
func (s *Server) postDemote(w http.ResponseWriter, r *http.Request) {
	var q DemoteQuery
	if err := readRequest(r, &q); err != nil {
		writeError(w, http.StatusBadRequest, "query: "+err.Error())
		return
	}
	if p := q.problem(); p != "" {
		writeError(w, http.StatusBadRequest, p)
		return
	}
	n, err := s.ctl.Demote(q)
	if err != nil {
		writeError(w, http.StatusConflict, err.Error())
		return
	}
	if n == 0 && len(q.IDs) > 0 {
		writeError(w, http.StatusNotFound, "none of these connections is carried by a queue pair: smcgw conns lists ids")
		return
	}
	s.log.Info("connections asked to leave their queue pairs", "count", n, "device", q.Device)
	msg := fmt.Sprintf("%d connections go on over the relay", n)
	if n == 1 {
		msg = "1 connection goes on over the relay"
	}
	if q.Device != "" {
		msg += "; " + q.Device + " is closed"
	}
	writeJSON(w, Result{Schema: ResultSchema, Verb: "demote", Message: msg, Count: n})
}

// Demote makes connections leave their queue pairs and continue over the relay.
func (c *Client) Demote(ctx context.Context, q DemoteQuery) (Result, error) {
	return askWith[Result](ctx, c, http.MethodPost, "/v1/demote", q, ResultSchema)
}

// DemoteQuery selects the connections that leave their queue pairs: those that match every
// field that is set. All alone selects every connection.
type DemoteQuery struct {
	// IDs are IDs listed by conns.
	IDs []uint64 `json:"ids,omitempty"`
	// Carrier is rdma-shm, rdma-hw, rdma-ib or rdma-soft.
	Carrier report.Carrier `json:"carrier,omitempty"`
	All     bool           `json:"all,omitempty"`
	// Device is an RDMA adapter, or one port of an adapter. Its connections leave it, and it
	// is closed so that its driver can be unloaded. Device excludes the other fields.
	Device string `json:"device,omitempty"`
}

// problem returns why a query is invalid, or "".
func (q DemoteQuery) problem() string {
	named := q.All || len(q.IDs) > 0 || q.Carrier != report.CarrierNone
	switch {
	case q.Device != "" && named:
		return "device excludes ids, carrier and all"
	case q.Device != "":
		return ""
	case !q.All && len(q.IDs) == 0 && q.Carrier == report.CarrierNone:
		return "no connection is named: ids, carrier, device or all"
	case q.All && len(q.IDs) > 0:
		return "all and ids exclude each other"
	case q.Carrier != report.CarrierNone && (q.Carrier == report.CarrierRelay || !slices.Contains(report.Carriers(), q.Carrier)):
		return "carrier: " + string(q.Carrier) + " cannot be left; rdma-shm, rdma-soft, rdma-hw and rdma-ib can"
	}
	return ""
}

// Matches reports whether a connection is selected.
func (q DemoteQuery) Matches(id uint64, by report.Carrier) bool {
	return (len(q.IDs) == 0 || slices.Contains(q.IDs, id)) && (q.Carrier == report.CarrierNone || q.Carrier == by)
}
