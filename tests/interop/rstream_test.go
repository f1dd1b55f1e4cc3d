package interop

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket/socket"
)

// rstreamModes are the modes of the program that matter to us: when it checks its connection, how large its memory
// is, how much it sends inline, and what else it sends.
var rstreamModes = [][]string{
	nil,
	{"-T", "a"},
	{"-T", "b"},
	{"-T", "n"},
	{"-T", "r"},
	{"-T", "a", "-T", "b"},
	{"-T", "b", "-B", "65536"},
	{"-B", "2000000"},
	{"-i", "0"},
	{"-k", "1"},
}

// rstreamCase is one run of the program with one test, whose numbers it is given, on one connection.
type rstreamCase struct {
	rstreamTest

	mode   []string
	path   path
	serves bool // the program serves
	ahead  bool
}

func (c *rstreamCase) name() string {
	role := "program connects"
	if c.serves {
		role = "program serves"
	}
	name := fmt.Sprintf("%d x %d x %d %s %s %v", c.iterations, c.count, c.size, role, c.path.name, c.mode)
	if c.ahead {
		name += " ahead"
	}
	return name
}

// rstreamCases returns all sizes, in transfers one by one (latency) or many at a time (bandwidth), in both roles and
// IP versions; the sample has one of the four. Everything else alternates.
func rstreamCases(paths []path) (all []rstreamCase) {
	for i, size := range rstreamSizes() {
		n := min(max(1<<20/size, 2), 50)
		for j := range 4 {
			if !thorough() && j != i%4 {
				continue
			}
			k := i + j
			if !thorough() {
				k = i + i/4
			}
			c := rstreamCase{rstreamTest: rstreamTest{size, 1, n}, path: paths[j%2], serves: j/2 == 1}
			if k%2 == 1 {
				c.rstreamTest = rstreamTest{size, n, 2}
			}
			c.mode, c.ahead = rstreamModes[k%len(rstreamModes)], k%3 == 2
			all = append(all, c)
		}
	}
	return all
}

func TestRstream(t *testing.T) { eachKernel(t, rstreams) }

func rstreams(t *testing.T, l *lab) {
	for _, c := range l.few(rstreamCases(l.paths())) {
		t.Run(c.name(), func(t *testing.T) { c.run(t, l) })
	}
}

// few returns a third of the cases for a sample inside the guest, where everything is emulated.
func (l *lab) few(cases []rstreamCase) (some []rstreamCase) {
	if l.inside == nil || thorough() {
		return cases
	}
	for i := 0; i < len(cases); i += 3 {
		some = append(some, cases[i])
	}
	return some
}

func (c *rstreamCase) run(t *testing.T, l *lab) {
	args := append([]string{
		"rstream", "-T", "v", "-S", strconv.Itoa(c.size), "-C", strconv.Itoa(c.count), "-I", strconv.Itoa(c.iterations),
	}, c.mode...)
	s := l.stack(t, c.path)
	conn, program := s.withProgram(rstreamPort, c.serves, args...)
	r := &rstream{conn: conn, client: c.serves, ahead: c.ahead}
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	require.NoError(t, r.play(c.rstreamTest))
	require.NoError(t, r.end())
	ended(t, program)
	s.orderly(1)
}

// TestRstreamHalf ends our direction long before the program has anything to end: while it sends and is stuck because
// we do not read. Afterwards it must find all that we sent, which its memory holds, and send on until it is done.
//
// If both ends shut down at the same time, librdmacm may take our SHUTDOWN for the end of everything, and drop its
// own DISCONNECT and the data before it, which our side reports as a lost connection.
func TestRstreamHalf(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		const size = 768 << 10
		for i, path := range l.paths() {
			t.Run(path.name, func(t *testing.T) {
				args := []string{"rstream", "-T", "v", "-C", "1", "-S", strconv.Itoa(size)}
				if i == 1 {
					args = append(args, "-T", "b")
				}
				s := l.stack(t, path)
				s.cfg.RecvBuffer = 128 << 10
				conn, program := s.withProgram(rstreamPort, false, args...)
				require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
				r := &rstream{conn: conn}
				require.NoError(t, r.turn(rstreamSync, 1))
				require.NoError(t, r.send(size, size))
				require.NoError(t, conn.CloseWrite())
				time.Sleep(500 * time.Millisecond)
				require.NoError(t, r.receive(size))
				require.NoError(t, r.end())
				ended(t, program)
				s.orderly(1)
			})
		}
	})
}

// TestRstreamLoss loses packets in both directions.
func TestRstreamLoss(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		l.lose(t, 200)
		for i, path := range l.paths() {
			for _, size := range []int{1000, 1 << 16} {
				n := scaled(20<<20) / size
				c := rstreamCase{rstreamTest: rstreamTest{size, n, 1}, path: path, serves: i == 0, ahead: true}
				t.Run(c.name(), func(t *testing.T) { c.run(t, l) })
			}
		}
	})
}

// TestRstreamDefault lets the program do what it does without arguments: it uses connections for longer, one after
// another. That takes minutes, so the sample leaves after a part of it.
func TestRstreamDefault(t *testing.T) {
	onKernels(t, func(t *testing.T, l *lab) {
		for i, path := range l.paths() {
			t.Run(path.name, func(t *testing.T) {
				s, args, serves := l.stack(t, path), []string{"rstream", "-T", "v"}, i == 0
				connect := func() *socket.Conn { return s.dial(rstreamPort) }
				if serves {
					args = append(args, "-b", path.peer.String())
				} else {
					args = append(args, "-s", path.our.String())
					connect = s.listen(rstreamPort)
				}
				program := l.start(t, args...)
				r := &rstream{client: serves}
				for _, tests := range rstreamDefault() {
					r.conn = connect()
					require.NoError(t, r.conn.SetDeadline(time.Now().Add(10*time.Minute)))
					if !thorough() {
						tests[0].iterations = 500
						require.NoError(t, r.play(tests[0]))
						require.NoError(t, r.conn.Close())
						return
					}
					for _, test := range tests {
						require.NoError(t, r.play(test), "%+v", test)
						t.Logf("%+v", test)
					}
					require.NoError(t, r.end())
				}
				ended(t, program)
				s.orderly(2)
				require.NotContains(t, program.Output(), "failed")
			})
		}
	})
}
