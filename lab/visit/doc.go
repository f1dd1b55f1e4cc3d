// Package visit is a server that tells its name and the address of its client, a
// client that visits it and writes down everything an application can observe, and
// the proxy that redirected connections come to (a sidecar).
//
// It exists to compare connections with and without a gateway on hosts with rules
// of their own: the same server must answer, see the same address, and get every
// byte. Package apps has servers without a name that run in the test's own program;
// these run inside containers, which have nothing but one static file, made of the
// command in the folder program.
//
// The trap: what a connection is compared by is [Observation.Outcome], which leaves
// out times and numbers of ports. A field that has to be equal belongs there.
package visit
