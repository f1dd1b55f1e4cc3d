package main

import (
	"io"
	"os"

	"github.com/smcgw/smcgw/gateway/process"
)

// env is the world as the verbs see it, so that all of them run in tests.
type env struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	confine        func() error // gives up privileges, of the process

	socket  string // --socket
	json    bool   // --json
	started bool   // the command line was understood
}

// osEnv is the world of the process.
func osEnv() *env {
	return &env{stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, confine: process.Confine}
}
