// Package daemon starts gateways, as processes of the program, on simulated hosts.
package daemon
