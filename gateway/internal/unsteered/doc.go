// Package unsteered is the steering of a host where there is none: the configuration wants none, or the kernel cannot. A
// gateway on it carries nothing and serves programs with the library, with everything else that a gateway has: admin socket,
// modes, metrics, takeover.
package unsteered
