// Package daemon starts gateways, processes of the program, on simulated hosts.
package daemon
