// Package config is the configuration of a gateway: its schema, strict parsing, defaults,
// validation, and rendering with the origin of every value. It reads files and the user
// database and does nothing else. The trap: a zero field means "the default", so "none" has a
// value of its own ([NoPort], [NoSpin]).
package config
